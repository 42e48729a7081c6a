"""Redmine and MediaWiki, unmodified, each on one shared server behind ours: whatever they keep is one environment's.

The same checks on both. Each guard is taken away in the running server, and its check must fail; then it is put back.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.resources.web.behind.forward import BOUND_HEADER, UnixConnection
from statefork.engine.errors import DrainTimeout, EnvironmentRetired, StateforkError
from statefork.engine.settings import DrainPolicy
from tests.integration.hand_pipe import HandPipes
from tests.integration.postgres_kit import database, needs_postgres
from tests.integration.stack_kit import Site, Stage, Tracker, Wiki, is_uploaded, missing, picture, staged
from tests.integration.web_kit import left_to_do

pytestmark = [pytest.mark.anyio, pytest.mark.sites, needs_postgres]

SITES: tuple[Site, ...] = (Tracker(), Wiki())
REVOKE = DrainPolicy(deadline_s=0.2, then="revoke")
_numbers = itertools.count(1)


def of_site(site: Site) -> object:
    return pytest.param(site, id=site.name, marks=pytest.mark.skipif(bool(missing(site)), reason=missing(site)))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module", params=[of_site(site) for site in SITES])
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One server of each stack for all tests; each test has environments of its own."""
    async with staged(request.param, tmp_path_factory.mktemp(request.param.name)) as shared:
        yield shared


Person = tuple[Environment, httpx.AsyncClient]


@asynccontextmanager
async def people(stage: Stage, count: int = 2, *, logged_in: bool = True) -> AsyncIterator[list[Person]]:
    """New environments, and somebody in each."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            env = await stage.engine.create(f"e{next(_numbers)}")
            client = await stack.enter_async_context(stage.client(env))
            if logged_in:
                await stage.site.login(client)
            made.append((env, client))
        yield made
        for env, _ in made:
            with suppress(EnvironmentRetired):
                await env.retire()


async def use(stage: Stage, person: Person, mark: str) -> None:
    """Write under names that everybody uses, in every way that the site has, and read it back."""
    env, client = person
    site = stage.site
    path = await site.add(client, "Used-lamp", f"words of {mark}")
    assert f"words of {mark}" in (await client.get(path)).text
    assert site.texts(env, "Used-lamp") == [f"words of {mark}"]
    await site.set_banner(client, f"Banner {mark}")
    where = await site.upload(client, "lamp.png", picture(mark))
    assert is_uploaded(env, picture(mark))
    for _ in range(2):
        assert f"Banner {mark}" in (await client.get("/")).text
        assert await site.found(client, mark) == 1
        assert (await client.get(where)).content == picture(mark)


async def separate(stage: Stage) -> None:
    """Two environments are used at the same time, under equal titles."""
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use, stage, a, "alpha")
            tasks.start_soon(use, stage, b, "beta")
        for (_, client), mark, other in ((a, "alpha", "beta"), (b, "beta", "alpha")):
            assert await stage.site.found(client, other) == 0
            assert f"Banner {mark}" in (await client.get("/")).text
        for page in stage.site.pages:
            assert "alpha" not in (await b[1].get(page)).text


async def nothing_stays(stage: Stage) -> None:
    """A marker of A is on none of B's pages, and nowhere behind the server once A has ended."""
    parts = ("leakmarker", "7f3a")
    async with people(stage) as (a, b):
        await use(stage, a, "".join(parts))
        for page in stage.site.pages:
            await a[1].get(page)
            assert "".join(parts) not in (await b[1].get(page)).text
        await a[0].retire()
        for _ in range(2):
            async with anyio.create_task_group() as tasks:  # so that no thread stands where it answered A last
                for page in stage.site.pages:
                    tasks.start_soon(b[1].get, page)
            holders = (await stage.web.server.call("holders", first=parts[0], second=parts[1]))["holders"]
            if not holders:
                break
        assert not holders, holders


