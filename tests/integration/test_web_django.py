"""A small real Django project on the shared server: whatever it keeps belongs to one environment and epoch."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from statefork.engine.errors import NotReady, ResourceBusy, ResourceFailed
from statefork.engine.ports import Needs, Owner
from statefork.engine.tickets import TICKET_HEADER, sign
from statefork.journal.values import Identity
from tests.integration.web_kit import PROJECT, Place, World, build_base, open_world

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("notes") / "base")


@pytest.fixture(scope="module")
async def world(base: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One server for all tests that do nothing to the server itself; each opens environments of its own."""
    async with open_world(base, tmp_path_factory.mktemp("world")) as shared:
        yield shared


async def marks(place: Place, mark: str) -> None:
    """Write under names that all environments use, in every way the project has."""
    client = place.client
    assert (await client.post("/add/", data={"title": "lamp", "body": mark})).status_code == 200
    assert (await client.post("/upload/", data={"name": "lamp.txt", "body": mark})).text == "lamp.txt"
    await client.post("/cache/", data={"value": mark})
    await client.post("/site/", data={"name": mark})
    await client.post("/mail/", data={"subject": mark})
    await client.post("/login/", data={"user": mark})


async def check_marks(place: Place, mark: str) -> None:
    """Each is there, once, and is the environment's own: read back through the site, and raw from the stores."""
    client = place.client
    assert (await client.get("/notes/")).json() == {"titles": ["first", "lamp"]}
    assert (await client.get("/media/lamp.txt")).text == mark
    assert (await client.get("/cache/")).json() == {"value": mark, "early": mark}
    assert (await client.get("/site/")).json()["name"] == mark
    assert (await client.get("/mail/")).json() == {"subjects": [mark]}
    assert (await client.get("/search/", params={"q": mark})).json() == {"titles": ["lamp"]}
    assert (await client.get("/whoami/")).text == mark
    with sqlite3.connect(place.root / "notes.sqlite3") as raw:
        assert raw.execute("SELECT body FROM notes_note WHERE title = 'lamp'").fetchall() == [(mark,)]
    assert (place.root / "media" / "lamp.txt").read_text() == mark


async def separate(world: World) -> None:
    """Two environments write under equal keys at the same time, and read back their own."""
    async with world.place("a") as a, world.place("b") as b:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(marks, a, "alpha")
            tasks.start_soon(marks, b, "beta")
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(check_marks, a, "alpha")
                tasks.start_soon(check_marks, b, "beta")
        assert (await b.client.get("/search/", params={"q": "alpha"})).json() == {"titles": []}


async def after_a_rollback(world: World) -> None:
    """A successor over the base, staged beside its predecessor, meets nothing of the abandoned future."""
    async with world.place("a", epoch=1) as old:
        await marks(old, "alpha")
        await check_marks(old, "alpha")
        async with world.place("a", epoch=2, activation=2) as new:
            await world.web.probe(new.binding)
            await world.web.unbind(old.binding)
            assert (await new.client.get("/notes/")).json() == {"titles": ["first"]}
            assert (await new.client.get("/cache/")).json() == {"value": None, "early": None}
            assert (await new.client.get("/site/")).json()["name"] == "base"
            assert (await new.client.get("/mail/")).json() == {"subjects": []}
            assert (await new.client.get("/search/", params={"q": "alpha"})).json() == {"titles": []}
            assert (await new.client.get("/media/lamp.txt")).status_code == 404


async def refused_without_environment(world: World) -> None:
    """Code that belongs to no environment gets nothing from any store."""
    async with world.place("a") as a:
        await marks(a, "alpha")
        seen = (await a.client.get("/unbound/")).json()
        assert len(seen) == 9
        assert set(seen.values()) == {"NoEnvironment"}


async def nothing_stays(world: World) -> None:
    """A marker of A is on none of B's pages, and nowhere in the process once A is released."""
    marker = "leakmarker" + "7f3a"
    async with world.place("b") as b:
        async with world.place("a") as a:
            await marks(a, marker)
            await check_marks(a, marker)
            for path in ("/notes/", "/cache/", "/site/", "/mail/", "/whoami/", "/media/lamp.txt"):
                assert marker not in (await b.client.get(path)).text
        found = (await b.client.get("/scan/", params={"a": marker[:5], "b": marker[5:]})).json()
        assert found == {"paths": [], "holders": []}


