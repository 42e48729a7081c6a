"""A Flask and a Starlette application on one shared server each: whatever they keep is one environment's.

The same checks on both. Each guard is taken away in the running server, and its check must fail; then it is put back.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import open_engine
from statefork.engine.errors import DrainTimeout, EnvironmentRetired, ResourceFailed, StateforkError, TransitionAborted
from statefork.engine.settings import DrainPolicy
from statefork.engine.tickets import CONDITIONS_HEADER, TICKET_HEADER, sign, tell_conditions
from tests.integration.hand_pipe import HandPipes
from tests.integration.postgres_kit import needs_postgres
from tests.integration.python_kit import (
    SITES,
    Board,
    FlaskBoard,
    Stage,
    StarletteBoard,
    knows_statefork,
    staged,
    write_contract,
)
from tests.integration.web_kit import left_to_do

pytestmark = pytest.mark.anyio

BOARDS = [
    pytest.param(FlaskBoard(), id="flask"),
    pytest.param(StarletteBoard(), id="starlette", marks=needs_postgres),
]
REVOKE = DrainPolicy(deadline_s=0.2, then="revoke")
PAGES = ("/notes", "/banner", "/search?q=a", "/whoami")
_numbers = itertools.count(1)
Person = tuple[Environment, httpx.AsyncClient]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module", params=BOARDS)
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One server of each stack for all tests; each test has environments of its own."""
    async with staged(request.param, tmp_path_factory.mktemp("board")) as shared:
        yield shared


@asynccontextmanager
async def people(stage: Stage, count: int = 2, *, person: str = "") -> AsyncIterator[list[Person]]:
    """New environments, and somebody in each."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            env = await stage.engine.create(f"e{next(_numbers)}")
            client = await stack.enter_async_context(stage.client(env))
            if person:
                assert (await client.post("/login", json={"person": person})).text == "welcome"
            made.append((env, client))
        yield made
        for env, _ in made:
            with suppress(EnvironmentRetired):
                await env.retire()


async def use(stage: Stage, person: Person, mark: str) -> None:
    """Write under names that everybody uses, in every way that the board has, and read it back."""
    env, client = person
    for number in range(3):
        answer = await client.post("/notes", json={"title": "lamp", "body": f"{mark} {number}"})
        assert answer.text == "pinned"
        bodies = [["lamp", f"{mark} {earlier}"] for earlier in range(number + 1)]
        assert (await client.get("/notes")).json() == [["first", "of the base"], *bodies]
        assert (await client.get("/search", params={"q": mark})).json() == ["lamp"] * (number + 1)
        await client.post("/banner", json={"text": f"banner {mark}"})
        assert (await client.get("/banner")).text == f"banner {mark}"
        assert (await client.post("/files/lamp.txt", content=mark)).status_code == 200
        assert (await client.get("/files/lamp.txt")).text == mark
    await client.post("/login", json={"person": mark})
    assert (await client.get("/whoami")).text == mark
    written = stage.board.rows(env, "SELECT body FROM notes WHERE title = 'lamp' ORDER BY id")
    assert written == [(f"{mark} {number}",) for number in range(3)]
    assert (Path(str(env.bindings["media"].address["path"])) / "lamp.txt").read_text() == mark


async def separate(stage: Stage) -> None:
    """Two environments are used at the same time, under equal titles."""
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use, stage, a, "alpha")
            tasks.start_soon(use, stage, b, "beta")
        for page in PAGES:
            assert "alpha" not in (await b[1].get(page)).text
        if isinstance(stage.board, StarletteBoard):
            assert [(await person[1].get("/visits")).json() for person in (a, b)] == [3, 4]


async def pooled(stage: Stage) -> None:
    """What one has put back into a pool is not what the other is given."""
    async with people(stage) as (a, b):
        for _, client in (a, b, a):
            assert (await client.get("/notes")).status_code == 200


async def nothing_stays(stage: Stage) -> None:
    """A marker of A is on none of B's pages, and nowhere in the process once A has ended."""
    parts = ("leakmarker", "7f3a")
    async with people(stage) as (a, b):
        await use(stage, a, "".join(parts))
        for page in PAGES:
            await a[1].get(page)
            assert "".join(parts) not in (await b[1].get(page)).text
        await a[0].retire()
        for page in PAGES:
            await b[1].get(page)
        found = await stage.ask(b[1], "holders", first=parts[0], second=parts[1])
        assert not found, found


