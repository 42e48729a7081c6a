<?php
/** What the tests ask of the wiki's server beside its pages. */

use Statefork\Bound;

( static function (): void {
	$bound = Bound::current();
	$site = dirname( getenv( 'MW_CONFIG_FILE' ) );
	$address = $bound->store( 'database' );
	$connect = static fn () => pg_connect( "host='{$address['host']}' port={$address['port']} dbname='{$address['name']}'"
		. " user='{$address['user']}' password='{$address['password']}'" );
	header( 'Content-Type: application/json' );
	$asked = basename( $_SERVER['DOCUMENT_URI'] );
	if ( $asked === 'without' ) {
		file_put_contents( "$site/without", $_GET['guard'] );
	} elseif ( $asked === 'back' ) {
		@unlink( "$site/without" );
		@unlink( "$site/first" );
	} elseif ( $asked === 'later' ) { // work that outlasts the answer
		if ( trim( (string)@file_get_contents( "$site/without" ) ) === 'threads' ) {
			flock( ( new ReflectionProperty( Bound::class, 'lock' ) )->getValue(), LOCK_UN );
		}
		echo 'true';
		fastcgi_finish_request();
		fgets( fopen( $_GET['pipe'], 'r' ) );
		pg_query_params( $connect(), "INSERT INTO mediawiki.site_identifiers VALUES ('text', $1, 1)", [ $_GET['text'] ] );
		exit;
	} elseif ( $asked === 'endless' ) {
		if ( !@pg_query( $connect(), 'SELECT pg_sleep(600)' ) ) {
			Bound::lost( 'the session was ended' );
		}
	}
	echo 'true';
} )();