async def thread_is_counted(world: World) -> None:
    """A thread that outlives its response belongs to the environment, is named while it runs, and counted out."""
    async with world.place("a") as a, world.place("b") as b:
        response = await a.client.get("/later/", params={"pipe": a.pipe(), "title": "later"})
        assert response.text == "started"
        assert await world.web.pending(a.branch) == ("thread mailer",)
        assert await world.web.pending(b.branch) == ()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.web.drained, a.branch)
                a.write_line()
        assert await world.web.pending(a.branch) == ()
        assert a.titles() == ["first", "later"]
        assert b.titles() == ["first"]


async def test_interleaved_writes_under_equal_keys(world: World) -> None:
    await separate(world)


async def test_nothing_of_the_abandoned_future_after_a_rollback(world: World) -> None:
    await after_a_rollback(world)


async def test_stores_are_refused_without_an_environment(world: World) -> None:
    await refused_without_environment(world)


async def test_a_marker_of_one_environment_is_nowhere_once_it_is_released(world: World) -> None:
    await nothing_stays(world)


async def test_a_thread_after_its_response_is_counted_and_bound(world: World) -> None:
    await thread_is_counted(world)


Check = Callable[[World], Awaitable[None]]


@pytest.mark.parametrize(
    ("guard", "check"),
    [
        ("django_stack.caches:install", separate),
        ("django_stack.files:_Location.__get__", separate),
        ("django_stack.search:install", separate),
        ("django_stack.modules:install", separate),
        ("django_stack.modules:_split_sites", separate),
        ("django_stack.caches:drop", nothing_stays),
        ("inherit:install", thread_is_counted),
    ],
)
async def test_each_check_fails_without_its_guard(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str, check: Check
) -> None:
    monkeypatch.setenv("NOTES_WITHOUT", guard)
    with pytest.raises((AssertionError, ExceptionGroup, TimeoutError, ResourceFailed)):
        async with open_world(base, tmp_path, settings="notes.without") as world:
            await check(world)


