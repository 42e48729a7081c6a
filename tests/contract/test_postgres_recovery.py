"""Killed engines, killed backends, killed servers: what they leave is found, and what was sealed is there."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import psycopg
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.postgres import PostgresResource
from statefork.adapters.resources.postgres.leftovers import processes_in
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import NotReady, ResourceBusy, ResourceFailed
from statefork.engine.runtimes import reap_leftovers
from statefork.journal.values import Branch, Sealed
from tests.contract.postgres_kit import bench_on, dsn, run, setup_at

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def bench_options() -> dict[str, Any]:
    return {"pool": 1}


def names_on(server: EmbeddedServer) -> set[str]:
    with psycopg.connect(dsn(server)) as connection:
        query = "SELECT datname FROM pg_database UNION ALL SELECT rolname FROM pg_roles"
        return {name for (name,) in connection.execute(query) if name.startswith("sf_")}


VICTIM = """
import sys, tempfile
from pathlib import Path
import anyio
from statefork.adapters.resources.conformance import Driver
from tests.contract.postgres_kit import bench_on, setup_at
from statefork.adapters.resources.postgres.server import EmbeddedServer

async def main():
    place = Path(sys.argv[1])
    driver = Driver(bench_on(EmbeddedServer(setup_at(place / "state", journal="journal-one")), place, pool=2))
    base = await driver.base()
    branch, binding = await driver.open(base)
    await driver.write(binding, "key", "sealed")
    await driver.cut(branch)
    await driver.write(binding, "key", "lost")
    driver.resource.backend.workshop.settle()
    print("ready", flush=True)
    sys.stdin.read()

