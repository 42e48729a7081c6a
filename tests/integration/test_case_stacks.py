"""What users of such systems complain of, on every stack behind the web resource: Rack, PHP-FPM, WSGI, ASGI, Node.

Each stack is one engine for the whole module, and each test has environments of its own. Django has its own (the shop).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx
import msgspec
import psutil
import psycopg
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.browser.options import routes_of
from statefork.engine.errors import StateforkError, TransitionAborted
from statefork.engine.ports import Needs
from statefork.engine.settings import DrainPolicy
from statefork.journal.events import RequestRefused
from tests.integration.alike_kit import STACKS, Alike, opened, picture, said
from tests.integration.hand_pipe import HandPipes
from tests.integration.postgres_kit import database, run, session
from tests.integration.shop_kit import events

pytestmark = [pytest.mark.anyio, pytest.mark.sites]

REVOKE = DrainPolicy(deadline_s=0.2, then="revoke")
ATTEMPTS = 2
LIVES = 3
HALF_OPEN = 12  # more than a server has threads


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module", params=STACKS)
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Alike]:
    async with opened(request.param, tmp_path_factory.mktemp(request.param), request) as shared:
        yield shared


async def test_siblings_have_everything_of_one_generation_and_share_nothing(stack: Alike) -> None:
    """Cases 1, 5, 8, 9, 10."""
    async with stack.people() as ((parent, client),):
        await stack.add(client, "Before", "of the parent")
        await stack.upload(client, picture("of the parent"))
        children = await stack.engine.fork(parent.name, names=[f"{parent.name}-{side}" for side in ("left", "right")])
        await stack.add(client, "After", "of the parent")
        async with anyio.create_task_group() as tasks:
            for child in children:
                tasks.start_soon(live, stack, child, said(client))
        keys = set()
        for child, other in (children, reversed(children)):
            ((key, text),) = stack.rows(child, "Unique")
            assert text == f"of {child.name}"
            assert stack.has(child, picture(child.name))
            assert not stack.has(child, picture(other.name))
            keys.add(key)
        assert len(keys) == 1, "a sequence that siblings share"
        assert stack.rows(parent, "Unique") == []
        assert stack.has(parent, picture("of the parent"))
        assert await stack.is_logged_in(client)
        for child in children:
            await child.retire()


async def live(stack: Alike, child: Environment, cookies: str) -> None:
    """What was there before the fork is, the login too; then write under a name that the sibling writes under."""
    async with stack.client(child, cookies) as heir:
        assert await stack.is_logged_in(heir)
        assert [text for _, text in stack.rows(child, "Before")] == ["of the parent"]
        assert stack.rows(child, "After") == []
        assert stack.has(child, picture("of the parent"))
    async with stack.client(child) as somebody:
        await stack.login(somebody)
        await stack.add(somebody, "Unique", f"of {child.name}")
        await stack.upload(somebody, picture(child.name))


async def test_order_and_company_change_no_answers(stack: Alike) -> None:
    """Case 2: keys too are the same, one after the other, the other way round, and all at once."""
    answers: dict[str, dict[str, Any]] = {"forwards": {}, "backwards": {}, "together": {}}

    async def write(env: Environment, client: httpx.AsyncClient, way: str) -> None:
        await stack.add(client, "Lamp", "it shines")
        await stack.add(client, "Lamp-two", "it shines too")
        answers[way]["write"] = stack.rows(env, "Lamp"), stack.rows(env, "Lamp-two")

    async def upload(env: Environment, client: httpx.AsyncClient, way: str) -> None:
        await stack.upload(client, picture("lamp"))
        answers[way]["upload"] = stack.has(env, picture("lamp")), stack.rows(env, "Lamp")

    async with stack.people(6) as (a, b, c, d, e, f):
        await write(*a, "forwards")
        await upload(*b, "forwards")
        await upload(*c, "backwards")
        await write(*d, "backwards")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, *e, "together")
            tasks.start_soon(upload, *f, "together")
    assert answers["forwards"] == answers["backwards"] == answers["together"]
    assert answers["forwards"]["upload"] == (True, [])


async def digests(stack: Alike, env: Environment) -> dict[str, str]:
    """Of what the stores hold now, computed by the adapters that can compare contents."""
    await env.snapshot()
    manifest = env.capsule.head.manifest
    stores = [name for name in manifest if name != stack.resource]
    return {name: await stack.engine.kernel.resources[name].digest(manifest[name].sealed) for name in stores}


async def test_attempts_each_begin_at_the_base_and_logins_are_the_generations(stack: Alike) -> None:
    """Cases 3 and 5."""
    env = await stack.engine.create("attempts")
    base = await digests(stack, env)
    keys, cookies, saved = set(), "", None
    for attempt in range(ATTEMPTS):
        async with stack.client(env) as client:
            assert not cookies or not await stack.knows(env, cookies), "a login of the attempt before"
            assert stack.rows(env, "Lamp") == []
            await stack.login(client)
            await stack.add(client, "Lamp", f"of attempt {attempt}")
            await stack.upload(client, picture(f"attempt {attempt}"))
            keys.add(stack.rows(env, "Lamp")[0][0])
            cookies, saved = said(client), await env.snapshot()
        await env.reset()
        assert not any(stack.has(env, picture(f"attempt {done}")) for done in range(attempt + 1))
    assert len(keys) == 1, "an attempt that goes on counting where the one before stopped"
    assert await digests(stack, env) == base
    assert saved is not None
    await env.restore(saved)
    assert await stack.knows(env, cookies)
    (child,) = await stack.engine.fork(saved)
    await env.reset()
    assert await stack.knows(child, cookies)
    assert not await stack.knows(env, cookies)
    for one in (env, child):
        await one.retire()


async def test_one_cookie_jar_keeps_both_logins(stack: Alike) -> None:
    """Case 4: cookies know no ports."""
    envs = [await stack.engine.create(f"jar-{side}") for side in ("here", "there")]
    async with stack.client(envs[0]) as client:
        for env in envs:
            client.base_url = httpx.URL(env.base_url(stack.resource))
            await stack.login(client)
        for env in envs * 2:
            client.base_url = httpx.URL(env.base_url(stack.resource))
            assert await stack.is_logged_in(client)
    for env in envs:
        await env.retire()


@contextmanager
def without_the_base_of_the_uploads(stack: Alike, env: Environment) -> Any:
    """The tree that a reset begins with is not there for a while."""
    origin = stack.engine.kernel.world.generation(env.capsule.origin)
    root = stack.engine.state / "resources" / "media"
    record = msgspec.json.decode((root / "sealed" / f"{origin.manifest['media'].sealed.version}.json").read_bytes())
    path = Path(root / "layers" / record["layers"][0])
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


async def test_what_fails_half_way_leaves_the_old_generation_serving(stack: Alike) -> None:
    """Case 6: the server holds the environment meanwhile, and lets it go as it was."""
    async with stack.people() as ((env, client),):
        await stack.add(client, "Lamp", "of before")
        old = env.capsule.moment
        with without_the_base_of_the_uploads(stack, env):
            with pytest.raises(TransitionAborted) as caught:
                await env.reset()
            assert (caught.value.facts["operation"], caught.value.facts["component"]) == ("reset", "media")
            assert env.capsule.moment == old
            assert await stack.is_logged_in(client)
            await stack.add(client, "Lamp-two", "of after")
        assert [text for _, text in stack.rows(env, "Lamp-two")] == ["of after"]
        await env.reset()
        assert stack.rows(env, "Lamp") == []


async def test_half_open_clients_hold_no_place_of_the_server(stack: Alike) -> None:
    """Case 22: half a head, half a body. Siblings and the environment itself are served, and a reset ends them."""
    async with stack.people(2) as (a, b), AsyncExitStack() as ending:
        url = httpx.URL(a[0].base_url(stack.resource))
        assert url.port is not None
        head = f"POST {stack.page} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n"
        for number in range(HALF_OPEN):
            stream = await ending.enter_async_context(await anyio.connect_tcp(url.host, url.port))
            await stream.send((head + ("Content-Length: 100\r\n\r\nhalf" if number % 2 else "X-Ha")).encode())
        with anyio.fail_after(30):
            assert await stack.is_logged_in(a[1])
            assert await stack.is_logged_in(b[1])
            await a[0].reset(drain=REVOKE)
            assert not await stack.is_logged_in(a[1])
            await stack.web.drained(stack.engine.kernel.branches(a[0].name)[stack.resource])


async def left(stack: Alike, engine: Engine) -> dict[str, Any]:
    """All that a life or a failed one could leave: handles, bindings and sessions, databases, ports, files."""
    await engine.gc()
    resources = engine.kernel.resources
    web: Any = resources[stack.resource]
    handles = {name: len([handle async for handle in resource.inventory()]) for name, resource in resources.items()}
    ports = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    entries = [path for path in (engine.state / "resources").glob("*/*/*") if path.parent.name != "server"]
    found = {"handles": handles, "ports": len(ports), "entries": len(entries)}
    found["bindings"] = len((await web.server.call("stats"))["bindings"])
    if stack.on_postgres:
        backend = database(engine).backend
        await anyio.to_thread.run_sync(backend.workshop.settle)
        for name, what in COUNTED.items():
            found[name] = (await anyio.to_thread.run_sync(backend.admin.rows, what))[0][0]
    return found


async def test_lives_and_failed_ones_leave_nothing_behind(stack: Alike) -> None:
    """Case 23."""
    before: dict[str, Any] = {}
    for life in range(LIVES):
        async with stack.people() as ((env, client),):
            await stack.add(client, "Lamp", "of a life")
            (child,) = await stack.engine.fork(f"{env.name}@1")  # of itself it would publish, and history is kept
            await child.retire()
            with without_the_base_of_the_uploads(stack, env), pytest.raises(StateforkError):
                await stack.engine.create(f"never-{life}")
        before = before or await left(stack, stack.engine)
    assert await left(stack, stack.engine) == before


async def test_what_comes_too_late_is_refused_and_nobodys(stack: Alike) -> None:
    """Case 24: a beacon of the page that was left, and what an answer left to do."""
    async with stack.people() as ((env, client),):
        needs = Needs(bindings=env.bindings)
        gateway = stack.web._services.gateway
        door = await gateway.open_proxy(env.bindings[stack.resource].identity, routes_of(needs))
        site, proxy = f"http://{stack.web.options.host}", f"http://127.0.0.1:{door.port}"
        server = stack.web.server.pid
        with closing(HandPipes(stack.directory)) as pipes:
            async with httpx.AsyncClient(base_url=site, proxy=proxy, trust_env=False, timeout=60) as beacon:
                assert (await beacon.get(stack.page)).status_code == 200
                await stack.later(client, pipes["late"].path, "late")
                await env.reset(drain=REVOKE)
                late = await beacon.post(stack.page, data={"title": "late"})
                assert (late.status_code, late.json()["code"]) == (409, "stale_generation")
            pipes["late"].write_line()
            await stack.later(client, pipes["own"].path, "own")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(env.snapshot)
                pipes["own"].write_line()
        assert stack.told_later(env) == "own"
        assert stack.web.server.pid == server, "what comes too late has ended the server of all"
        await door.close()
        refused = [event for event in await events(stack.engine, env.name, RequestRefused) if event.method == "POST"]
        assert [(event.status, event.code, event.epoch) for event in refused] == [(409, "stale_generation", 1)]


def wreck(stack: Alike, env: Environment) -> None:
    """Everything that its role and its paths reach."""
    for entry in stack.media(env).iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not stack.on_postgres:
        path = Path(str(env.bindings["db"].address["path"]))
        for file in path.parent.glob(f"{path.name}*"):
            file.write_bytes(b"no database" * 5_000)
        return
    tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname !~ '^(pg_|information_)'"
    for (table,) in run(env, tables):
        run(env, f"DROP TABLE IF EXISTS {table} CASCADE")


async def test_no_sibling_notices_what_an_agent_wrecks(stack: Alike) -> None:
    """Case 25, and a reset brings it back whole."""
    async with stack.people(2) as (a, b):
        for _, client in (a, b):
            await stack.add(client, "Lamp", "of before")
        wreck(stack, a[0])
        with suppress(httpx.TransportError):
            assert (await a[1].get(stack.page, follow_redirects=False)).status_code != 421
        assert await stack.is_logged_in(b[1])
        assert [text for _, text in stack.rows(b[0], "Lamp")] == ["of before"]
        await b[0].snapshot()
        await a[0].reset(drain=REVOKE)
        async with stack.client(a[0]) as again:
            await stack.login(again)
            await stack.add(again, "Lamp", "of after")
        assert [text for _, text in stack.rows(a[0], "Lamp")] == ["of after"]


async def test_the_role_of_an_environment_reaches_no_base(stack: Alike) -> None:
    """What all environments are made of is written by nobody, nor is a sibling's."""
    async with stack.people() as ((env, _),):
        address = env.bindings["db"].address
        if not stack.on_postgres:
            base = stack.engine.kernel.world.generation(env.capsule.origin).manifest["db"].sealed
            assert (stack.engine.state / str(base.data["path"])).stat().st_mode & 0o222 == 0
            return
        others = [name for (name,) in run(env, "SELECT datname FROM pg_database") if name != address["name"]]
        assert len(others) > 3
        for name in others:
            # One that is kept in stock may be gone by now.
            with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting|not exist"):
                with session({**address, "name": name}):
                    pass


