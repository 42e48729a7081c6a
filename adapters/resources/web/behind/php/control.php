<?php
/** What the server asks of the processes behind: to drop a binding's slice of the shared memory, or to search it. */

declare( strict_types = 1 );

namespace Statefork;

( static function (): void {
	$asked = json_decode( file_get_contents( 'php://input' ), true, 8, JSON_THROW_ON_ERROR );
	$answer = match ( $asked['op'] ) {
		'ping' => apcu_store( 'statefork:ping', 1 ),
		'drop' => apcu_delete( new \APCUIterator( '/' . implode( '|', array_map( preg_quote( ... ), $asked['slices'] ) ) . '/' ) ),
		'holders' => search( $asked['first'] . $asked['second'] ),
		'stats' => [ 'entries' => apcu_cache_info( true )['num_entries'] ?? 0 ],
	};
	header( 'Content-Type: application/json' );
	echo json_encode( $answer );
} )();

/** @return list<string> Keys of the entries that hold a text. */
function search( string $text ): array {
	$found = [];
	foreach ( new \APCUIterator( null, APC_ITER_KEY | APC_ITER_VALUE ) as $key => $entry ) {
		if ( str_contains( $key, $text ) || str_contains( serialize( $entry['value'] ), $text ) ) {
			$found[] = $key;
		}
	}
	return $found;
}
