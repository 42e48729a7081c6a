"""The wiki: MediaWiki, as Debian packages it, on one shared php-fpm, with PostgreSQL and its uploads as files."""
