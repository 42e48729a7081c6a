"""express-admin, unmodified, on one node behind the server: whatever it keeps is one environment's.

It is the canary of this stack: one client of the database for all, callbacks, and bodies of several parts, in each of
which the context of a request is lost without the hooks. Each guard is taken away in the running server, and its check
must fail.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.resources.web.behind.forward import BOUND_HEADER, UnixConnection
from statefork.engine.errors import DrainTimeout, EnvironmentRetired, ResourceBusy, StateforkError
from statefork.engine.settings import DrainPolicy
from tests.integration.hand_pipe import HandPipes
from tests.integration.node_kit import Admin, Stage, missing, staged
from tests.integration.postgres_kit import needs_postgres, run
from tests.integration.web_kit import left_to_do

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.sites,
    needs_postgres,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

REVOKE = DrainPolicy(deadline_s=0.2, then="revoke")
PAGES = ("/", "/notes", "/notes/1", "/notes/add")
LEFT = "thread what GET /checked/later left to do"
_numbers = itertools.count(1)
Person = tuple[Environment, Admin]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
async def stage(postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One server for all tests; each test has environments of its own."""
    from tests.contract.postgres_kit import dsn

    async with staged(tmp_path_factory.mktemp("admin"), dsn(postgres)) as shared:
        yield shared


@asynccontextmanager
async def people(stage: Stage, count: int = 2, *, logged_in: bool = True) -> AsyncIterator[list[Person]]:
    """New environments, and somebody in each."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            env = await stage.engine.create(f"e{next(_numbers)}")
            admin = Admin(await stack.enter_async_context(stage.client(env)))
            if logged_in:
                await admin.login()
            made.append((env, admin))
        yield made
        for env, _ in made:
            with suppress(EnvironmentRetired):
                await env.retire()


def bodies(env: Environment, title: str) -> list[str]:
    """Read without the server."""
    return [row[0] for row in run(env, "SELECT body FROM notes WHERE title = %s ORDER BY id", title)]


def picture(mark: str) -> str:
    """More than node reads at once: it comes after its request has begun."""
    return f"picture of {mark} " * 30_000


def uploaded(env: Environment) -> set[str]:
    """What the environment's uploads are."""
    return {path.read_text() for path in Path(str(env.bindings["media"].address["path"])).iterdir()}


async def use(person: Person, mark: str) -> None:
    """Write under names that everybody uses, and read it back."""
    env, admin = person
    for number in range(3):
        await admin.add("lamp", f"{mark} {number}", picture(mark).encode())
        assert f"{mark} {number}" in (await admin.client.get("/notes")).text
        assert await admin.find(mark) == number + 1
        remembered = await admin.client.get("/checked/remember", params={"text": f"{mark} {number}"})
        assert remembered.json() == [f"{mark} {earlier}" for earlier in range(number + 1)]
    assert bodies(env, "lamp") == [f"{mark} {number}" for number in range(3)]
    assert uploaded(env) == {picture(mark)}
    for (name,) in run(env, "SELECT picture FROM notes WHERE title = 'lamp'"):
        assert (await admin.client.get(f"/upload/{name}")).text == picture(mark)


async def separate(stage: Stage) -> None:
    """Two environments are used at the same time, under equal titles."""
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use, a, "alpha")
            tasks.start_soon(use, b, "beta")
        for page in PAGES:
            assert "alpha" not in (await b[1].client.get(page)).text


async def nothing_stays(stage: Stage) -> None:
    """A marker of A is on none of B's pages, and nowhere in node's heap once A has ended."""
    parts = ("leakmarker", "7f3a")
    async with people(stage) as (a, b):
        await use(a, "".join(parts))
        for page in PAGES:
            await a[1].client.get(page)
            assert "".join(parts) not in (await b[1].client.get(page)).text
        await a[0].retire()
        for page in PAGES:
            await b[1].client.get(page)
        found = (await stage.web.server.call("holders", first=parts[0], second=parts[1]))["holders"]
        assert not found, found


async def parts(stage: Stage) -> None:
    """The end of a body that came in parts is met in the context of its request."""
    async with people(stage, 1, logged_in=False) as ((env, admin),):
        whole = picture("parts").encode()
        answer = await admin.client.post("/checked/read", content=whole)
        assert answer.status_code == 200, answer.text
        assert bodies(env, "read") == [str(len(whole))]


async def work(stage: Stage) -> None:
    """What goes on after an answer is named by the drain, waited for, and the environment's own."""
    async with people(stage, logged_in=False) as (a, b):
        with closing(HandPipes(stage.directory)) as pipes:
            await stage.ask(a[1].client, "later", pipe=str(pipes["go"].path), word="later")
            branch = stage.engine.kernel.branches(a[0].name)["admin"]
            assert await left_to_do(stage.web, branch) == (LEFT,)
            with pytest.raises(DrainTimeout, match=LEFT):
                await a[0].snapshot(drain=DrainPolicy(deadline_s=0.1))
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(a[0].snapshot)
                    pipes["go"].write_line()
        assert bodies(a[0], "later") == ["later"]
        assert bodies(b[0], "later") == []


async def jobs(stage: Stage) -> None:
    """What timers do after an answer is done for who set them, and a snapshot comes after it."""
    async with people(stage, logged_in=False) as (a, b):
        async with anyio.create_task_group() as tasks:
            for person, word in ((a, "alpha"), (b, "beta")):

                async def queue(client: httpx.AsyncClient = person[1].client, word: str = word) -> None:
                    await stage.ask(client, "soon", word=word)

                tasks.start_soon(queue)
        for (env, _), word in ((a, "alpha"), (b, "beta")):
            saved = await env.snapshot()
            await env.restore(saved)
            assert sorted(bodies(env, "soon")) == [f"{word} {number}" for number in (1, 2, 3)]