async def test_cookies_of_one_environment_mean_nothing_in_another(world: World) -> None:
    async with world.place("a") as a, world.place("b") as b:
        await a.client.post("/login/", data={"user": "alice"})
        assert (await a.client.get("/whoami/")).text == "alice"
        cookies = dict(a.client.cookies)
        assert cookies
        stolen = await b.client.get("/whoami/", headers={"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())})
        assert stolen.status_code == 200
        assert stolen.text == ""


async def test_only_the_right_ticket_opens_the_server(world: World) -> None:
    async with world.place("a") as a, world.place("b"):
        key = world.web.server.ticket_key

        async def ask(ticket: str | None) -> httpx.Response:
            headers = {} if ticket is None else {TICKET_HEADER: ticket}
            url = f"http://127.0.0.1:{world.web.server.port}/notes/"
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.get(url, headers={"Host": "notes.example", **headers})

        mine = sign(key, a.identity)
        assert (await ask(mine)).status_code == 200
        for forged in (None, "", "x", mine[:-2] + "AA", sign(b"0" * 32, a.identity), mine + ", " + mine):
            assert (await ask(forged)).status_code == 421
        assert (await ask(sign(key, Identity(env="nobody", epoch=1, activation=1)))).status_code == 421
        for other in (Identity(env="a", epoch=2, activation=1), Identity(env="a", epoch=1, activation=2)):
            stale = await ask(sign(key, other))
            assert stale.status_code == 409
            assert str(other) in stale.json()["message"]
            assert str(a.identity) in stale.json()["message"]
        seen = (await a.client.get("/echo/")).text
        assert "statefork" not in seen.lower(), "the application must not see the ticket"


async def test_a_job_carries_its_environment_and_its_pool_thread_does_not(world: World) -> None:
    async with world.place("a") as a, world.place("b") as b:
        for place in (a, b, a):
            title = f"job-{len(place.titles())}"
            await place.client.get("/job/", params={"pipe": place.pipe(), "title": title})
            (name,) = await world.web.pending(place.branch)
            assert name == "job job.<locals>.write"
            place.write_line()
            with anyio.fail_after(20):
                await world.web.drained(place.branch)
        assert a.titles() == ["first", "job-1", "job-2"]
        assert b.titles() == ["first", "job-1"]
        stats = await world.web.server.call("stats")
        assert all(binding["work"] == [] for binding in stats["bindings"])


async def test_a_streaming_response_keeps_its_binding(world: World) -> None:
    async with world.place("a") as a, world.place("b") as b:
        async with a.client.stream("GET", "/stream/", params={"pipe": a.pipe()}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "1"
            assert await world.web.pending(a.branch) == ("request GET /stream/",)
            await a.client.post("/add/", data={"title": "more"})
            await b.client.post("/add/", data={"title": "one"})
            await b.client.post("/add/", data={"title": "two"})
            a.write_line()
            assert await anext(lines) == "2"
        with anyio.fail_after(20):
            await world.web.drained(a.branch)


async def test_quiesce_closes_every_connection_and_thaw_lets_them_reopen(world: World) -> None:
    async with world.place("a") as a, world.place("b") as b:
        for place in (a, b):
            assert (await place.client.get("/notes/")).status_code == 200
        await world.web.quiesce(a.branch)
        held, free = (await world.web.server.call("stats"))["bindings"]
        assert (held["gate"], held["connections"]) == ("held", 0)
        assert (free["gate"], free["connections"]) == ("open", 1)
        with sqlite3.connect(a.root / "notes.sqlite3") as raw:
            assert raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "a reader was left"
        refused = await a.client.get("/notes/")
        assert (refused.status_code, refused.json()["code"]) == (503, "environment_frozen")
        await world.web.thaw(a.branch)
        assert (await a.client.get("/notes/")).status_code == 200


async def test_an_open_transaction_is_named_and_nothing_is_closed(world: World) -> None:
    async with world.place("a") as a:
        async with a.client.stream("GET", "/transaction/", params={"pipe": a.pipe()}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "data: open"
            assert await world.web.pending(a.branch) == (), "an event stream between events is at rest"
            with pytest.raises(ResourceBusy, match="a transaction is open on database 'default'"):
                await world.web.quiesce(a.branch)
            a.write_line()
            assert [line async for line in lines if line] == ["data: done"]
        await world.web.quiesce(a.branch)
        await world.web.thaw(a.branch)


async def test_a_transaction_that_ends_soon_is_waited_for(world: World) -> None:
    async with world.place("a") as a:
        async with a.client.stream("GET", "/transaction/", params={"pipe": a.pipe()}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "data: open"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.web.quiesce, a.branch)
                a.write_line()
            stats = (await world.web.server.call("stats"))["bindings"][0]
            assert (stats["gate"], stats["connections"]) == ("held", 0)
            await world.web.thaw(a.branch)
            assert [line async for line in lines if line] == ["data: done"]
        assert a.titles() == ["first", "in a transaction"], "what the transaction wrote was lost"


async def test_an_event_stream_is_held_while_its_environment_is_quiesced(world: World) -> None:
    async with world.place("a") as a:
        async with a.client.stream("GET", "/events/", params={"pipe": a.pipe()}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": open"
            assert await anext(lines) == ""
            a.write_line("one")
            assert await anext(lines) == "data: one 1"
            await world.web.quiesce(a.branch)
            a.write_line("two")  # the view goes on, and waits at its database
            with sqlite3.connect(a.root / "notes.sqlite3") as raw:
                raw.execute("INSERT INTO notes_note (title, body) VALUES ('raw', '')")
            assert (await world.web.server.call("stats"))["bindings"][0]["connections"] == 0
            await world.web.thaw(a.branch)
            assert await anext(lines) == ""
            assert await anext(lines) == "data: two 2"


async def test_what_lives_on_after_terminate_is_named_and_reaches_no_store(world: World) -> None:
    async with world.place("a") as a:
        await a.client.get("/later/", params={"pipe": a.pipe(), "title": "ghost"})
        with anyio.move_on_after(0.05) as scope:
            await world.web.drained(a.branch)
        assert scope.cancelled_caught
        assert await world.web.terminate(a.branch) == ("thread mailer",)
        assert await world.web.pending(a.branch) == (), "it is cut off: nobody need wait for it"
        a.write_line()
        with anyio.fail_after(20):
            await world.web.server.idle("a", 1, world.web.server.living)
        assert a.titles() == ["first"], "the thread wrote after it was cut off"
        assert (await a.client.get("/notes/")).json() == {"titles": ["first"]}, "the environment serves on"


async def test_a_crashed_server_comes_back_on_its_port_with_its_bindings(base: Path, tmp_path: Path) -> None:
    async with open_world(base, tmp_path) as world, world.place("a") as a, world.place("b") as b:
        await a.client.post("/add/", data={"title": "kept"})
        pid, port = world.web.server.pid, world.web.server.port
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(process.wait, 20)
        await world.web.probe(a.binding)
        assert (world.web.server.port, world.web.server.restarts) == (port, 1)
        assert world.web.server.pid != pid
        assert world.web.process_ids() == (world.web.server.pid,)
        assert (await a.client.get("/notes/")).json() == {"titles": ["first", "kept"]}
        assert (await b.client.get("/notes/")).json() == {"titles": ["first"]}


async def test_the_server_dies_with_the_engine(base: Path, tmp_path: Path) -> None:
    script = f"""
import anyio, os
from pathlib import Path
from tests.integration.web_kit import open_world
async def main():
    async with open_world(Path({str(base)!r}), Path({str(tmp_path)!r})) as world:
        print(world.web.server.pid, flush=True)
        os.kill(os.getpid(), 9)
anyio.run(main, backend="trio")
"""
    ran = await anyio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=False)
    )
    assert ran.returncode == -signal.SIGKILL
    pid = int(ran.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        await anyio.to_thread.run_sync(psutil.Process(pid).wait, 20)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_binding_again_with_other_stores_replaces_them(world: World) -> None:
    async with world.place("a") as a, world.place("b") as b:
        await marks(a, "alpha")
        again = await world.web.bind(a.branch, a.identity, world.needs(a.identity, a.root))
        assert again == a.binding
        assert (await a.client.get("/cache/")).json()["value"] == "alpha", "the same again changes nothing"
        await world.web.bind(a.branch, a.identity, world.needs(a.identity, b.root))
        assert (await a.client.get("/notes/")).json() == {"titles": ["first"]}
        assert (await a.client.get("/cache/")).json()["value"] is None
        await world.web.bind(a.branch, a.identity, world.needs(a.identity, a.root))
        assert (await a.client.get("/notes/")).json() == {"titles": ["first", "lamp"]}


async def test_not_ready_names_what_is_missing(world: World) -> None:
    async with world.place("a") as a:
        (a.root / "search").rename(a.root / "gone")
        with pytest.raises(NotReady, match="store 'search' has no directory"):
            await world.web.probe(a.binding)
        branch = await world.web.branch(await world.web.provision(), Owner(env="c", epoch=1))
        with pytest.raises(ResourceFailed, match="'db'"):
            await world.web.bind(branch, Identity(env="c", epoch=1, activation=1), Needs())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("raise RuntimeError('broken settings')", "broken settings"),
        ("CACHES = {'default': {'BACKEND': 'django_redis.cache.RedisCache'}}", "django_redis.cache.RedisCache"),
        ("SESSION_ENGINE = 'django.contrib.sessions.backends.cache'", "SESSION_ENGINE"),
        ("HAYSTACK_CONNECTIONS['default']['STORAGE'] = 'ram'", "index in memory"),
        ("DATABASES['default'].setdefault('OPTIONS', {})['pool'] = True", "shared by all environments"),
        ("STORAGES = {'default': {'BACKEND': 'django.core.files.storage.InMemoryStorage'}}", "InMemoryStorage"),
    ],
)
async def test_settings_that_keep_state_elsewhere_are_refused_at_the_start(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    (tmp_path / "odd_settings.py").write_text(f"from notes.settings import *\n{line}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ResourceFailed, match=says):
        async with open_world(base, tmp_path, settings="odd_settings"):
            pass


async def test_a_cache_on_a_server_is_refused_to_who_has_no_namespace_there(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server starts, since only the contract of an environment says which namespace is its own."""
    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://shared.invalid"}
    (tmp_path / "odd_settings.py").write_text(f"from notes.settings import *\nCACHES = {{'default': {cache}}}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with open_world(base, tmp_path, settings="odd_settings") as world:
        with pytest.raises(ResourceFailed, match="on a server, and no namespace is declared as store 'cache'"):
            async with world.place("a"):
                pass


async def test_limits_of_one_environment_leave_threads_to_its_siblings(base: Path, tmp_path: Path) -> None:
    async with open_world(base, tmp_path, requests_max=2) as world, world.place("a") as a, world.place("b") as b:
        first = a.client.stream("GET", "/stream/", params={"pipe": a.pipe("pipe1")})
        second = a.client.stream("GET", "/stream/", params={"pipe": a.pipe("pipe2")})
        async with first as one, second as two:
            assert await anext(one.aiter_lines()) == "1"
            assert await anext(two.aiter_lines()) == "1"
            refused = await a.client.get("/notes/")
            assert refused.status_code == 503
            assert "requests_per_environment_max is 2" in refused.json()["message"]
            assert (await b.client.get("/notes/")).status_code == 200
            for name in ("pipe1", "pipe2"):
                a.write_line(name=name)


def test_the_project_knows_nothing_of_statefork() -> None:
    files = [path for path in (PROJECT / "notes").glob("*.py") if path.name != "without.py"]
    assert files
    for path in files:
        imports = [line for line in path.read_text().splitlines() if line.strip().startswith(("import ", "from "))]
        assert not any("statefork" in line for line in imports), path
