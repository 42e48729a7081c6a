"""Who keeps a database from being cut, each by name; and who may go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from statefork.adapters.resources.postgres import holders as holders_module
from statefork.adapters.resources.postgres.holders import holders, idle_sessions, survey, without_literals
from statefork.adapters.resources.postgres.server import EmbeddedServer
from tests.contract.postgres_contents_kit import connected, database, gone

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def dsn(postgres: EmbeddedServer) -> Iterator[str]:
    with database(postgres) as dsn:
        yield dsn


@pytest.fixture
def engine(dsn: str) -> Iterator[Connection]:
    with closing(connected(dsn)) as connection:
        pid = connection.info.backend_pid
        yield connection
    gone(dsn, pid)


@pytest.fixture
def app(dsn: str) -> Iterator[Connection]:
    """A session of the application's pool, at rest."""
    with closing(connected(dsn, application_name="shop")) as connection:
        pid = connection.info.backend_pid
        yield connection
    gone(dsn, pid)


HOLDING = (
    (("BEGIN", "SELECT 'secret'"), "transaction", "an open transaction"),
    (("BEGIN", "SELECT 1 / 0"), "transaction", "an open transaction"),
    (("SELECT pg_advisory_lock(8589934593)",), "advisory lock", "advisory lock 8589934593"),
    (("SELECT pg_advisory_lock_shared(3, 4)",), "advisory lock", "advisory lock (3, 4)"),
    (("CREATE TEMPORARY TABLE basket (n integer)", "SELECT 1"), "temporary table", "temporary table basket"),
    (("LISTEN orders", "SELECT 1"), "listen", "LISTEN"),
    (("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "FETCH c"), "held cursor", "a cursor WITH HOLD"),
)


@pytest.mark.parametrize(
    ("statements", "kind", "what"), HOLDING, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_holder_is_named(
    engine: Connection, app: Connection, statements: tuple[str, ...], kind: str, what: str
) -> None:
    for statement in statements:
        try:
            app.execute(statement)
        except psycopg.errors.DivisionByZero:
            continue
    (holder,) = holders(engine)
    assert (holder.kind, holder.what) == (kind, what)
    assert holder.session is not None
    assert holder.session.pid == app.info.backend_pid
    assert str(holder).startswith(f"{what} of shop (pid {app.info.backend_pid}, local), idle")
    assert "secret" not in str(holder)
    assert idle_sessions(engine) == ()


def test_who_holds_nothing_may_go(engine: Connection, app: Connection) -> None:
    app.execute("LISTEN orders")
    app.execute("UNLISTEN *")
    app.execute("CREATE TEMPORARY TABLE basket (n serial)")
    app.execute("DROP TABLE basket")
    app.execute("SELECT pg_advisory_lock(1)")
    app.execute("SELECT pg_advisory_unlock_all()")
    app.execute("NOTIFY orders")
    found = survey(engine)
    assert found.holders == ()
    assert [session.pid for session in found.idle] == [app.info.backend_pid]
    assert found.listeners_seen


def test_of_many_sessions_those_that_listen_are_found(dsn: str, engine: Connection) -> None:
    sessions = [connected(dsn) for _ in range(12)]
    pids = [session.info.backend_pid for session in sessions]
    try:
        for number, session in enumerate(sessions):
            if number % 3 == 0:
                session.execute("LISTEN orders")
            session.execute("SELECT 1")
        for _ in range(5):
            found = {holder.session.pid for holder in holders(engine) if holder.session}
            assert found == set(pids[::3])
        assert len(idle_sessions(engine)) == 8
    finally:
        for session in sessions:
            session.close()
        gone(dsn, *pids)


def test_where_listening_is_not_seen_the_last_statement_tells(
    engine: Connection, app: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders_module, "listening", lambda connection, pids: None)
    app.execute("LISTEN orders")
    found = survey(engine)
    assert [holder.kind for holder in found.holders] == ["listen"]
    assert not found.listeners_seen


def test_a_prepared_transaction_has_no_session(dsn: str, engine: Connection) -> None:
    with connected(dsn) as app:
        app.execute("CREATE TABLE t (n integer)")
        app.execute("BEGIN")
        app.execute("INSERT INTO t VALUES (1)")
        app.execute("PREPARE TRANSACTION 'half done'")
        pid = app.info.backend_pid
    gone(dsn, pid)
    (holder,) = holders(engine)
    assert holder.kind == "prepared transaction"
    assert "'half done'" in str(holder)
    engine.execute("ROLLBACK PREPARED 'half done'")
    assert holders(engine) == ()


def test_other_databases_are_nobody_s_business(postgres: EmbeddedServer, engine: Connection) -> None:
    with database(postgres) as other, closing(connected(other)) as neighbour:
        neighbour.execute("LISTEN orders")
        neighbour.execute("SELECT pg_advisory_lock(1)")
        neighbour.execute("CREATE TEMPORARY TABLE basket (n integer)")
        assert survey(engine).holders == ()
        assert survey(engine).idle == ()


def test_an_activity_that_is_not_shown_counts(dsn: str, engine: Connection) -> None:
    with closing(connected(dsn, options="-c track_activities=off")) as app:
        pid = app.info.backend_pid
        app.execute("SELECT 1")
        (holder,) = holders(engine)
        assert holder.kind == "transaction"
        assert "can't be seen" in str(holder)
    gone(dsn, pid)


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SELECT * FROM t WHERE a = 'secret' AND b2 = 12.5", "SELECT * FROM t WHERE a = ? AND b2 = ?"),
        ("SELECT 'it''s', E'a\\'b', $$x$$, $q$ ' $q$, $1", "SELECT ?, ?, ?, ?, $1"),
        ('SELECT "a\'b", "12" -- password', 'SELECT "a\'b", "12"'),
        ("/* key */ SELECT\n  1", "SELECT ?"),
        ("SELECT 'cut off", "SELECT ?"),
        ('SELECT 1 AS "\x1b]0;title\x07\x9b"', 'SELECT ? AS "?]0;title??"'),
        ("INSERT INTO t VALUES (" + "1, " * 100, "INSERT INTO t VALUES (" + "?, " * 32 + "?,…"),
    ],
)
def test_literals_are_not_shown(statement: str, shown: str) -> None:
    assert without_literals(statement) == shown
