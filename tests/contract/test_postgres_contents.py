"""The digest of a database and the differences between two: of what is in them, not of how it lies on disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statefork.adapters.resources.postgres.base import fill, live
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.catalog import objects
from statefork.adapters.resources.postgres.content import digest
from statefork.adapters.resources.postgres.diffing import changes
from statefork.adapters.resources.postgres.reading import steady
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.masks import Column
from statefork.engine.ports import Change
from tests.contract.postgres_contents_kit import OWNER, SAMPLE, connected, database, run


@pytest.fixture
def dsn(postgres: EmbeddedServer) -> Iterator[str]:
    with database(postgres, SAMPLE) as dsn:
        yield dsn


def digested(dsn: str) -> str:
    with connected(dsn) as connection:
        return digest(connection)


def differences(before: str, after: str) -> list[Change]:
    with connected(before) as old, connected(after) as new:
        return list(changes(old, new))


def rows_of(found: list[Change]) -> list[tuple[str, str, Any, Any]]:
    """Without the schema's."""
    return [(c.kind, c.name, c.before, c.after) for c in found if " " not in c.name.split("[")[0]]


DATA = (
    "UPDATE goods SET title = 'x' WHERE id = 1",
    "UPDATE goods SET picture = '\\x00' WHERE id = 1",
    "UPDATE goods SET facts = '{\"n\": 1.0}' WHERE id = 1",
    "INSERT INTO visits VALUES ('someone', 'glad')",
    "DELETE FROM scratch WHERE n = 1",
    "UPDATE years SET sum = 8",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 2, false)",
    "SELECT lo_put(4242, 3, 'z')",
    "SELECT lo_from_bytea(7, 'x')",
)
OBJECTS = (
    "CREATE TYPE size AS (w integer, h integer)",
    "ALTER TYPE mood ADD VALUE 'calm'",
    "ALTER DOMAIN price SET DEFAULT 1",
    "CREATE VIEW v AS SELECT 1 AS one",
    "CREATE OR REPLACE VIEW v AS SELECT 2 AS one",
    "CREATE OR REPLACE FUNCTION twice(n integer) RETURNS integer LANGUAGE sql AS 'SELECT n + n'",
    "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1'",
    "CREATE AGGREGATE total(integer) (SFUNC = int4pl, STYPE = integer)",
    "ALTER TABLE goods DISABLE TRIGGER keep",
    "DROP TRIGGER keep ON goods",
    "CREATE RULE nothing AS ON DELETE TO scratch DO INSTEAD NOTHING",
    "ALTER POLICY positive ON goods USING (id > 1)",
    "ALTER TABLE goods FORCE ROW LEVEL SECURITY",
    "COMMENT ON COLUMN goods.title IS 'its name'",
    "COMMENT ON LARGE OBJECT 4242 IS 'a picture'",
    "COMMENT ON SCHEMA public IS 'ours'",
    "CREATE EXTENSION citext",
    "COMMENT ON EXTENSION citext IS 'other'",
    "CREATE SCHEMA elsewhere",
    "CREATE TABLE elsewhere.goods (id integer)",
    "ALTER TABLE goods ADD COLUMN more integer",
    "ALTER TABLE goods ALTER COLUMN more SET DEFAULT 4",
    "ALTER TABLE goods ADD CHECK (more > 0)",
    "CREATE INDEX ON goods (more)",
    "CREATE STATISTICS s ON id, more FROM goods",
    "ALTER TABLE scratch SET LOGGED",
    "GRANT SELECT ON goods TO PUBLIC",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
    "CREATE COLLATION plain (LOCALE = 'C')",
    "CREATE OPERATOR @#@ (FUNCTION = int4pl, LEFTARG = integer, RIGHTARG = integer)",
    "CREATE CAST (price AS mood) WITH INOUT",
    "CREATE TEXT SEARCH CONFIGURATION ours (COPY = simple)",
    "ALTER TEXT SEARCH CONFIGURATION ours DROP MAPPING FOR word",
    "CREATE PUBLICATION told FOR TABLE goods",
    "ALTER PUBLICATION told ADD TABLE stock",
    "CREATE FOREIGN DATA WRAPPER w",
    "CREATE SERVER far FOREIGN DATA WRAPPER w",
    "ALTER SERVER far OPTIONS (ADD host 'x')",
    "CREATE FOREIGN TABLE there (n integer) SERVER far",
    "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION watch()",
    "ALTER EVENT TRIGGER e DISABLE",
)
UNSEEN = (
    "VACUUM FULL",
    "CLUSTER goods USING by_title",
    "ANALYZE",
    "REINDEX TABLE goods",
    "CREATE TABLE copied AS SELECT * FROM visits ORDER BY who",
    "TRUNCATE visits",
    "INSERT INTO visits SELECT * FROM copied ORDER BY who DESC",
    "DROP TABLE copied",
    "UPDATE goods SET title = title || 'x'",
    "UPDATE goods SET title = rtrim(title, 'x')",
    "ALTER TABLE goods OWNER TO " + OWNER,
    "ALTER FUNCTION twice OWNER TO " + OWNER,
    "SET timezone = 'Asia/Tokyo'",
    "CREATE TEMPORARY TABLE mine (n integer)",
)