OF_POSTGRES = ("postgres", "template0", "template1")
STOCK = 2  # databases made in advance
COUNTED = {
    "databases": "SELECT count(*) FROM pg_database",
    "sessions": "SELECT count(*) FROM pg_stat_activity WHERE usename <> current_user",
}
PROGRAM = """
import sys, anyio, json, statefork
async def main(contract, state, site):
    async with statefork.open_engine(contract, state=state) as engine:
        env = await engine.create("kept")
        print(json.dumps({"url": env.base_url(site)}), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        await env.snapshot()
        print("published", flush=True)
        web, branch = engine.kernel.resources[site], engine.kernel.branches("kept")[site]
        while not any("endless" in name for name in await web.pending(branch)):
            await anyio.lowlevel.checkpoint()
        print("asked", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
anyio.run(main, *sys.argv[1:], backend="trio")
"""


async def test_an_engine_that_is_killed_in_the_middle_of_a_request(stack: Alike, tmp_path: Path) -> None:
    """The next opening ends what it left, and the environment serves what was published last."""
    temporary = temporary_entries()
    state = tmp_path / "state"
    left_running, cookies = await killed(stack, state, tmp_path)
    async with open_engine(stack.contract, state=state) as again:
        _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(left_running, timeout=20))
        assert not alive, "what the engine had started lives on"
        assert [moment.env for moment in again.recovered.recovered] == ["kept"]
        collected = await again.gc()
        assert (collected.collected, collected.failed) == ((), ())
        env = again.environment("kept")
        await env.activate()
        assert [text for _, text in stack.rows(env, "Lamp")] == ["published"]
        assert stack.rows(env, "Lamp-two") == []
        assert stack.has(env, picture("published"))
        assert await stack.knows(env, cookies)
        assert stack.told_later(env) != "never"
        await env.retire()
        met = await left(stack, again)
        assert met.get("databases", 0) <= met["handles"]["db"] + len(OF_POSTGRES) + STOCK
        assert met.get("sessions", 0) == 0
    assert temporary_entries() == temporary


