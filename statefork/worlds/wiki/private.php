<?php
/**
 * Loaded before every script of a wiki that one environment has alone: what bound.php is to the shared one, so that the
 * settings are the same. Here every request belongs to the same environment; variables say where its stores are.
 */

declare( strict_types = 1 );

namespace Statefork;

/** What all requests of this server are bound to. */
final class Bound {
	private static ?self $current = null;

	private function __construct(
		public readonly string $nonce,
		/** @var array<string, array<string, string|int>> What each store is reached by. */
		public readonly array $stores,
	) {
	}

	public static function current(): self {
		return self::$current ??= new self( 'private', [
			'database' => [
				'host' => getenv( 'PGHOST' ),
				'port' => (int)getenv( 'PGPORT' ),
				'name' => getenv( 'PGDATABASE' ),
				'user' => getenv( 'PGUSER' ),
				'password' => getenv( 'PGPASSWORD' ),
			],
			'media' => [ 'path' => getenv( 'WIKI_MEDIA' ) ],
		] );
	}

	/** What a declared store is reached by. */
	public function store( string $kind ): array {
		return $this->stores[$kind];
	}

	/** Nobody is between this server and the gateway who would be told: the page says what failed. */
	public static function lost( string $what ): void {
	}
}
