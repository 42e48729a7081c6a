"""The control door and those who use it badly: clients that do not read, or do not end; more of them than fit."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from statefork.adapters.interfaces import accepting, background
from statefork.adapters.interfaces.control import connection as connections
from statefork.adapters.interfaces.control import protocol, server
from statefork.adapters.interfaces.control.address import socket_path
from statefork.adapters.interfaces.control.client import Control, EngineDeaf, Held, NoEngine, engine_runs, held
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.memory_world import Call
from tests.integration.gateway_rig import open_rig

pytestmark = pytest.mark.anyio

CONTRACT = '[contract]\nname = "notes"\n[resources.page]\nadapter = "memory"\n'
PATIENCE_S = 20.0
BIG = bytes(8 * 1024 * 1024)  # more than the kernel keeps for a reader


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Engine]:
    """An engine with its control door."""
    (folder / "notes.toml").write_text(CONTRACT)
    async with open_engine(folder / "notes.toml", state=folder / "state") as engine, serve_control(engine):
        yield engine


def connect(state: Path, said: bytes = b"") -> socket.socket:
    """A client that says this and reads nothing."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(socket_path(state)))
    client.sendall(said)
    return client


async def ask(state: Path, verb: str, request: protocol.Request) -> dict[str, Any]:
    """What a command gets."""
    return await anyio.to_thread.run_sync(Control(state).ask, verb, request, abandon_on_cancel=True)


