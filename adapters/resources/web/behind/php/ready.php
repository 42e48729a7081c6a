<?php
/** A probe: every declared store is reached once. */

declare( strict_types = 1 );

namespace Statefork;

( static function (): void {
	$wrong = [];
	foreach ( Bound::current()->stores as $kind => $address ) {
		if ( isset( $address['path'] ) ) {
			$wrong[] = is_dir( $address['path'] ) ? '' : "store '$kind' has no directory {$address['path']}";
			continue;
		}
		$names = [ 'host' => 'host', 'port' => 'port', 'dbname' => 'name', 'user' => 'user', 'password' => 'password' ];
		$words = [];
		foreach ( $names as $word => $name ) {
			$words[] = "$word='" . addcslashes( (string)$address[$name], "'\\" ) . "'";
		}
		$session = @pg_connect( implode( ' ', $words ) . ' connect_timeout=15', PGSQL_CONNECT_FORCE_NEW );
		$wrong[] = $session && pg_query( $session, 'SELECT 1' ) ? '' : "store '$kind' can't be reached";
	}
	$wrong = array_filter( $wrong );
	http_response_code( $wrong ? 503 : 204 );
	echo implode( '; ', $wrong );
} )();
