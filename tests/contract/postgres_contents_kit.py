"""Databases for the tests of what is in one: made on the session's server, dropped when a test has ended."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo

from statefork.adapters.resources.postgres.server import EmbeddedServer

OWNER = "contents_owner"
_numbers = itertools.count(1)

SAMPLE = """
CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN price AS numeric(8, 2) CHECK (VALUE >= 0);
CREATE TABLE goods (
  id integer PRIMARY KEY, title text, cost price, picture bytea, facts jsonb, sold boolean DEFAULT false
);
INSERT INTO goods SELECT n, 'good ' || n, n * 1.5, decode(md5(n::text), 'hex'), jsonb_build_object('n', n)
  FROM generate_series(1, 300) n;
CREATE TABLE stock (place text, good integer REFERENCES goods, amount double precision, PRIMARY KEY (place, good));
INSERT INTO stock SELECT 'shelf ' || n % 3, n, n / 3.0 FROM generate_series(1, 60) n;
CREATE TABLE visits (who text, mood mood);
INSERT INTO visits SELECT 'someone', 'glad' FROM generate_series(1, 5);
INSERT INTO visits VALUES ('another', NULL);
CREATE UNLOGGED TABLE scratch (n integer PRIMARY KEY);
INSERT INTO scratch VALUES (1), (2);
CREATE TABLE years (year integer, sum integer) PARTITION BY RANGE (year);
CREATE TABLE years_2020 PARTITION OF years FOR VALUES FROM (2020) TO (2030);
INSERT INTO years VALUES (2025, 7);
CREATE SEQUENCE numbers;
SELECT nextval('numbers');
CREATE VIEW cheap AS SELECT id, title FROM goods WHERE cost < 10;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS goods FROM goods;
CREATE FUNCTION twice(n integer) RETURNS integer LANGUAGE sql AS 'SELECT n * 2';
CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER keep BEFORE UPDATE ON goods FOR EACH ROW EXECUTE FUNCTION kept();
CREATE INDEX by_title ON goods (title);
ALTER TABLE goods ENABLE ROW LEVEL SECURITY;
CREATE POLICY positive ON goods USING (id > 0);
COMMENT ON TABLE goods IS 'what we sell';
SELECT lo_from_bytea(4242, decode(repeat('ab', 5000), 'hex'));
"""


@contextmanager
def database(server: EmbeddedServer, *statements: str, template: str = "template0") -> Iterator[str]:
    """The connection string of a new database, in which a role that nobody logs in as may make things."""
    name = f"contents_{os.getpid()}_{next(_numbers)}"
    dsn = conninfo.make_conninfo("", **{**server.address(), "dbname": name})
    with _admin(dsn) as admin:
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (OWNER,)).fetchone():
            admin.execute(f"CREATE ROLE {OWNER} NOLOGIN")
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        admin.execute(f"GRANT CREATE ON DATABASE {name} TO {OWNER}")
    try:
        if statements:
            run(dsn, *statements)
        yield dsn
    finally:
        with _admin(dsn) as admin:
            left = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall()
            for (gid,) in left:
                run(dsn, f"ROLLBACK PREPARED '{gid}'")
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _admin(dsn: str) -> psycopg.Connection[Any]:
    return connected(conninfo.make_conninfo(dsn, dbname="postgres"))


def connected(dsn: str, **more: Any) -> psycopg.Connection[Any]:
    """A connection that commits by itself."""
    return psycopg.connect(dsn, autocommit=True, **more)


def run(dsn: str, *statements: str) -> None:
    """Run statements in a session of their own, which has left the server when this returns."""
    with connected(dsn) as connection:
        pid = connection.info.backend_pid
        for statement in statements:
            connection.execute(statement)
    gone(dsn, pid)


def gone(dsn: str, *pids: int) -> None:
    """Wait until sessions have left the server."""
    with _admin(dsn) as admin:
        while admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY (%s)", (list(pids),)).fetchone():
            pass