async def unbound(stage: Stage) -> None:
    """Code without an environment reaches nothing, in no way; nor does a request what is no store."""
    async with people(stage, 1) as ((_, client),):
        met = await stage.ask(client, "unbound")
        assert len(met) >= 5
        assert set(met.values()) == {"NoEnvironment"}, met


async def owned(stage: Stage) -> None:
    """Connections that the application keeps serve who opened them, and nobody else, nor after its end."""
    async with people(stage) as (a, b):
        await stage.ask(a[1], "take")
        try:
            assert set((await stage.ask(a[1], "use")).values()) == {""}
            met = await stage.ask(b[1], "use")
            assert set(met.values()) == {"NoEnvironment"}, met
            await a[0].reset(drain=REVOKE)
            met = await stage.ask(a[1], "use")
            assert "" not in met.values(), met
        finally:
            await stage.ask(a[1], "drop")


async def jobs(stage: Stage) -> None:
    """All jobs that requests queue run, for who queued them, and a snapshot comes after them."""
    words = {name: [f"{name} {number}" for number in range(6)] for name in ("alpha", "beta")}
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:
            for (_, client), asked in zip((a, b), words.values(), strict=True):
                for half in (asked[:3], asked[3:]):

                    async def queue(client: httpx.AsyncClient = client, half: list[str] = half) -> None:
                        assert (await client.post("/jobs", json={"words": half})).text == "queued"

                    tasks.start_soon(queue)
        for (env, _), asked in zip((a, b), words.values(), strict=True):
            saved = await env.snapshot()
            assert sorted(row[0] for row in stage.board.rows(env, "SELECT word FROM jobs")) == asked
            await env.restore(saved)
            assert sorted(row[0] for row in stage.board.rows(env, "SELECT word FROM jobs")) == asked


async def work(stage: Stage) -> None:
    """What goes on after an answer is named by the drain, waited for, and the environment's own."""
    async with people(stage) as (a, b):
        with closing(HandPipes(stage.directory)) as pipes:
            asked = {"pipe": str(pipes["go"].path), "word": "later"}
            assert (await a[1].get("/later", params=asked)).text == "started"
            branch = stage.engine.kernel.branches(a[0].name)["board"]
            assert await left_to_do(stage.web, branch) == (stage.board.left,)
            with pytest.raises(DrainTimeout, match=stage.board.left):
                await a[0].snapshot(drain=DrainPolicy(deadline_s=0.1))
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(a[0].snapshot)
                    pipes["go"].write_line()
        assert stage.board.rows(a[0], "SELECT word FROM jobs") == [("later",)]
        assert stage.board.rows(b[0], "SELECT word FROM jobs") == []


async def closed(stage: Stage) -> None:
    """Connections are counted, and closed before a cut; those of a pool are opened anew after it."""
    async with people(stage, 1) as ((env, client),):
        branch = stage.engine.kernel.branches(env.name)["board"]
        await client.get("/notes")
        assert (await stage.binding(env))["connections"] > 0, "the pool keeps one"
        await stage.web.quiesce(branch)
        try:
            held = await stage.binding(env)
            assert (held["gate"], held["connections"]) == ("held", 0)
        finally:
            await stage.web.thaw(branch)
        assert (await client.get("/notes")).status_code == 200


async def drawn(stage: Stage) -> None:
    """Requests draw from the chance, and read the clock, that the gateway tells."""
    async with people(stage) as given:
        answers = []
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.web.server.port}", trust_env=False) as client:
            for env, _ in given:
                ticket = sign(stage.web.server.ticket_key, env.bindings["board"].identity)
                told = {TICKET_HEADER: ticket, CONDITIONS_HEADER: tell_conditions("5eed", 1e9)}
                answers.append((await client.get("/draw", headers={"Host": "board.example", **told})).json())
        assert answers[0]["chance"] == answers[1]["chance"]
        assert all(1e9 <= answer["time"] < 1e9 + 60 for answer in answers)


CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    check.__name__: check for check in (separate, pooled, nothing_stays, unbound, owned, jobs, work, closed, drawn)
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_that_it_holds(stage: Stage, check: Callable[[Stage], Awaitable[None]]) -> None:
    await check(stage)


@pytest.mark.sites
async def test_each_check_fails_without_its_guard(stage: Stage) -> None:
    """All of them on the one server: a guard that is taken away is missed by its check, and is put back."""
    unnoticed = []
    for guard, check in stage.board.guards.items():
        async with people(stage, 1) as ((_, client),):
            await stage.ask(client, "without", guard=guard)
            try:
                await CHECKS[check](stage)
            except (AssertionError, ExceptionGroup, StateforkError, pytest.fail.Exception):
                pass
            else:
                unnoticed.append(guard)
            finally:
                await stage.ask(client, "back")
    assert not unnoticed, f"taken away, and nobody noticed: {unnoticed}"


async def test_cookies_of_one_environment_mean_nothing_in_another_and_live_on_in_a_fork(stage: Stage) -> None:
    async with people(stage, person="ann") as (a, b):
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in a[1].cookies.jar)
        assert cookies
        async with stage.client(b[0]) as thief:
            assert (await thief.get("/whoami", headers={"Cookie": cookies})).text == ""
        (child,) = await stage.engine.fork(a[0].name, names=[f"{a[0].name}-child"])
        async with stage.client(child) as heir:
            assert (await heir.get("/whoami", headers={"Cookie": cookies})).text == "ann"
            await heir.post("/notes", json={"title": "lamp", "body": "of the child"})
        assert stage.board.rows(child, "SELECT title FROM notes") == [("first",), ("lamp",)]
        assert stage.board.rows(a[0], "SELECT title FROM notes") == [("first",)]
        assert (await a[1].get("/whoami")).text == "ann"
        await child.retire()


async def test_nothing_of_the_abandoned_future_after_a_rollback(stage: Stage) -> None:
    async with people(stage, 1, person="ann") as ((env, client),):
        await client.post("/files/early.txt", content="early")
        saved = await env.snapshot()
        assert (await client.get("/whoami")).text == "ann", "a snapshot disturbs nobody"
        await use(stage, (env, client), "abandoned")
        await env.restore(saved)
        for page in (*PAGES, "/search?q=abandoned"):
            assert "abandoned" not in (await client.get(page)).text
        assert (await client.get("/banner")).text == "of the base"
        assert (await client.get("/files/early.txt")).text == "early"
        assert (await client.get("/files/lamp.txt")).status_code == 500, "it is not there"


async def test_what_leads_to_no_store_is_refused(stage: Stage) -> None:
    async with people(stage, 1) as ((_, client),):
        await client.get("/notes")
        met = await stage.ask(client, "odd")
        assert len(met) >= 3
        assert set(met.values()) <= {"NoEnvironment", "OperationalError"}, met


async def test_an_event_stream_rests_and_is_held_for_a_snapshot(stage: Stage) -> None:
    async with people(stage, 1) as ((env, client),):
        branch = stage.engine.kernel.branches(env.name)["board"]
        with closing(HandPipes(stage.directory)) as pipes:
            async with client.stream("GET", "/stream", params={"pipe": str(pipes["go"].path)}) as answer:
                lines = (line async for line in answer.aiter_lines() if line)
                assert await anext(lines) == "data: open"
                pipes["go"].write_line("one")
                assert await anext(lines) == "data: one 1"
                assert await stage.web.pending(branch) == (), "between two events it is at rest"
                await stage.web.quiesce(branch)
                pipes["go"].write_line("two")  # it goes on, and waits at the gate
                assert (await stage.binding(env))["connections"] == 0
                await stage.web.thaw(branch)
                assert await anext(lines) == "data: two 1"
            with anyio.fail_after(20):  # that nobody listens any more is seen while it is silent
                while (await stage.binding(env))["work"] and isinstance(stage.board, StarletteBoard):
                    await anyio.lowlevel.checkpoint()


