<?php
/**
 * The wiki's settings. Everything that differs between environments is chosen here, for each request, by its binding;
 * on the command line, where the base is made, by variables.
 */

if ( !defined( 'MEDIAWIKI' ) ) {
	exit;
}
require_once "$IP/includes/PlatformSettings.php";

( static function (): void {
	global $wgDBserver, $wgDBport, $wgDBname, $wgDBuser, $wgDBpassword, $wgUploadDirectory, $wgCachePrefix;
	if ( PHP_SAPI === 'cli' ) {
		$database = json_decode( getenv( 'STATEFORK_DATABASE' ), true );
		$database['name'] = $database['dbname'];
		$media = getenv( 'STATEFORK_BASE' ) . '/media';
		$wgCachePrefix = 'build';
	} else {
		$bound = Statefork\Bound::current();
		$database = $bound->store( 'database' );
		$media = $bound->store( 'media' )['path'];
		$wgCachePrefix = $bound->nonce; // in the memory that all environments share
	}
	$wgDBserver = $database['host'];
	$wgDBport = (int)$database['port'];
	$wgDBname = $database['name'];
	$wgDBuser = $database['user'];
	$wgDBpassword = $database['password'];
	$wgUploadDirectory = $media;
} )();

$wgSitename = 'Wiki';
$wgServer = 'http://wiki.example';
$wgScriptPath = '';
$wgArticlePath = '/wiki/$1';
$wgUsePathInfo = true;
$wgResourceBasePath = '';
$wgLogos = [ '1x' => '/resources/assets/mediawiki.png' ];
$wgLanguageCode = 'en';
$wgLocaltimezone = 'UTC';
$wgDefaultSkin = 'vector';
wfLoadSkin( 'Vector' );
wfLoadExtension( 'Cite' );
wfLoadExtension( 'ParserFunctions' );
wfLoadExtension( 'WikiEditor' );

$wgDBtype = 'postgres';
$wgDBmwschema = 'mediawiki';
$wgDBssl = false;

// The same in all environments, and after a fork: an environment's database has a name that no other has.
$wgCookiePrefix = 'wiki';
$wgObjectCaches[CACHE_DB] = [ 'class' => SqlBagOStuff::class, 'keyspace' => 'wiki' ];
$wgObjectCaches['db-replicated'] = $wgObjectCaches[CACHE_DB];

// What must survive lies in the database; what is only kept to be quick, in the binding's slice of memory.
$wgMainCacheType = CACHE_ACCEL;
$wgSessionCacheType = CACHE_DB;
$wgParserCacheType = CACHE_DB;
$wgMainStash = CACHE_DB;
$wgLocalisationCacheConf['storeClass'] = LCStoreStaticArray::class;
$wgLocalisationCacheConf['storeDirectory'] = __DIR__ . '/messages'; // of the packages alone: the same for everybody
$wgInvalidateCacheOnLocalSettingsChange = false;

$wgEnableUploads = true;
$wgUploadPath = '/images';
$wgUseImageMagick = false;
$wgFileExtensions = [ 'png', 'gif', 'jpg', 'jpeg', 'webp' ];
$wgEnableEmail = false;
$wgUseInstantCommons = false;
$wgPingback = false;
$wgRateLimits = [];
$wgShowExceptionDetails = true;
$wgSecretKey = '5f1c0a7e9d3b48266a4ce1f0b2d89357c4e6a1908f7b2d3c5e4a69780b1d2f3e'; // of an example world: no secret
$wgUpgradeKey = '0f1e2d3c4b5a6978';
$wgAuthenticationTokenVersion = '1';

// Jobs run after the answer, within the request that queued them or the next one: all of them, and before it counts as
// ended. MediaWiki's own way would be one job now and then.
$wgJobRunRate = 0;
if ( PHP_SAPI !== 'cli' ) {
	register_shutdown_function( static function (): void {
		$failed = error_get_last();
		if ( $failed === null || !( $failed['type'] & ( E_ERROR | E_PARSE | E_CORE_ERROR | E_COMPILE_ERROR ) ) ) {
			MediaWiki\MediaWikiServices::getInstance()->getJobRunner()->run( [ 'maxJobs' => 10000 ] );
		}
	} );
	$wgHooks['LogException'][] = static function ( Throwable $error ): void {
		if ( $error instanceof Wikimedia\Rdbms\DBConnectionError
			|| $error instanceof Wikimedia\Rdbms\DBQueryDisconnectedError
		) {
			Statefork\Bound::lost( 'the database was lost: ' . $error->getMessage() );
		}
	};
}