async def jobs(stage: Stage) -> None:
    """All jobs that requests queue run, for who queued them, and a snapshot comes after them."""
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.site.queue_jobs, a[1], "alphajobs")
            tasks.start_soon(stage.site.queue_jobs, b[1], "betajobs")
        await a[0].snapshot()
        await b[0].snapshot()
        done = stage.site.jobs_done(a[0], "alphajobs")
        assert done > 0
        assert stage.site.jobs_done(b[0], "betajobs") == done
        assert stage.site.jobs_done(a[0], "betajobs") == stage.site.jobs_done(b[0], "alphajobs") == 0
        counted = (await stage.web.server.call("stats"))["behind"].get("jobs", {})
        assert counted.get("queued") == counted.get("run")


async def work(stage: Stage) -> None:
    """What goes on after an answer is named by the drain, waited for, and the environment's own."""
    async with people(stage, logged_in=False) as (a, b):
        with closing(HandPipes(stage.directory)) as pipes:
            await stage.ask(a[1], "later", pipe=str(pipes["go"].path), text="told later")
            branch = stage.engine.kernel.branches(a[0].name)[stage.site.name]
            assert await left_to_do(stage.web, branch) == (stage.site.idle_work,)
            with pytest.raises(DrainTimeout, match=stage.site.idle_work):
                await a[0].snapshot(drain=DrainPolicy(deadline_s=0.1))
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(a[0].snapshot)
                    pipes["go"].write_line()
        assert stage.site.told_later(a[0]) == "told later"
        assert stage.site.told_later(b[0]) != "told later"


CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    check.__name__: check for check in (separate, nothing_stays, jobs, work)
}


async def test_interleaved_writes_under_equal_titles(stage: Stage) -> None:
    await separate(stage)


async def test_a_marker_of_one_environment_is_nowhere_once_it_has_ended(stage: Stage) -> None:
    await nothing_stays(stage)


async def test_as_many_jobs_run_as_were_queued_and_for_whom(stage: Stage) -> None:
    await jobs(stage)


async def test_work_after_an_answer_is_counted_and_bound(stage: Stage) -> None:
    await work(stage)


async def test_each_check_fails_without_its_guard(stage: Stage) -> None:
    """All of them on the one server: a guard that is taken away is missed by its check, and is put back."""
    unnoticed = []
    for guard, check in stage.site.guards.items():
        async with people(stage, 1, logged_in=False) as ((_, client),):
            await stage.ask(client, "without", guard=guard)
            try:
                await CHECKS[check](stage)
            except (AssertionError, ExceptionGroup, StateforkError):
                pass
            else:
                unnoticed.append(guard)
            finally:
                await stage.ask(client, "back")
    assert not unnoticed, f"taken away, and nobody noticed: {unnoticed}"


async def test_cookies_of_one_environment_mean_nothing_in_another_and_live_on_in_a_fork(stage: Stage) -> None:
    async with people(stage) as (a, b):
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in a[1].cookies.jar)
        async with stage.client(b[0]) as thief:
            thief.headers["Cookie"] = cookies
            assert not await stage.site.is_logged_in(thief)
        (child,) = await stage.engine.fork(a[0].name, names=[f"{a[0].name}-child"])
        async with stage.client(child) as heir:
            heir.headers["Cookie"] = cookies
            assert await stage.site.is_logged_in(heir)
            await stage.site.add(heir, "Lamp", "of the child")
        assert stage.site.texts(child, "Lamp") == ["of the child"]
        assert stage.site.texts(a[0], "Lamp") == []
        assert await stage.site.is_logged_in(a[1])
        await child.retire()


async def test_nothing_of_the_abandoned_future_after_a_rollback(stage: Stage) -> None:
    async with people(stage, 1) as ((env, client),):
        where = await stage.site.upload(client, "early.png", picture("early"))
        await stage.site.add(client, "Lamp", "words of the early days")
        saved = await env.snapshot()
        assert await stage.site.is_logged_in(client), "a snapshot disturbs nobody"
        await use(stage, (env, client), "abandoned")
        await env.restore(saved)
        async with stage.client(env) as again:
            again.cookies = client.cookies
            assert await stage.site.is_logged_in(again)
            assert "Banner abandoned" not in (await again.get("/")).text
            assert await stage.site.found(again, "abandoned") == 0
            assert await stage.site.found(again, "early") == 1
            assert (await again.get(where)).content == picture("early")
            for page in stage.site.pages:
                assert "abandoned" not in (await again.get(page)).text


