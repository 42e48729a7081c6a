"""What users of such systems complain of, tried on PostgreSQL under an engine: no application but this test's own."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import statefork
from statefork.adapters.interfaces.environment import Environment, Evaluation
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.engine.errors import ContractError, ResourceFailed
from tests.integration.postgres_kit import connected, database, needs_postgres, run

pytestmark = [pytest.mark.anyio, needs_postgres]

OWN = 'settings = { shared_buffers = "32MB", max_wal_size = "64MB", min_wal_size = "32MB" }'
SHARED = 'dsn_variable = "NOTES_SERVER"'
CONTRACT = f"""
[contract]
name = "ledger"

[resources.db]
adapter = "postgres"
base = "base.sql"
durability = "authoritative"
pool = 2
{OWN}

[resources.lite]
adapter = "sqlite"
base = "base.sqlite3"
durability = "authoritative"
"""
TABLES = """
CREATE TABLE account (id integer PRIMARY KEY, owner varchar(40) UNIQUE, balance decimal(12, 2), since timestamp);
INSERT INTO account VALUES (1, 'ann', 12.50, '2026-01-02 03:04:05'), (2, 'bob', 100, NULL);
CREATE TABLE entry (number integer PRIMARY KEY);
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    (tmp_path / "base.sql").write_text(TABLES)
    with closing(sqlite3.connect(tmp_path / "base.sqlite3")) as lite:
        lite.executescript(TABLES)
    (tmp_path / "ledger.toml").write_text(CONTRACT)
    return tmp_path / "ledger.toml"


@pytest.fixture
def on_shared_server(contract: Path, postgres_door: None) -> Path:
    contract.write_text(CONTRACT.replace(OWN, SHARED))
    return contract


async def digest(engine: Engine, env: Environment) -> str:
    """Of the published generation's database, computed anew."""
    return await database(engine).digest(env.capsule.head.manifest["db"].sealed)


async def test_forks_restores_and_resets(on_shared_server: Path, tmp_path: Path) -> None:
    async with open_engine(on_shared_server, state=tmp_path / "state") as engine:
        parent = await engine.create("parent")
        origin = await digest(engine, parent)
        run(parent, "UPDATE account SET balance = 1 WHERE id = 1")
        first, second = await engine.fork("parent", names=["first", "second"], n=2)
        await both_insert_the_same_key(first, second)
        await each_has_its_own_row(parent, first, second)
        await what_is_asked_is_the_same_on_both(first)
        await differences_are_rows(engine, first)
        await its_parent_may_go(engine, parent, first)
        await first.reset()
        assert await digest(engine, first) == origin, "case 3: nothing of what was done is left"
    assert statefork.audit(tmp_path / "state").clean


async def both_insert_the_same_key(first: Environment, second: Environment) -> None:
    """Case 1, with sessions that stay open over the fork of each other."""
    with connected(first) as one, connected(second) as other:
        for session in (one, other):
            session.execute("INSERT INTO account VALUES (3, 'cid', 3)")
        assert [session.execute("SELECT count(*) FROM account").fetchone() for session in (one, other)] == [(3,), (3,)]


async def each_has_its_own_row(parent: Environment, first: Environment, second: Environment) -> None:
    """Cases 8 and 9: what was there before the fork is there, what came after it is one's own."""
    for env in (first, second):
        run(env, "UPDATE account SET owner = %s WHERE id = 2", env.name)
    rows = {env.name: run(env, "SELECT owner, balance FROM account ORDER BY id") for env in (parent, first, second)}
    assert [each[0] for each in rows.values()] == [("ann", 1)] * 3
    assert [each[1][0] for each in rows.values()] == ["bob", "first", "second"]


async def what_is_asked_is_the_same_on_both(env: Environment) -> None:
    """An evaluator's query, its parameters and its rows do not depend on the database."""
    run(env, "DELETE FROM account WHERE id > 2")
    run(env, "UPDATE account SET balance = 12.50, owner = CASE id WHEN 1 THEN 'ann' ELSE 'bob' END WHERE id <= 2")
    run(env, "UPDATE account SET balance = 100 WHERE id = 2")

    async def check(evaluation: Evaluation) -> float:
        ask = "SELECT id, owner, balance, since, '?' AS mark FROM account WHERE owner <> ? AND id < ? ORDER BY id"
        there, here = (evaluation.query(name, ask, ("x", 9)) for name in ("db", "lite"))
        assert there == here
        assert there[0] == {"id": 1, "owner": "ann", "balance": 12.5, "since": "2026-01-02 03:04:05", "mark": "?"}
        for sql in ("DELETE FROM account", "COMMIT; DELETE FROM account", "SELECT nothing"):
            with pytest.raises(ResourceFailed, match="the query failed"):
                evaluation.query("db", sql)
        with pytest.raises(ContractError, match="it has db, lite"):
            evaluation.query("files", "SELECT 1")
        return 1.0

    assert await env.evaluate(check) == 1.0


async def differences_are_rows(engine: Engine, env: Environment) -> None:
    """What happened between two generations, as a person reads it."""
    before = await env.snapshot()
    run(env, "UPDATE account SET balance = 5 WHERE id = 2")
    run(env, "INSERT INTO account VALUES (4, 'dora', 4, NULL)")
    after = await env.snapshot()
    found = {change.name: change for change in (await engine.diff(before, after)).resources["db"].changes}
    assert (found["account[2]"].group, found["account[2]"].before) == ("account", {"balance": "100.00"})
    assert found["account[2]"].after == {"balance": "5.00"}
    assert (found["account[4]"].kind, found["account[4]"].after) == (
        "added",
        {"id": 4, "owner": "dora", "balance": "4.00", "since": None},
    )


async def its_parent_may_go(engine: Engine, parent: Environment, child: Environment) -> None:
    """Case 17: generations that others build on outlive their environment."""
    await parent.retire()
    await engine.gc()
    await child.restore(1)
    assert run(child, "SELECT owner FROM account ORDER BY id") == [("ann",), ("bob",)]


async def test_a_killed_server_keeps_what_was_committed(contract: Path, tmp_path: Path) -> None:
    """It is started again at the same address; an open transaction is lost, and versions and branches are whole."""
    import psycopg

    async with open_engine(contract, state=tmp_path / "state") as engine:
        env = await engine.create("env")
        second = await env.snapshot()
        run(env, "INSERT INTO entry VALUES (1)")
        with connected(env) as session:
            session.execute("BEGIN")
            session.execute("INSERT INTO entry VALUES (2)")
            os.kill(database(engine).process_ids()[0], signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT pg_sleep(60)")
        with anyio.fail_after(60):
            assert await answers(env) == [(1,)]
            await env.snapshot()
            await env.restore(second)
            assert await answers(env) == []
    assert statefork.audit(tmp_path / "state").clean


async def answers(env: Environment) -> list[tuple[Any, ...]]:
    """The entries, as soon as the server is there."""
    import psycopg

    while True:
        try:
            return await anyio.to_thread.run_sync(run, env, "SELECT number FROM entry")
        except psycopg.OperationalError:
            await anyio.lowlevel.checkpoint()