def test_whatever_a_user_can_see_is_in_the_digest(dsn: str) -> None:
    run(dsn, "CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'")
    same = []
    with connected(dsn) as connection:
        seen = {digest(connection): "the beginning"}
        for statement in DATA:
            connection.execute(statement)
            if (now := digest(connection)) in seen:
                same.append(f"{statement}: as after {seen[now]}")
            seen[now] = statement
        catalogs = {schema(connection): "the beginning"}
        for statement in OBJECTS:
            connection.execute(statement)
            if (catalog := schema(connection)) in catalogs:
                same.append(f"{statement}: as after {catalogs[catalog]}")
            catalogs[catalog] = statement
        assert digest(connection) not in seen
    assert not same


def schema(connection: psycopg.Connection[Any]) -> tuple[tuple[str, str], ...]:
    """What the digest has of objects: without rows, so that there is time for many of them."""
    with steady(connection):
        return tuple(objects(connection).items())


def test_how_it_lies_on_disk_and_whose_it_is_is_not(dsn: str) -> None:
    with connected(dsn) as connection:
        before = digest(connection)
        for statement in UNSEEN:
            connection.execute(statement)
        assert digest(connection) == before
        connection.execute("SET datestyle = 'German'")
        connection.execute("SET search_path = pg_catalog")
        connection.execute("SET bytea_output = 'escape'")
        assert digest(connection) == before


def test_a_dump_that_was_restored_has_the_same_content(postgres: EmbeddedServer, dsn: str, tmp_path: Path) -> None:
    with database(postgres) as copy:
        fill(live(dsn), copy, OWNER, find_programs())
        run(copy, "REFRESH MATERIALIZED VIEW counted")
        assert differences(dsn, copy) == []
        assert digested(copy) == digested(dsn)


@pytest.mark.parametrize("hole", [5000, 3 << 20])
def test_a_large_object_with_holes_reads_as_one_without(postgres: EmbeddedServer, hole: int) -> None:
    pieces = "SELECT lo_create(1)", "SELECT lo_put(1, 0, 'a')", f"SELECT lo_put(1, {hole}, 'b')"
    with database(postgres, *pieces) as holed, database(postgres) as whole:
        data = b"a" + b"\0" * (hole - 1) + b"b"
        with connected(whole) as connection:
            connection.execute("SELECT lo_from_bytea(1, %s)", (data,))
        assert digested(holed) == digested(whole)


