<?php
/** The wiki's settings, and what the tests take away from them: a file beside this one names the guard. */

require_once __DIR__ . '/LocalSettings.php';

( static function (): void {
	global $wgCachePrefix, $wgUploadDirectory, $wgJobTypesExcludedFromDefaultQueue, $wgDBname, $wgDBuser, $wgDBpassword;
	$without = PHP_SAPI === 'cli' ? '' : trim( (string)@file_get_contents( __DIR__ . '/without' ) );
	if ( $without === 'caches' ) {
		$wgCachePrefix = 'shared';
	} elseif ( $without === 'release' ) {
		$wgCachePrefix = strrev( Statefork\Bound::current()->nonce ); // told apart, and found by nobody who drops it
	} elseif ( $without === 'uploads' ) {
		$wgUploadDirectory = __DIR__ . '/elsewhere';
	} elseif ( $without === 'jobs' ) {
		$wgJobTypesExcludedFromDefaultQueue = [
			'refreshLinks', 'refreshLinksPrioritized', 'htmlCacheUpdate', 'categoryMembershipChange', 'null',
			'recentChangesUpdate', 'userEditCountInit', 'enqueue', 'deleteLinks', 'refreshLinksDynamic', 'cdnPurge',
		];
	} elseif ( $without === 'connections' ) { // whoever comes first serves all
		$kept = __DIR__ . '/first';
		if ( !file_exists( $kept ) ) {
			file_put_contents( $kept, json_encode( [ $wgDBname, $wgDBuser, $wgDBpassword ] ) );
		}
		[ $wgDBname, $wgDBuser, $wgDBpassword ] = json_decode( file_get_contents( $kept ), true );
	}
} )();