async def test_code_without_an_environment_reaches_nothing(stage: Stage) -> None:
    async with people(stage, 1, logged_in=False) as ((_, client),):
        if isinstance(stage.site, Tracker):
            met = await stage.ask(client, "unbound")
            assert len(met) == 6
            assert set(met.values()) == {"Statefork::NoEnvironment"}
        (door,) = _doors(stage)
        for header in (None, "", "x", "e30=." + "0" * 64):
            connection = UnixConnection(door, timeout=10)
            with closing(connection):
                connection.request("GET", "/", headers={} if header is None else {BOUND_HEADER: header})
                assert connection.getresponse().status == 421


def _doors(stage: Stage) -> set[str]:
    """The sockets that the processes behind the server listen on for requests."""
    return {
        found.laddr
        for pid in stage.web.process_ids()
        for found in psutil.Process(pid).net_connections("unix")
        if found.laddr.endswith(("/puma.sock", "/nginx.sock"))
    }


async def test_connections_are_closed_for_a_cut_and_capped(stage: Stage) -> None:
    async with people(stage) as (a, b):
        branch = stage.engine.kernel.branches(a[0].name)[stage.site.name]
        await stage.web.quiesce(branch)
        bindings = {found["identity"]: found for found in (await stage.web.server.call("stats"))["bindings"]}
        held = next(found for name, found in bindings.items() if name.startswith(f"{a[0].name}/"))
        assert (held["gate"], held["connections"]) == ("held", 0)
        await stage.web.thaw(branch)
        assert await stage.site.is_logged_in(a[1])
        if isinstance(stage.site, Tracker):  # PHP keeps none between requests
            await stage.ask(a[1], "cap", most="1")
            assert await stage.site.is_logged_in(b[1])
            open_now = await stage.ask(b[1], "cap", most="64")
            assert open_now == {b[0].name: 1}, "idle connections of who was served longest ago go first"


async def test_a_request_that_does_not_end_is_cut_off_and_its_sibling_served(stage: Stage) -> None:
    async with people(stage, logged_in=False) as (a, b):
        async with anyio.create_task_group() as tasks:

            async def endless() -> None:
                with suppress(httpx.RemoteProtocolError):  # the gateway lets go of who asked
                    assert (await a[1].get("/checked/endless")).status_code >= 400

            tasks.start_soon(endless)
            branch = stage.engine.kernel.branches(a[0].name)[stage.site.name]
            with anyio.fail_after(20):
                while not await stage.web.pending(branch):
                    await anyio.lowlevel.checkpoint()
                await a[0].reset(drain=REVOKE)
        assert (await a[1].get("/")).status_code == 200
        assert (await b[1].get("/")).status_code == 200


@pytest.mark.parametrize("victim", ["server", "behind"])
async def test_a_server_that_dies_comes_back_with_its_bindings(stage: Stage, victim: str) -> None:
    async with people(stage) as (a, b):
        await stage.site.add(a[1], "Lamp", "kept")
        processes = [psutil.Process(pid) for pid in stage.web.process_ids()]
        behind = min(process.pid for process in processes if process.pid != stage.web.server.pid)
        os.kill(stage.web.server.pid if victim == "server" else behind, signal.SIGKILL)
        _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=20))
        assert not alive, "what was behind the server that died lives on"
        assert stage.site.texts(a[0], "Lamp") == ["kept"]
        assert await stage.site.is_logged_in(a[1])
        assert await stage.site.is_logged_in(b[1])


async def test_a_database_session_that_is_lost_is_told_as_lost(stage: Stage) -> None:
    """Not as the application tells it, which is a page like any other."""
    async with people(stage, 1) as ((_, client),):
        async with anyio.create_task_group() as tasks:

            async def lose() -> None:
                answer = await client.get("/checked/endless")
                assert answer.status_code == 502
                assert answer.json()["code"] == "upstream_failed"

            tasks.start_soon(lose)
            admin = database(stage.engine).backend.admin
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'"
            with anyio.fail_after(20):
                while not await anyio.to_thread.run_sync(admin.rows, ending):
                    await anyio.lowlevel.checkpoint()
        assert await stage.site.is_logged_in(client)
