<?php
/**
 * Loaded before every script: which environment the request belongs to. Without one nothing of the application runs.
 *
 * PHP forgets everything at the end of a request, so a binding is what its header says. What outlives requests (the
 * shared memory of APCu) is told apart by the binding's nonce, which no other binding bears.
 */

declare( strict_types = 1 );

namespace Statefork;

/** What the running request is bound to. */
final class Bound {
	private static ?self $current = null;
	/** @var resource Locked as long as the request is at work, also after its answer. */
	private static $lock;

	private function __construct(
		public readonly string $nonce,
		public readonly string $env,
		public readonly int $epoch,
		/** @var array<string, array<string, string|int>> What each declared store is reached by. */
		public readonly array $stores,
	) {
	}

	/** The request's binding; there is none on the command line. */
	public static function current(): self {
		return self::$current ?? throw new \RuntimeException( 'no environment is bound' );
	}

	/** What a declared store is reached by. */
	public function store( string $kind ): array {
		return $this->stores[$kind] ?? throw new \RuntimeException( "the contract declares no store $kind" );
	}

	/** Take the binding from the header, or end the request. */
	public static function enter( string $header, string $key, string $run ): void {
		[ $text, $mac ] = explode( '.', $header . '.', 3 );
		if ( !hash_equals( hash_hmac( 'sha256', $text, $key ), $mac ) ) {
			self::refuse( 421, 'no environment' );
		}
		$told = json_decode( base64_decode( strtr( $text, '-_', '+/' ) ), true, 16, JSON_THROW_ON_ERROR );
		self::$lock = @fopen( "$run/work/{$told['nonce']}.{$told['work']}", 'r+' );
		if ( !self::$lock || !flock( self::$lock, LOCK_EX ) ) {
			self::refuse( 409, 'the request is over' );
		}
		fwrite( self::$lock, (string)getmypid() );
		if ( file_exists( "$run/cut/{$told['nonce']}" ) ) { // asked after locking: whoever cuts looks at the locks after
			self::refuse( 409, 'the environment was ended' );
		}
		self::$current = new self( $told['nonce'], $told['env'], $told['epoch'], $told['stores'] );
	}

	/** Tell the server that a store failed: what the application says of it is not its own word. */
	public static function lost( string $what ): void {
		if ( !headers_sent() ) {
			header( 'Statefork-Lost: ' . preg_replace( '/[^ -~]/', ' ', substr( $what, 0, 400 ) ) );
		}
	}

	/** @return never */
	private static function refuse( int $status, string $why ): void {
		http_response_code( $status );
		header( 'Content-Type: text/plain' );
		exit( "$why\n" );
	}
}