async def test_who_does_not_read_what_was_asked_for_holds_up_neither_others_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_S", 0.1)
    with anyio.fail_after(PATIENCE_S), ExitStack() as clients:
        async with served(tmp_path) as engine:
            digest = engine.blobs.put(BIG)
            for _ in range(3):
                clients.enter_context(
                    connect(engine.state, f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                )
            created = await ask(engine.state, "create", protocol.Create(name="a"))
            assert created["ref"] == "a@1"


async def test_half_a_request_and_none_at_all_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with anyio.fail_after(server.GRACE_S), ExitStack() as clients:
        async with served(tmp_path) as engine:
            clients.enter_context(connect(engine.state))
            clients.enter_context(connect(engine.state, b"POST /v1/status HTT"))
            clients.enter_context(
                connect(engine.state, b"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            )
            await ask(engine.state, "status", protocol.Status())


async def test_what_goes_wrong_with_one_connection_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve, failed = connections.Connection.serve, anyio.Event()

    async def fail_once(connection: connections.Connection) -> None:
        if not failed.is_set():
            failed.set()
            raise anyio.BusyResourceError("sending")
        await serve(connection)

    monkeypatch.setattr(connections.Connection, "serve", fail_once)
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine:
            with connect(engine.state):
                await failed.wait()
                await ask(engine.state, "status", protocol.Status())
    assert "a connection of the control door failed" in caplog.text


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (b"\0\0\0\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n", 431, "limit_exceeded"),
        (b"POST /v1/nope HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 404, "usage"),
        (b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 405, "usage"),
        (b"POST /v1/create HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400, "usage"),
        (b"POST /v1/create HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{", 400, "usage"),
        (b"POST /v1/status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "usage"),
        (b'POST /v1/park HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\n{"env":"a","deadline_s":1}', 400, "usage"),
        (b"GET /v1/blobs/none HTTP/1.1\r\nHost: x\r\n\r\n", 404, "blob_missing"),
    ],
)
async def test_what_is_no_request_is_told(tmp_path: Path, said: bytes, status: int, code: str) -> None:
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine, await anyio.connect_unix(socket_path(engine.state)) as client:
            await client.send(said)
            told = b""
            while not told.endswith(b"}"):
                told += await client.receive()
    assert told.startswith(f"HTTP/1.1 {status} ".encode())
    assert f'"code": "{code}"'.encode() in told


async def test_more_is_sent_when_the_client_asks_first(tmp_path: Path) -> None:
    said = b"POST /v1/status HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine, await anyio.connect_unix(socket_path(engine.state)) as client:
            await client.send(said)
            assert (await client.receive()).startswith(b"HTTP/1.1 100 ")
            await client.send(b"{}")
            assert (await client.receive()).startswith(b"HTTP/1.1 200 ")


async def test_an_engine_whose_queue_is_full_runs(tmp_path: Path) -> None:
    assert not engine_runs(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door, ExitStack() as clients:
        door.bind(str(socket_path(tmp_path)))
        door.listen(0)
        for _ in range(5):
            client = clients.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            if client.connect_ex(str(socket_path(tmp_path))) == errno.EAGAIN:
                break
        else:
            pytest.fail("the queue takes everybody")
        assert engine_runs(tmp_path)
    with pytest.raises(NoEngine):
        Control(tmp_path).ask("status", protocol.Status())


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """This process may open so many files more."""
    with open(os.devnull) as last:  # noqa: PTH123 -- only its number matters
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + more, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Heard(logging.Handler):
    """Knows when it was said that new connections have to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.event = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "new connections have to wait" in record.getMessage():
            self.event.set()


async def until_full(clients: ExitStack, make: Callable[[], socket.socket]) -> None:
    """Connect until nobody can be accepted any more."""
    heard = Heard()
    log = logging.getLogger(accepting.__name__)
    log.addHandler(heard)
    try:
        with few_descriptors(9):
            with suppress(OSError):
                while True:
                    clients.enter_context(make())
                    await anyio.lowlevel.checkpoint()
            await heard.event.wait()
    finally:
        log.removeHandler(heard)


async def test_more_clients_than_descriptors_wait_at_the_control_door(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine:
            with ExitStack() as clients:
                await until_full(clients, lambda: connect(engine.state))
            await ask(engine.state, "create", protocol.Create(name="a"))


async def test_more_clients_than_descriptors_wait_at_the_gateway() -> None:
    with anyio.fail_after(PATIENCE_S):
        async with open_rig() as rig:
            with ExitStack() as clients:
                door = ("127.0.0.1", rig.proxy.port)
                await until_full(clients, lambda: socket.create_connection(door))
            assert (await rig.browser.get("http://shop.example/")).status_code < 500


def said(verb: str, request: protocol.Request) -> bytes:
    """A request as a client sends it."""
    body = msgspec.json.encode(request)
    return f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = {
    "fork": protocol.Fork(ref="a#1", lent="a bisect"),
    "replay": protocol.Replay(ref="a", task="t", steps=True),  # halts after its first step
}


@pytest.mark.parametrize("verb", sorted(REQUESTS))
@pytest.mark.parametrize("farewell", ["", "half", "polite"])
async def test_what_was_made_for_a_client_goes_with_it(
    tmp_path: Path, verb: str, farewell: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be killed at any time; one that only says that it says no more is still there."""
    async with served(tmp_path) as engine:
        env = await engine.create("a")
        for key in ("one", "two"):
            await env.act({"type": "put", "in": "page", "key": key, "value": 1})
        client = connect(engine.state, said(verb, REQUESTS[verb]))

        def alive() -> list[str]:
            return [one.name for one in engine.environments() if one.name != "a" and one.capsule.bound]

        with anyio.fail_after(PATIENCE_S):
            while not alive():
                await anyio.lowlevel.checkpoint()
            if farewell == "half":
                client.shutdown(socket.SHUT_WR)
                if verb == "fork":
                    assert await anyio.to_thread.run_sync(client.recv, 12) == b"HTTP/1.1 200"
                else:
                    assert (await ask(engine.state, "step", protocol.Step(task="t", then="on")))["step"] is not None
            if farewell == "polite":
                (name,) = alive()
                await ask(engine.state, "retire", protocol.Retire(env=name))
            client.close()
            while [one.name for one in engine.environments()] != ["a"]:
                await anyio.lowlevel.checkpoint()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_how_many_children_there_are_is_told_while_they_are_made(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine, anyio.create_task_group() as tasks:
            await engine.create("a")
            world = engine.kernel.resources["page"].world  # type: ignore[attr-defined]  # the memory adapter's
            go_on = anyio.Event()
            bound = 0

            async def hold(call: Call) -> None:
                nonlocal bound
                if (call.method, call.when) == ("bind", "before"):
                    bound += 1
                    if bound > 2:
                        await go_on.wait()

            world.hook = hold
            request = protocol.Fork(ref="a", n=4, task="the fork")
            answered: list[dict[str, Any]] = []

            async def fork() -> None:
                answered.append(await ask(engine.state, "fork", request))

            tasks.start_soon(fork)
            told: dict[str, Any] = {}
            while told.get("detail") != "2 of 4 children":
                told = await ask(engine.state, "progress", protocol.Watched(task="the fork"))
            assert (told["doing"], told["fraction"]) == ("making children of a", 0.5)
            go_on.set()
        assert len(answered[0]["children"]) == 4


class WaitedEnough(Exception):
    """What ends the waiting."""


def enough(_seconds: float, _doing: str) -> None:
    raise WaitedEnough


async def test_an_engine_that_closes_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    state = tmp_path / "state"
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *told: signals.append(told))
    seen: list[Held | None] = []

    async def look(call: Call) -> None:
        if (call.method, call.when) == ("unbind", "before"):
            seen.append(held(state))

    with anyio.fail_after(PATIENCE_S):
        async with open_engine(tmp_path / "notes.toml", state=state) as engine:
            await engine.create("a")
            assert held(state) == Held(os.getpid(), takes_commands=False)
            async with serve_control(engine):
                assert held(state) == Held(os.getpid(), takes_commands=True)
            with pytest.raises(EngineDeaf, match="an engine that is closing and takes no commands") as told:
                await ask(state, "status", protocol.Status())
            assert told.value.hint.startswith("Wait until it has parked its environments and ended")
            with pytest.raises(WaitedEnough):
                await anyio.to_thread.run_sync(background.stop, state, enough)
            assert signals == [], "told a second time to close, it would give up on parking"
        async with open_engine(tmp_path / "notes.toml", state=state) as engine:
            await engine.create("b")
            engine.kernel.resources["page"].world.hook = look  # type: ignore[attr-defined]  # the memory adapter's
    assert seen == [Held(os.getpid(), takes_commands=False, closing=True)]
    assert held(state) is None


@pytest.mark.parametrize("verb", ["restore", "clone", "blame"])
async def test_how_far_the_making_of_a_moment_is_is_told(tmp_path: Path, verb: str) -> None:
    requests = {
        "restore": protocol.Restore(env="a", ref="a#2", task="it"),
        "clone": protocol.Clone(ref="a#2", name="b", task="it"),
        "blame": protocol.Blame(ref="a", item="k0", task="it"),
    }
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path) as engine, anyio.create_task_group() as tasks:
            env = await engine.create("a")
            for number in range(3):
                await env.act({"type": "put", "key": f"k{number}", "value": number})
            go_on = anyio.Event()
            acted = 0

            async def hold(call: Call) -> None:
                nonlocal acted
                if (call.method, call.when) == ("act", "before"):
                    acted += 1
                    if acted == 2:
                        await go_on.wait()

            engine.kernel.resources["page"].world.hook = hold  # type: ignore[attr-defined]  # the memory adapter's

            async def asked() -> None:
                await ask(engine.state, verb, requests[verb])

            tasks.start_soon(asked)
            told: dict[str, Any] = {}
            while not told.get("detail", "").startswith("1 of "):
                told = await ask(engine.state, "progress", protocol.Watched(task="it"))
            assert told["doing"].endswith("a#2" if verb != "blame" else "through a")
            go_on.set()
