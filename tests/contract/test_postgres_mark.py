"""What the server counted: never equal when something changed; equal when nothing did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import conninfo

from statefork.adapters.resources.postgres.content import digest
from statefork.adapters.resources.postgres.mark import mark, mark_of_shut, sequences_in, state_of_sequences
from statefork.adapters.resources.postgres.server import EmbeddedServer
from tests.contract.postgres_contents_kit import SAMPLE, connected, database, gone, run


@pytest.fixture
def dsn(postgres: EmbeddedServer) -> Iterator[str]:
    with database(postgres, SAMPLE, "VACUUM (FREEZE)") as dsn:
        yield dsn


def marked(dsn: str) -> str:
    with connected(dsn) as connection:
        found, pid = mark(connection), connection.info.backend_pid
    gone(dsn, pid)
    return found


CHANGES = (
    "INSERT INTO goods (id) VALUES (1001)",
    "UPDATE goods SET title = 'x' WHERE id = 1",
    "UPDATE goods SET title = title WHERE id = 1",
    "DELETE FROM stock WHERE good = 3",
    "TRUNCATE visits",
    "COPY visits (who) FROM PROGRAM 'echo someone'",
    "INSERT INTO scratch VALUES (3)",
    "TRUNCATE scratch",
    "INSERT INTO years VALUES (2026, 1)",
    "MERGE INTO scratch s USING (VALUES (9)) v (n) ON s.n = v.n WHEN NOT MATCHED THEN INSERT VALUES (v.n)",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 500)",
    "SELECT setval('numbers', 500, false)",
    "ALTER SEQUENCE numbers RESTART",
    "ALTER SEQUENCE numbers INCREMENT 2",
    "CREATE UNLOGGED SEQUENCE fleeting",
    "SELECT nextval('fleeting')",
    "SELECT lo_put(4242, 3, 'z')",
    "SELECT lo_unlink(4242)",
    "SELECT lo_create(4243)",
    "SELECT lo_put(4243, 0, 'z')",
    "CREATE TABLE fresh AS SELECT 1 AS n",
    "ALTER TABLE fresh ADD COLUMN m integer DEFAULT 4",
    "ALTER TABLE fresh ALTER COLUMN n SET DEFAULT 4",
    "ALTER TABLE fresh SET UNLOGGED",
    "DROP TABLE fresh",
    "CREATE VIEW v AS SELECT 1 AS one",
    "CREATE OR REPLACE VIEW v AS SELECT 2 AS one",
    "REFRESH MATERIALIZED VIEW counted",
    "CREATE FUNCTION g() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION g() RETURNS integer LANGUAGE sql AS 'SELECT 2'",
    "ALTER TYPE mood ADD VALUE 'calm'",
    "CREATE EXTENSION citext",
    "DROP EXTENSION citext",
    "ALTER TABLE goods DISABLE TRIGGER keep",
    "ALTER POLICY positive ON goods USING (id > 1)",
    "COMMENT ON TABLE goods IS 'other'",
    "ALTER TABLE goods RENAME TO wares",
    "GRANT SELECT ON wares TO PUBLIC",
    "CREATE INDEX ON wares (cost)",
    "DO $$ BEGIN INSERT INTO scratch VALUES (70); COMMIT; PERFORM 1; END $$",
    "ALTER EXTENSION hstore SET SCHEMA pg_catalog",
)
NOTHING = (
    "SELECT count(*) FROM goods",
    "SELECT * FROM goods FOR UPDATE",
    "SELECT last_value FROM numbers",
    "CHECKPOINT",
    "VACUUM",
    "VACUUM (FREEZE) goods",
    "SET work_mem = '1MB'",
    "LISTEN somewhere",
    "NOTIFY somewhere",
    "SELECT pg_advisory_lock(1)",
    "EXPLAIN ANALYZE SELECT * FROM stock",
    "BEGIN ;; LOCK goods ;; COMMIT",
    "PREPARE p AS SELECT 1",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM goods",
)


def test_every_change_gives_another_mark(dsn: str) -> None:
    seen = {marked(dsn): "the beginning"}
    same = []
    for statement in CHANGES:
        run(dsn, *statement.split(" ;; "))
        if (now := marked(dsn)) in seen:
            same.append(f"{statement}: as after {seen[now]}")
        seen[now] = statement
    assert not same


def test_reading_and_upkeep_change_nothing(dsn: str) -> None:
    before = marked(dsn)
    different = []
    for statement in NOTHING:
        run(dsn, *statement.split(" ;; "))
        if marked(dsn) != before:
            different.append(statement)
            before = marked(dsn)
    assert not different


def test_a_write_of_a_session_that_is_still_there_is_seen_at_once(dsn: str) -> None:
    """The session's counts wait for up to ten seconds; the mark does not."""
    with connected(dsn) as reader, connected(dsn) as writer:
        seen = {mark(reader)}
        for number in range(50):
            writer.execute("SELECT nextval('numbers')" if number % 2 else f"INSERT INTO scratch VALUES ({number + 10})")
            now = mark(reader)
            assert now not in seen
            seen.add(now)
        assert mark(reader) == now
        writer.execute("SELECT 1")
        pid = writer.info.backend_pid
        writer.close()
        gone(dsn, pid)
        settled = mark(reader)
        assert settled not in seen
        run(dsn, "SELECT 1")
        assert mark(reader) == settled


