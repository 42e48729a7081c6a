"""Oscar's shipping application, forked in the documented way to read its methods from the database."""