anyio.run(main, backend="trio")
"""


def test_what_a_killed_engine_left_is_found_by_the_next() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "long" * 20)  # no socket has room for such a path: it is reached by the loopback address
        place.mkdir()
        server = EmbeddedServer(setup_at(place / "state", journal="journal-one"))
        command = [sys.executable, "-c", VICTIM, str(place)]
        with subprocess.Popen(command, stdout=-1, stdin=-1, cwd=Path(__file__).resolve().parents[2]) as victim:
            assert victim.stdout is not None
            try:
                assert victim.stdout.readline() == b"ready\n"
                postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
            finally:
                victim.kill()
        psutil.wait_procs([postmaster], 10)  # the tether ends it
        assert not list(processes_in(server.data))
        (server.data / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data}\n")  # stale, of a pid that lives
        reap_leftovers(place / "state", "journal-one")
        try:
            anyio.run(look_after_the_kill, server, place, backend="trio")
        finally:
            server.release()


async def look_after_the_kill(server: EmbeddedServer, place: Path) -> None:
    driver = Driver(bench_on(server, place))
    await driver.resource.start()
    branch, base, sealed = sorted(await driver.handles(), key=lambda handle: handle.__class__.__name__)
    assert isinstance(branch, Branch)
    assert isinstance(base, Sealed)
    assert isinstance(sealed, Sealed)
    kept = {str(handle.data["database"]) for handle in (branch, base, sealed)}
    assert {name for name in names_on(server) if not name.endswith("_app")} == kept  # the pool is gone
    await driver.resource.discard(branch)
    seen = {await driver.seen(version, "key") for version in (base, sealed)}
    assert seen == {None, "sealed"}
    pids = driver.resource.process_ids()  # type: ignore[attr-defined]  # ours
    assert len(pids) > 1
    await driver.resource.stop()
    assert not any(map(psutil.pid_exists, pids))
    assert not list((place / "state" / "runtimes").glob("*.json"))


async def test_a_server_that_dies_comes_again_at_the_same_address(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    await one.write(binding, "key", "value")
    mark = await one.resource.write_mark(branch)
    sealed = await one.cut(branch)
    os.kill(server.process_ids()[0], signal.SIGKILL)
    with anyio.fail_after(30):
        while True:
            try:
                await one.resource.probe(binding)
                break
            except NotReady:
                await anyio.sleep(0.01)
    assert await one.resource.write_mark(branch) != mark  # what it counted is lost, so it may have been written
    assert await one.seen(sealed, "key") == "value"
    await one.write(binding, "key", "more")
    assert await one.seen(await one.cut(branch), "key") == "more"


def half_made(server: EmbeddedServer, source: str) -> None:
    """Kill the backend that copies a database, in the middle; the server has begun to recover when this returns."""
    base = server.data / "base"
    before = {path.name for path in base.iterdir()}
    with connected(server) as witness, psycopg.connect(dsn(server), autocommit=True) as connection:
        pid = connection.info.backend_pid

        def copy() -> None:
            with contextlib.suppress(psycopg.Error):
                connection.execute(f'CREATE DATABASE half TEMPLATE "{source}" STRATEGY FILE_COPY')

        thread = threading.Thread(target=copy)
        thread.start()
        while thread.is_alive():
            if {path.name for path in base.iterdir()} - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    assert select.select([witness], [], [], 30)[0], "the server ends every session when it recovers"
                break
        thread.join()


def connected(server: EmbeddedServer) -> psycopg.Connection[Any]:
    """A connection, as soon as the server that recovers gives one."""
    for _ in range(2000):
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(dsn(server), autocommit=True)
        threading.Event().wait(0.01)
    raise AssertionError("the server did not come back")


def orphans(server: EmbeddedServer) -> set[str]:
    with connected(server) as connection:
        known = {str(oid) for (oid,) in connection.execute("SELECT oid FROM pg_database")}
    return {path.name for path in (server.data / "base").iterdir() if path.name.isdecimal()} - known


async def test_a_killed_backends_directory_is_removed(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    await one.write(binding, "key", "value")
    one.resource.backend.workshop.settle()  # type: ignore[attr-defined]  # ours
    for _ in range(5):
        await anyio.to_thread.run_sync(half_made, server, str(base.data["database"]))
        if await anyio.to_thread.run_sync(orphans, server):
            break
        with connected(server) as connection:
            connection.execute("DROP DATABASE IF EXISTS half")
    else:
        pytest.fail("no kill came in the middle of a copy")
    assert branch in await one.handles()
    assert not orphans(server)
    assert await one.read(binding, "key") == "value"
    assert await one.seen(await one.cut(branch), "key") == "value"


async def test_databases_whose_removal_was_interrupted_are_removed(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    await one.resource.unbind(binding)
    name = str(branch.data["database"])
    with connected(server) as connection:
        connection.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = %s", (name,))
    assert branch in await one.handles()
    assert name not in names_on(server)
    with pytest.raises(ResourceFailed):
        await one.resource.write_mark(branch)
    await one.resource.discard(branch)
    assert await one.handles() == [base]


async def test_a_prepared_transaction_is_named_and_does_not_outlive_its_branch(
    one: Driver, server: EmbeddedServer
) -> None:
    branch, binding = await one.open(await one.base())
    run(binding, "BEGIN", "INSERT INTO log VALUES ('prepared')", "PREPARE TRANSACTION 'half'")
    with pytest.raises(ResourceBusy, match="prepared transaction 'half'"):
        await one.resource.quiesce(branch)
    await one.close(branch, binding)
    one.resource.backend.workshop.settle()  # type: ignore[attr-defined]  # ours
    assert str(branch.data["database"]) not in names_on(server)


async def test_the_pool_of_a_killed_engine_is_replaced(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    first = one.resource
    assert isinstance(first, PostgresResource)
    first.backend.workshop.settle()
    pooled = {name for name in names_on(server) if name not in (base.data["database"], first.backend.names.owner)}
    assert len(pooled) == 1
    two = Driver(one.bench)  # nothing was stopped
    await two.resource.start()
    assert not pooled & names_on(server)
    await two.base()
    branch, binding = await two.open(base)
    await two.write(binding, "key", "value")
    await two.close(branch, binding)
    await two.resource.stop()
    left = names_on(server)
    assert left == {base.data["database"], first.backend.names.owner}