def test_differences_are_told_by_row_and_key(postgres: EmbeddedServer, dsn: str) -> None:
    with database(postgres, template=psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]) as after:  # type: ignore[arg-type]  # it has one
        assert differences(dsn, after) == []
        run(
            after,
            "UPDATE goods SET title = 'hat', cost = 3 WHERE id = 77",
            "UPDATE goods SET picture = repeat('z', 300)::bytea, facts = '{\"a\": [1, null]}' WHERE id = 9",
            "UPDATE goods SET sold = true WHERE id = 9",
            "DELETE FROM stock WHERE good = 60",
            "INSERT INTO stock VALUES ('shelf 0', 100, 'NaN')",
            "DELETE FROM visits WHERE ctid IN (SELECT ctid FROM visits WHERE who = 'someone' LIMIT 2)",
            "INSERT INTO visits VALUES ('another', NULL)",
            "SELECT setval('numbers', 9)",
            "SELECT lo_put(4242, 1, 'zz')",
        )
        found = differences(dsn, after)
        assert rows_of(found) == [
            (
                "changed",
                "goods[9]",
                {"picture": {"hex": "45c48cce2e2d7fbdea1afc51c7c6ad26"}, "facts": {"n": 9}, "sold": False},
                {
                    "picture": {
                        "bytes": 300,
                        "sha256": "7cf7dc7f99e7185a1536245f8e30ced7e1b1c85ad441552176678083a67411bd",
                    },
                    "facts": {"a": [1, None]},
                    "sold": True,
                },
            ),
            ("changed", "goods[77]", {"title": "good 77", "cost": "115.50"}, {"title": "hat", "cost": "3.00"}),
            ("removed", "stock[shelf 0, 60]", {"place": "shelf 0", "good": 60, "amount": 20.0}, None),
            ("added", "stock[shelf 0, 100]", None, {"place": "shelf 0", "good": 100, "amount": "NaN"}),
            ("added", "visits", None, {"who": "another", "mood": None}),
            ("removed", "visits", {"who": "someone", "mood": "glad"}, None),
            ("removed", "visits", {"who": "someone", "mood": "glad"}, None),
        ]
        others = {change.name: (change.before, change.after) for change in found if " " in change.name.split("[")[0]}
        assert others.pop("sequence numbers value") == ("1", "9")
        assert others.keys() == {"large object 4242"}


def test_differences_of_the_schema_are_told(postgres: EmbeddedServer, dsn: str) -> None:
    with database(postgres, template=psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]) as after:  # type: ignore[arg-type]  # it has one
        run(
            after,
            "ALTER TABLE goods ADD COLUMN more integer DEFAULT 4",
            "ALTER TABLE goods DROP COLUMN facts",
            "UPDATE goods SET title = 'hat', more = 5 WHERE id = 7",
            "DROP TABLE stock",
            "CREATE TABLE fresh (n integer)",
            "INSERT INTO fresh VALUES (1)",
            "CREATE INDEX fresh_n ON fresh (n)",
            "COMMENT ON TABLE goods IS NULL",
        )
        found = differences(dsn, after)
        told = {(change.kind, change.name) for change in found}
        assert {
            ("added", "column public.goods.more"),
            ("removed", "column public.goods.facts"),
            ("changed", "table public.goods"),
            ("removed", "table public.stock"),
            ("removed", "constraint public.stock.stock_pkey"),
            ("added", "table public.fresh"),
            ("added", "index public.fresh_n"),
            ("removed", "comment on table public.goods"),
            ("added", "fresh"),
            ("removed", "stock[shelf 1, 1]"),
        } <= told
        assert ("changed", "goods[7]", {"title": "good 7"}, {"title": "hat"}) in rows_of(found)


