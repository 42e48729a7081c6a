"""The engine's own sessions while their server is started again: they wait, a bounded time, and then it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import anyio
import psutil
import psycopg
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.postgres import connecting
from statefork.adapters.resources.postgres import server as server_module
from statefork.adapters.resources.postgres.binaries import account_for
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import ResourceFailed, RuntimeDied
from tests.contract.postgres_kit import cleared, cluster, dsn

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
def mortal() -> Iterator[EmbeddedServer]:
    """A server of this module's own, which is not given up however often it dies."""
    with pytest.MonkeyPatch.context() as patch, cluster() as server:
        patch.setattr(server_module, "_RESTARTS_MAX", 1000)
        yield server


@pytest.fixture
def server(mortal: EmbeddedServer) -> Iterator[EmbeddedServer]:
    with cleared(mortal):
        yield mortal


def kill(server: EmbeddedServer) -> None:
    """The server's own process; return when those who worked for it are gone. It is started again where it was."""
    main, *workers = server.process_ids()
    os.kill(main, signal.SIGKILL)
    until = time.monotonic() + 20
    while any(map(works, workers)):
        assert time.monotonic() < until
        time.sleep(0.001)


def works(pid: int) -> bool:
    """Whether there is a process that has not ended, collected by whoever inherited it or not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_restart_before_each_step_of_a_cut_loses_nothing(one: Driver, server: EmbeddedServer) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    resource = one.resource
    kill(server)
    await resource.quiesce(branch)
    kill(server)
    mark = await resource.write_mark(branch)
    assert await resource.write_mark(branch) == mark
    kill(server)
    sealed = await resource.seal(branch)
    assert await resource.write_mark(branch) != mark, "nobody can tell what happened meanwhile"
    kill(server)
    await resource.thaw(branch)
    await one.write(binding, "key", "more")
    kill(server)
    other, its = await one.open(sealed)
    assert (await one.read(its, "key"), await one.read(binding, "key")) == ("value", "more")
    kill(server)
    await one.close(other, its)
    await one.close(branch, binding)


async def test_a_server_that_dies_while_it_copies_leaves_the_branch_open(
    one: Driver, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    cloner = one.resource.backend.cloner  # type: ignore[attr-defined]  # ours
    copy, died = cloner.copy, []

    def dying(*arguments: Any, **keywords: Any) -> None:
        if not died:
            died.append(arguments)
            with psycopg.connect(dsn(server), autocommit=True) as connection:
                kill(server)
                connection.execute("SELECT pg_sleep(60)")
        copy(*arguments, **keywords)

    monkeypatch.setattr(cloner, "copy", dying)
    await one.resource.quiesce(branch)
    with pytest.raises(psycopg.OperationalError):
        await one.resource.seal(branch)
    await one.resource.thaw(branch)
    assert await one.read(binding, "key") == "value", "the application gets in again"
    assert await one.seen(await one.cut(branch), "key") == "value"


async def test_a_server_that_stays_away_is_told_after_a_bounded_time(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Admin("db", {**server.address(), "host": "127.0.0.1", "port": 1})
    for seconds in (0.3, 3600):  # the second does not wait again
        monkeypatch.setattr(connecting, "COMES_BACK_S_MAX", seconds)
        with pytest.raises(RuntimeDied, match=rf"(?s)does not answer: .*did not come back within {seconds} s"):
            await anyio.to_thread.run_sync(nobody.rows, "SELECT 1")

    def given_up() -> None:
        raise RuntimeDied("db: it died 6 times in a row")

    with pytest.raises(RuntimeDied, match="6 times"):
        Admin("db", {**server.address(), "host": "127.0.0.1", "port": 1}, given_up).rows("SELECT 1")
    admin = Admin("db", server.address())
    with pytest.raises(ResourceFailed, match="nothing_of_this_name"):
        admin.run("DROP DATABASE nothing_of_this_name", again=True)  # an answer, and no reason to ask again
    admin.close()


async def test_what_may_not_be_done_twice_is_not(server: EmbeddedServer) -> None:
    admin = Admin("db", server.address())
    with admin.connection():
        pass
    kill(server)
    admin.run("CREATE ROLE once")  # its idle connection was lost before, and that is seen before it is used
    assert admin.rows("SELECT count(*) FROM pg_roles WHERE rolname = 'once'") == [(1,)]
    with admin.connection() as doomed:
        kill(server)
        with pytest.raises(psycopg.OperationalError):
            doomed.execute("SELECT pg_sleep(60)")
    assert admin.rows("SELECT 1") == [(1,)]
    admin.close()


def test_a_database_that_is_closed_is_no_dead_server(server: EmbeddedServer) -> None:
    admin = Admin("db", server.address())
    admin.run("CREATE DATABASE closed ALLOW_CONNECTIONS false")
    with pytest.raises(ResourceFailed, match="not currently accepting connections") as caught:
        admin.connect("closed")
    assert not isinstance(caught.value, RuntimeDied)
    admin.close()


def test_the_locks_of_a_server_that_nobody_collected_bar_no_start(server: EmbeddedServer) -> None:
    account = account_for(server.data)
    dead = subprocess.Popen(["true"], **({"user": account.uid} if account else {}))
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # a zombie, of whose like a killed server is one
    with server.paused():
        run = server.data.with_name("run")
        assert run.is_dir()
        (run / ".s.PGSQL.5432.lock").write_text(f"{dead.pid}\n{server.data}\n0\n5432\n{run}\n")
    dead.wait()
    with psycopg.connect(dsn(server)):
        pass
