"""A long history over PostgreSQL: its last generation leaves what the first ones did, and each is still there."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

import statefork
from statefork.adapters.interfaces.python import Engine, open_engine
from tests.integration.postgres_kit import database, needs_postgres, run

pytestmark = [pytest.mark.anyio, needs_postgres]

CONTRACT = """
[contract]
name = "entries"
[resources.db]
adapter = "postgres"
base = "base.sql"
pool = 1
settings = { shared_buffers = "32MB", max_wal_size = "64MB", min_wal_size = "32MB" }
"""
SNAPSHOTS = 80
EARLY = 5
BYTES_PER_GENERATION_MAX = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def open_now(engine: Engine) -> dict[str, int]:
    """What an engine and its server have open, besides the few connections that are kept for the next who needs one."""
    found = database(engine)
    found.backend.workshop.settle()
    found.backend.admin.close()
    kinds = "SELECT (SELECT count(*) FROM pg_stat_activity), (SELECT count(*) FROM pg_roles), count(*) FROM pg_database"
    sessions, roles, databases = found.backend.admin.rows(kinds)[0]
    return {
        "files": psutil.Process().num_fds(),
        "sessions": sessions,
        "roles": roles,
        "databases": databases - engine.kernel.world.capsule("env").generation,
    }


async def test_the_last_of_many_snapshots_leaves_as_much_behind_as_the_fifth(xfs_place: Path) -> None:
    (xfs_place / "base.sql").write_text("CREATE TABLE entry (number integer PRIMARY KEY);")
    (xfs_place / "entries.toml").write_text(CONTRACT)
    async with open_engine(xfs_place / "entries.toml", state=xfs_place / "state") as engine:
        env = await engine.create("env")
        assert database(engine).strategy().name == "clone"
        left: dict[int, dict[str, int]] = {}
        free: dict[int, int] = {}
        for number in range(1, SNAPSHOTS + 1):
            run(env, "INSERT INTO entry VALUES (%s)", number)
            await env.snapshot()
            if number in (EARLY, SNAPSHOTS):
                left[number] = open_now(engine)
                free[number] = os.statvfs(xfs_place).f_bfree * os.statvfs(xfs_place).f_frsize
        assert left[SNAPSHOTS] == left[EARLY]
        assert free[EARLY] - free[SNAPSHOTS] <= BYTES_PER_GENERATION_MAX * (SNAPSHOTS - EARLY)
        (child,) = await engine.fork(f"env@{EARLY + 1}", n=1)  # of the middle of what others are built on
        await env.retire()
        await engine.gc()
        assert run(child, "SELECT max(number), count(*) FROM entry") == [(EARLY, EARLY)]
        await child.restore(f"env@{SNAPSHOTS + 1}")
        assert run(child, "SELECT max(number), count(*) FROM entry") == [(SNAPSHOTS, SNAPSHOTS)]
    report = statefork.audit(xfs_place / "state")
    assert report.clean, report
