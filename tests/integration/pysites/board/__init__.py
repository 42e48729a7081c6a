"""A notice board, twice: on Flask over SQLite, and on Starlette over PostgreSQL. Only its glue knows of statefork."""
