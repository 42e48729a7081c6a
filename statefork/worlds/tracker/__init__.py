"""The tracker: Redmine, as Debian packages it, on one shared puma, with PostgreSQL and its uploads as files."""