def temporary_entries() -> set[Path]:
    """What lies in the temporary directory of this session."""
    return set(Path(tempfile.gettempdir()).iterdir())


async def killed(stack: Alike, state: Path, pipes_at: Path) -> tuple[list[psutil.Process], str]:
    """An engine's environment with a published moment and a tail, while a request runs: what ran, and a login there."""
    command = [sys.executable, "-c", PROGRAM, str(stack.contract), str(state), stack.resource]
    async with AsyncExitStack() as ending:
        engine = await ending.enter_async_context(await anyio.open_process(command, stderr=None))
        assert engine.stdin is not None
        assert engine.stdout is not None
        lines = BufferedByteReceiveStream(engine.stdout)
        pipes = ending.enter_context(closing(HandPipes(pipes_at)))
        told = json.loads(await lines.receive_until(b"\n", 1 << 16))
        processes = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
        async with stack.at(told["url"]) as client:
            await stack.login(client)
            await stack.add(client, "Lamp", "published")
            await stack.upload(client, picture("published"))
            await engine.stdin.send(b"\n")
            assert await lines.receive_until(b"\n", 100) == b"published"
            await stack.add(client, "Lamp-two", "of the tail")
            await stack.later(client, pipes["never"].path, "never")
            async with anyio.create_task_group() as tasks:

                async def ask_for_ever() -> None:
                    with suppress(httpx.TransportError):
                        await client.get(stack.endless)

                tasks.start_soon(ask_for_ever)
                assert await lines.receive_until(b"\n", 100) == b"asked"
                engine.kill()
            return processes, said(client)