def test_a_prepared_transaction_counts_when_it_is_committed(dsn: str) -> None:
    run(dsn, "BEGIN", "INSERT INTO scratch VALUES (71)", "PREPARE TRANSACTION 'two'")
    before = marked(dsn)
    run(dsn, "COMMIT PREPARED 'two'")
    assert marked(dsn) != before


def test_a_shut_database_has_the_mark_that_it_had(dsn: str, postgres: EmbeddedServer) -> None:
    with connected(dsn) as inside:
        name, pid = inside.info.dbname, inside.info.backend_pid
        was, sequences = mark(inside), state_of_sequences(inside)
        assert sequences == sequences_in(was)
    gone(dsn, pid)
    with closing(connected(conninfo.make_conninfo("", **postgres.address()))) as outside:
        open_still = [mark_of_shut(outside, name, sequences) for _ in range(2)]
        outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        assert [mark_of_shut(outside, name, sequences) for _ in range(2)] == [was, was]
        unknown = [mark_of_shut(outside, name, "") for _ in range(2)]
        outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        with closing(connected(dsn)) as late:
            outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            inhabited = [mark_of_shut(outside, name, sequences) for _ in range(2)]
            late.execute("INSERT INTO scratch VALUES (77)")
            pid = late.info.backend_pid
        outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        gone(dsn, pid)
        outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        assert mark_of_shut(outside, name, sequences) != was
        outside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    assert len({was, *open_still, *unknown, *inhabited}) == 7


def test_our_own_writes_count(dsn: str) -> None:
    with connected(dsn) as connection:
        before = mark(connection)
        connection.execute("INSERT INTO scratch VALUES (10)")
        between = mark(connection)
        connection.execute("INSERT INTO scratch VALUES (11)")
        assert len({before, between, mark(connection)}) == 3


def test_while_a_statement_runs_no_two_marks_are_equal(dsn: str) -> None:
    with closing(connected(dsn)) as reader, closing(connected(dsn)) as worker:
        worker.pgconn.send_query(b"SELECT pg_sleep(60)")
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
        while not reader.execute(query, (worker.info.backend_pid,)).fetchone():
            pass
        assert mark(reader) != mark(reader)


def test_where_nothing_is_counted_no_two_marks_are_equal(dsn: str) -> None:
    with connected(dsn, options="-c track_counts=off") as connection:
        assert mark(connection) != mark(connection)


def test_counts_that_a_crash_took_are_not_taken_for_the_old_ones(dsn: str) -> None:
    before = marked(dsn)
    victim = connected(dsn)
    os.kill(victim.info.backend_pid, signal.SIGKILL)  # the server restarts, and forgets what it counted
    deadline = time.monotonic() + 30
    while True:
        try:
            assert marked(dsn) != before
            break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
    victim.close()


WRITES = (
    "INSERT INTO goods (id, title) SELECT max(id) + 1, 'new' FROM goods",
    "UPDATE goods SET sold = NOT sold WHERE id % 50 = 0",
    "DELETE FROM visits WHERE ctid IN (SELECT ctid FROM visits LIMIT 1)",
    "INSERT INTO scratch SELECT max(n) + 1 FROM scratch",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 7)",
    "SELECT lo_put(4242, 3, md5(random()::text)::bytea)",
    "TRUNCATE visits",
    "COMMENT ON TABLE goods IS 'one'",
    "COMMENT ON TABLE goods IS 'two'",
    "CREATE TABLE IF NOT EXISTS extra (n integer)",
    "DROP TABLE IF EXISTS extra",
    "ALTER TABLE goods ALTER COLUMN title SET DEFAULT 'a'",
    "ALTER TABLE goods ALTER COLUMN title DROP DEFAULT",
)
READS = ("SELECT count(*) FROM goods", "SELECT 1", "CHECKPOINT", "VACUUM", "SELECT 1 / 0", "LISTEN x")
Step = tuple[str, bool, bool]  # a statement, in a transaction that is given up, in the session that stays
steps = st.tuples(st.sampled_from(WRITES + READS), st.booleans(), st.booleans())


def perform(connection: psycopg.Connection[Any], statement: str, given_up: bool) -> None:
    given_up = given_up and statement not in ("CHECKPOINT", "VACUUM")
    try:
        for part in ("BEGIN", statement, "ROLLBACK") if given_up else (statement,):
            connection.execute(part)
    except psycopg.errors.DivisionByZero:
        if given_up:
            connection.execute("ROLLBACK")


@pytest.fixture(scope="module")
def shared_dsn(postgres: EmbeddedServer) -> Iterator[str]:
    with database(postgres, SAMPLE) as dsn:
        yield dsn


@settings(max_examples=10)
@given(st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=5))
def test_where_the_content_differs_the_marks_do(shared_dsn: str, rounds: list[list[Step]]) -> None:
    with connected(shared_dsn) as reader, connected(shared_dsn) as staying:
        was, before = mark(reader), digest(reader)
        for some in rounds:
            for statement, given_up, stays in some:
                if stays:
                    perform(staying, statement, given_up)
                else:
                    with connected(shared_dsn) as connection:
                        perform(connection, statement, given_up)
                        pid = connection.info.backend_pid
                    gone(shared_dsn, pid)
            now, after = mark(reader), digest(reader)
            assert now != was or after == before
            assert mark(reader) == now
            was, before = now, after
        pids = (reader.info.backend_pid, staying.info.backend_pid)
    gone(shared_dsn, *pids)