def test_a_key_of_another_type_makes_other_rows(postgres: EmbeddedServer) -> None:
    make = "CREATE TABLE t (id integer PRIMARY KEY)", "INSERT INTO t VALUES (9), (10)", "CREATE TABLE nothing ()"
    with database(postgres, *make) as before, database(postgres, *make) as after:
        run(after, "ALTER TABLE t ALTER COLUMN id TYPE bigint", "INSERT INTO nothing DEFAULT VALUES")
        assert rows_of(differences(before, after)) == [("added", "nothing", None, {})]
        run(after, "ALTER TABLE t ALTER COLUMN id TYPE text")
        assert [change[:2] for change in rows_of(differences(before, after))[1:]] == [
            ("removed", "t[9]"),
            ("removed", "t[10]"),
            ("added", "t[10]"),
            ("added", "t[9]"),
        ]


def test_long_values_are_cut_and_still_told_apart(postgres: EmbeddedServer) -> None:
    make = "CREATE TABLE t (id integer PRIMARY KEY, long text)", "INSERT INTO t VALUES (1, repeat('a', 100000))"
    with database(postgres, *make) as before, database(postgres, *make) as after:
        run(after, "UPDATE t SET long = repeat('a', 99999) || 'b'")
        (change,) = differences(before, after)
        assert isinstance(change.after, dict)
        assert change.after["long"] == "a" * 4000 + "… (100000 characters)"


def test_of_a_large_table_only_the_parts_that_differ_are_read(postgres: EmbeddedServer) -> None:
    make = (
        "CREATE TABLE t (id bigint PRIMARY KEY, filler text)",
        "INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, 20000) n",
    )
    with database(postgres, *make) as before, database(postgres, *make) as after:
        run(after, "UPDATE t SET filler = 'y' WHERE id IN (5, 15000)", "ANALYZE")
        pulses = 0

        def count() -> None:
            nonlocal pulses
            pulses += 1

        with connected(before) as old, connected(after) as new:
            assert [change.name for change in changes(old, new, count)] == ["t[5]", "t[15000]"]
        assert pulses < 20  # one for each hundred rows that were read


def give_up() -> None:
    raise psycopg.errors.QueryCanceled


def test_whoever_has_seen_enough_lets_go(postgres: EmbeddedServer, dsn: str) -> None:
    with database(postgres) as empty, connected(empty) as old, connected(dsn) as new:
        found = changes(old, new)
        assert len(list(islice(found, 3))) == 3
        found.close()
        old.execute("SELECT 1")
        assert new.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with pytest.raises(psycopg.errors.QueryCanceled):  # any exception will do
            digest(new, give_up)
        assert len(digest(new)) == 64


LEFT_OUT = (
    ("UPDATE goods SET cost = 7 WHERE id < 9", (Column("goods", "cost"),), True),
    ("UPDATE goods SET cost = 8 WHERE id < 9", (Column("public.goods", "cost"),), True),
    ("UPDATE goods SET cost = 9 WHERE id < 9", (Column("other.goods", "cost"), Column("stock", "cost")), False),
    ("UPDATE goods SET cost = 7, title = 'x' WHERE id < 9", (Column("goods", "cost"),), False),
    ("UPDATE stock SET place = 'x' || good WHERE good < 9", (Column("stock", "place"),), True),
    ("UPDATE stock SET place = 'x' || good, amount = 0 WHERE good < 9", (Column("stock", "place"),), False),
    ("UPDATE visits SET who = 'x', mood = 'sad'", (Column("visits", "who"), Column("visits", "mood")), True),
    (
        "DELETE FROM visits WHERE ctid = (SELECT min(ctid) FROM visits)",
        (Column("visits", "who"), Column("visits", "mood")),
        False,
    ),
)


def test_columns_that_are_left_out_hide_nothing_else(dsn: str) -> None:
    with connected(dsn) as connection:
        whole = digest(connection)
        assert digest(connection, without=frozenset({Column("nothing", "there")})) == whole
        for statement, columns, same in LEFT_OUT:
            without = frozenset(columns)
            before = digest(connection, without=without)
            connection.execute("BEGIN")
            connection.execute(statement)
            connection.execute("COMMIT")
            assert (digest(connection, without=without) == before) is same, statement
            assert digest(connection) != whole, statement
            whole = digest(connection)