async def test_large_bodies_and_what_the_lifespan_made(stage: Stage) -> None:
    async with people(stage, 1) as ((_, client),):
        large = bytes(range(256)) * (3 << 12)
        assert (await client.post("/files/large", content=large)).status_code == 200
        assert (await client.get("/files/large")).content == large
        if isinstance(stage.board, StarletteBoard):
            assert (await client.get("/greet")).text == "good morning"
            handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
            refused = await client.get("/notes", headers={**handshake, "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="})
            assert refused.status_code == 501


async def test_an_open_transaction_is_named_and_nothing_is_closed(stage: Stage) -> None:
    async with people(stage, 1) as ((env, client),):
        with closing(HandPipes(stage.directory)) as pipes:
            async with client.stream("GET", "/transaction", params={"pipe": str(pipes["go"].path)}) as answer:
                lines = (line async for line in answer.aiter_lines() if line)
                assert await anext(lines) == "data: begun"
                with pytest.raises(TransitionAborted, match="a transaction is open on database 'database'"):
                    await env.snapshot()
                pipes["go"].write_line()
                assert await anext(lines) == "data: done"
        await env.snapshot()
        assert stage.board.rows(env, "SELECT title FROM notes") == [("first",), ("in a transaction",)]


async def test_a_request_that_does_not_end_is_cut_off_and_its_sibling_served(stage: Stage) -> None:
    async with people(stage) as (a, b):
        async with anyio.create_task_group() as tasks:

            async def endless() -> None:
                with suppress(httpx.RemoteProtocolError):  # the gateway lets go of who asked
                    assert (await a[1].get("/endless")).status_code >= 400

            tasks.start_soon(endless)
            branch = stage.engine.kernel.branches(a[0].name)["board"]
            with anyio.fail_after(20):
                while not await stage.web.pending(branch):
                    await anyio.lowlevel.checkpoint()
                await a[0].reset(drain=REVOKE)
        assert (await a[1].get("/notes")).status_code == 200
        assert (await b[1].get("/notes")).status_code == 200


async def test_idle_connections_of_who_was_served_longest_ago_go_first(stage: Stage) -> None:
    async with people(stage, 3) as given:
        await stage.ask(given[0][1], "cap", most="2")
        try:
            for _, client in given:
                assert (await client.get("/notes")).status_code == 200
            assert (await stage.binding(given[0][0]))["connections"] == 0
            assert (await given[0][1].get("/notes")).status_code == 200
        finally:
            await stage.ask(given[0][1], "cap", most="64")


async def test_a_server_that_dies_comes_back_with_its_bindings(stage: Stage) -> None:
    async with people(stage, person="ann") as (a, b):
        process = psutil.Process(stage.web.server.pid)
        os.kill(process.pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(process.wait, 20)
        for _, client in (a, b):
            assert (await client.get("/whoami")).text == "ann"


LIFESPAN = """
import sqlite3
async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        sqlite3.connect("board.sqlite3")
"""


@needs_postgres
async def test_a_lifespan_that_reaches_for_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _is_refused(StarletteBoard(), tmp_path, monkeypatch, LIFESPAN, "lifespan failed to start: no environment")


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sqlite3; sqlite3.connect('board.sqlite3')", "belong into the store's base"),
        ("raise RuntimeError('broken')", "broken"),
        ("application = 'no application'", "can't be called"),
        ("import psycopg_pool; psycopg_pool.ConnectionPool('dbname=board')", "would be shared by all environments"),
        ("import sys; sys.modules['asyncpg'] = sys; application = print", "asyncpg, which is bound to no environment"),
    ],
)
async def test_what_can_be_no_environments_is_refused_at_the_start(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    await _is_refused(board, tmp_path, monkeypatch, text, says)


async def _is_refused(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    (tmp_path / "odd_site.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    contract = write_contract(FlaskBoard(), tmp_path / "base", change=lambda given: _odd(given, board))
    with pytest.raises(ResourceFailed, match=says):
        async with open_engine(contract, state=tmp_path / "state"):
            pass


def _odd(contract: str, board: Board) -> str:
    return contract.replace('"wsgi_site:application"', '"odd_site"').replace('"wsgi"', f'"{board.stack}"')


def test_the_boards_know_nothing_of_statefork() -> None:
    modules = [path for path in (SITES / "board").glob("*.py") if path.name != "glue.py"]
    assert len(modules) == 4
    assert not any(knows_statefork(path) for path in modules)