async def closed(stage: Stage) -> None:
    """Connections are closed for a cut, and one in a transaction is named."""
    async with people(stage, 1) as ((env, admin),):
        branch = stage.engine.kernel.branches(env.name)["admin"]
        await stage.web.quiesce(branch)
        try:
            bindings = (await stage.web.server.call("stats"))["bindings"]
            held = next(found for found in bindings if found["identity"].startswith(f"{env.name}/"))
            assert (held["gate"], held["connections"]) == ("held", 0)
        finally:
            await stage.web.thaw(branch)
        assert await admin.is_logged_in()
        await stage.ask(admin.client, "transaction")
        with pytest.raises(ResourceBusy, match="a connection is in use"):
            await stage.web.quiesce(branch)
        await stage.ask(admin.client, "transaction", end="yes")


CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    check.__name__: check for check in (separate, nothing_stays, parts, work, jobs, closed)
}
GUARDS = {
    "connections": "separate",
    "callbacks": "separate",
    "emitters": "parts",
    "uploads": "separate",
    "work": "work",
    "closing": "closed",
    "courses": "nothing_stays",
    "release": "nothing_stays",
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_that_it_holds(stage: Stage, check: Callable[[Stage], Awaitable[None]]) -> None:
    await check(stage)


async def test_each_check_fails_without_its_guard(stage: Stage) -> None:
    unnoticed = []
    for guard, check in GUARDS.items():
        async with people(stage, 1, logged_in=False) as ((_, admin),):
            await stage.ask(admin.client, "without", guard=guard)
            try:
                with anyio.fail_after(10):
                    await CHECKS[check](stage)
            except (AssertionError, ExceptionGroup, StateforkError, TimeoutError, pytest.fail.Exception):
                pass
            else:
                unnoticed.append(guard)
            finally:
                await stage.ask(admin.client, "back")
    assert not unnoticed, f"taken away, and nobody noticed: {unnoticed}"


async def test_cookies_of_one_environment_mean_nothing_in_another_and_live_on_in_a_fork(stage: Stage) -> None:
    async with people(stage) as (a, b):
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in a[1].client.cookies.jar)
        async with stage.client(b[0]) as thief:
            thief.headers["Cookie"] = cookies
            assert not await Admin(thief).is_logged_in()
        (child,) = await stage.engine.fork(a[0].name, names=[f"{a[0].name}-child"])
        async with stage.client(child) as heir:
            heir.headers["Cookie"] = cookies
            assert await Admin(heir).is_logged_in()
        assert await a[1].is_logged_in()
        await child.retire()


async def test_nothing_of_the_abandoned_future_after_a_rollback(stage: Stage) -> None:
    async with people(stage, 1) as ((env, admin),):
        saved = await env.snapshot()
        assert await admin.is_logged_in(), "a snapshot disturbs nobody"
        await use((env, admin), "abandoned")
        await env.restore(saved)
        assert await admin.is_logged_in()
        assert await admin.find("abandoned") == 0
        for page in PAGES:
            assert "abandoned" not in (await admin.client.get(page)).text
        assert (await admin.client.get("/upload/lamp.png")).text != picture("abandoned")


async def test_code_without_an_environment_reaches_nothing(stage: Stage) -> None:
    async with people(stage, 1, logged_in=False) as ((_, admin),):
        met = await stage.ask(admin.client, "unbound")
        assert met == {"query": "NoEnvironment", "store": "NoEnvironment", "pool": "NoEnvironment"}
        doors = {
            found.laddr
            for pid in stage.web.process_ids()
            for found in psutil.Process(pid).net_connections("unix")
            if found.laddr.endswith("/node.sock")
        }
        for header in (None, "", "x", "e30." + "0" * 64):
            connection = UnixConnection(next(iter(doors)), timeout=10)
            with closing(connection):
                connection.request("GET", "/", headers={} if header is None else {BOUND_HEADER: header})
                assert connection.getresponse().status == 421


async def test_a_request_that_does_not_end_is_cut_off_and_its_sibling_served(stage: Stage) -> None:
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:

            async def endless() -> None:
                with suppress(httpx.RemoteProtocolError):  # the gateway lets go of who asked
                    assert (await a[1].client.get("/checked/endless")).status_code >= 400

            tasks.start_soon(endless)
            branch = stage.engine.kernel.branches(a[0].name)["admin"]
            with anyio.fail_after(20):
                while not await stage.web.pending(branch):
                    await anyio.lowlevel.checkpoint()
                await a[0].reset(drain=REVOKE)
        assert not await a[1].is_logged_in(), "its session was of the abandoned future"
        assert await b[1].is_logged_in()


@pytest.mark.parametrize("victim", ["server", "behind"])
async def test_a_server_that_dies_comes_back_with_its_bindings(stage: Stage, victim: str) -> None:
    async with people(stage) as (a, b):
        processes = [psutil.Process(pid) for pid in stage.web.process_ids()]
        behind = min(process.pid for process in processes if process.pid != stage.web.server.pid)
        os.kill(stage.web.server.pid if victim == "server" else behind, signal.SIGKILL)
        _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=20))
        assert not alive, "what was behind the server that died lives on"
        assert await a[1].is_logged_in()
        assert await b[1].is_logged_in()
