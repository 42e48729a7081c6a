"""PostgreSQL in a store that is full to the last byte: told as that, nothing is lost, with more room it goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.interfaces.store.keeping import mount_by_hand, resize
from statefork.adapters.interfaces.store.kinds import KINDS
from statefork.adapters.interfaces.store.making import fault
from statefork.adapters.interfaces.store.mounting import unmount
from statefork.adapters.interfaces.store.sizes import MIB
from statefork.engine.errors import TransitionAborted
from tests.contract.postgres_kit import cluster
from tests.contract.store_kit import filled, make_store, nothing_is_left
from tests.integration.postgres_kit import database, needs_postgres, run

pytestmark = [pytest.mark.anyio, pytest.mark.root, needs_postgres]

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "postgres"
base = "base.sql"
pool = 0
settings = { shared_buffers = "16MB", max_wal_size = "32MB", min_wal_size = "32MB", max_connections = "60" }
"""
TABLE = "CREATE TABLE note (number integer PRIMARY KEY, text text);"
SIZE = 400 * MIB
FULL = r"(?s)the disk of the database server is full.*statefork store resize.*lost. env@2 serves on"
TAIL = [(1, "kept"), (2, "tail")]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(autouse=True)
def possible() -> None:
    if why := fault(KINDS["xfs"]):
        pytest.skip(f"no store can be made here: {why}")


def nowhere(fraction: float, text: str) -> None:
    """Nobody waits for progress."""


def rows(env: Any) -> list[tuple[Any, ...]]:
    return run(env, "SELECT number, text FROM note WHERE number < 10 ORDER BY number")


async def test_a_full_store_is_told_serves_on_and_goes_on_with_more_room(tmp_path: Path) -> None:
    (tmp_path / "base.sql").write_text(TABLE)
    (tmp_path / "notes.toml").write_text(CONTRACT)
    place = make_store(tmp_path / "state", size_bytes=SIZE, limit_bytes=SIZE)
    async with open_engine(tmp_path / "notes.toml", state=tmp_path / "state") as engine:
        env = await engine.create("env")
        run(env, "INSERT INTO note VALUES (1, 'kept')")
        await env.snapshot()
        run(env, "INSERT INTO note VALUES (2, 'tail')")
        with filled(place.mounted):
            with pytest.raises(psycopg.errors.DiskFull):
                run(env, "INSERT INTO note SELECT n, repeat('x', 2000) FROM generate_series(10, 9999) n")
            with pytest.raises(TransitionAborted, match=FULL):
                await env.snapshot()
            assert rows(env) == TAIL
            with pytest.raises(TransitionAborted, match=FULL):
                await env.restore("env@1")
            await the_server_dies(engine)
            with pytest.raises(TransitionAborted, match=FULL):
                await env.snapshot()
            assert rows(env) == TAIL, "it found the room that was set aside for it"
            await anyio.to_thread.run_sync(resize, tmp_path / "state", SIZE + 128 * MIB, None, nowhere)
            await env.snapshot()
        await env.restore("env@2")
        assert rows(env) == TAIL[:1]
        await env.restore("env@3")
        assert rows(env) == TAIL


def test_a_server_holds_nobody_elses_store(tmp_path: Path) -> None:
    """It sees other mounts than we do: those that were there when it was started must not live on with it."""
    place = make_store(tmp_path / "a state")
    mount_by_hand(place.state)
    with cluster():
        assert unmount(place)
        assert nothing_is_left(place)


async def the_server_dies(engine: Engine) -> None:
    """Nor can it be started: it could not even write its lock file."""
    os.kill(database(engine).process_ids()[0], signal.SIGKILL)
