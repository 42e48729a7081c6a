<?php
/** Users and pages of the wiki, by one seed. Run by build.py once the tables are there. */

use MediaWiki\MediaWikiServices;
use MediaWiki\Revision\SlotRecord;

require_once '/usr/share/mediawiki/maintenance/Maintenance.php';

class SeedWiki extends Maintenance {
	private const PAGES = 150;
	private const WORDS = [
		'river', 'mountain', 'city', 'battle', 'museum', 'poet', 'engine', 'planet', 'ocean', 'bridge', 'castle', 'theory',
		'atom', 'empire', 'island', 'garden', 'painter', 'composer', 'treaty', 'galaxy', 'railway', 'harbour', 'volcano',
	];
	private const PEOPLE = [ 'Ada', 'Ben', 'Cleo', 'Dora', 'Emil', 'Fay' ];

	public function execute() {
		mt_srand( 5 );
		MWTimestamp::setFakeTime( '20250303090000' );
		$people = [ User::newFromName( 'Admin' ) ];
		foreach ( self::PEOPLE as $name ) {
			$user = User::createNew( $name );
			$user->changeAuthenticationData( [ 'username' => $name, 'password' => 'password of ' . $name, 'retype' => 'password of ' . $name ] );
			$people[] = $user;
		}
		$titles = [];
		for ( $number = 0; $number < self::PAGES; $number++ ) {
			$titles[] = ucfirst( $this->words( 1 ) ) . ' of ' . ucfirst( $this->words( 1 ) ) . " $number";
		}
		$this->save( 'Template:Stub', "''This article is short.''<noinclude>[[Category:Templates]]</noinclude>", $people[0] );
		foreach ( $titles as $number => $title ) {
			$this->save( $title, $this->article( $title, $titles ), $people[mt_rand( 0, count( $people ) - 1 )] );
			if ( $number % 10 === 0 ) {
				$this->report( 0.1 + 0.7 * $number / self::PAGES, 'pages' );
			}
		}
		$featured = array_map( static fn ( $title ) => "* [[$title]]", array_slice( $titles, 0, 10 ) );
		$this->save( 'Main Page', "Welcome. Some articles:\n" . implode( "\n", $featured ), $people[0] );
		$this->report( 0.85, 'links, index and counts' );
		MediaWikiServices::getInstance()->getJobRunner()->run( [ 'maxJobs' => 100000 ] );
		SiteStatsInit::doAllAndCommit( $this->getDB( DB_PRIMARY ) );
		$this->getDB( DB_PRIMARY )->delete( 'objectcache', '*', __METHOD__ );
		$this->getDB( DB_PRIMARY )->query( 'ANALYZE', __METHOD__ );
		$this->report( 1.0, 'seeded' );
	}

	private function article( string $title, array $titles ): string {
		$text = "'''$title''' is a " . $this->words( 24 ) . ".\n";
		foreach ( [ 'History', 'Description' ] as $heading ) {
			$note = $this->words( 4 );
			$link = $titles[mt_rand( 0, count( $titles ) - 1 )];
			$text .= "\n== $heading ==\n" . ucfirst( $this->words( 40 ) ) . " [[$link]].<ref>$note</ref>\n";
		}
		$category = ucfirst( $this->words( 1 ) );
		return "$text\n== References ==\n<references/>\n" . ( mt_rand( 0, 3 ) ? '' : "{{Stub}}\n" ) . "[[Category:$category]]\n";
	}

	private function words( int $count ): string {
		$words = [];
		for ( $number = 0; $number < $count; $number++ ) {
			$words[] = self::WORDS[mt_rand( 0, count( self::WORDS ) - 1 )];
		}
		return implode( ' ', $words );
	}

	private function save( string $title, string $text, User $user ): void {
		$page = MediaWikiServices::getInstance()->getWikiPageFactory()->newFromTitle( Title::newFromText( $title ) );
		$updater = $page->newPageUpdater( $user );
		$updater->setContent( SlotRecord::MAIN, ContentHandler::makeContent( $text, $page->getTitle() ) );
		$updater->saveRevision( CommentStoreComment::newUnsavedComment( 'first words' ) );
		if ( !$updater->wasSuccessful() ) {
			$this->fatalError( "$title could not be saved: " . $updater->getStatus() );
		}
	}

	private function report( float $fraction, string $text ): void {
		$this->output( '@' . json_encode( [ round( $fraction, 3 ), $text ] ) . "\n" );
	}
}

$maintClass = SeedWiki::class;
require_once RUN_MAINTENANCE_IF_MAIN;
