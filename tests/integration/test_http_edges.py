"""HTTP used badly: who may not ask, what is no request, clients that stall, leave or never read."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.control.client import EngineLost, NoEngine
from statefork.adapters.interfaces.http import asking, events, serving
from statefork.adapters.interfaces.http.client import Client
from statefork.adapters.interfaces.http.guard import token_of
from statefork.adapters.interfaces.http.names import TOKEN_NAME
from statefork.adapters.interfaces.http.problems import Unauthorised
from statefork.journal.events import ActionBegun, ActionEnded
from tests.integration import http_kit
from tests.integration.http_kit import PATIENCE_S, PUT, TOKEN, WAIT, Running, head, until

pytestmark = pytest.mark.anyio
ACTIONS = "/v1/environments/a/actions"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """It is served on trio."""
    return "trio"


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One for the module, with the environment ``a``."""
    async with http_kit.serving(tmp_path_factory.mktemp("http")) as running:
        await running.engine.create("a")
        yield running


def test_the_token_is_made_once_and_nobody_else_reads_it(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert token_of(tmp_path) == token
    assert stat.S_IMODE((tmp_path / TOKEN_NAME).stat().st_mode) == 0o600
    (tmp_path / TOKEN_NAME).chmod(0o644)
    assert token_of(tmp_path) == token
    assert stat.S_IMODE((tmp_path / TOKEN_NAME).stat().st_mode) == 0o600
    assert token_of(tmp_path, "given") == "given"
    (tmp_path / TOKEN_NAME).write_text("")  # left by a crash
    assert len(token_of(tmp_path)) > 40


@pytest.mark.parametrize(
    "said", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xe4"]
)
async def test_who_has_not_the_token_gets_nothing(running: Running, said: str | None) -> None:
    before = running.engine.environment("a").capsule.actions
    async with httpx.AsyncClient(base_url=running.url) as http:
        headers = {} if said is None else {"Authorization": said.encode("latin-1")}
        for method, path in (("GET", "/v1/status"), ("GET", "/events"), ("GET", "/metrics"), ("POST", ACTIONS)):
            answer = await http.request(method, path, headers=headers)  # type: ignore[arg-type]  # bytes are allowed
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await http.get("/health")).json() == {"status": "healthy"}
    with pytest.raises(Unauthorised), Client(running.url, token="wrong") as client:
        await anyio.to_thread.run_sync(client.status)
    assert running.engine.environment("a").capsule.actions == before


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "evil.example"}, 421, "foreign_host"),
        ({"Host": "127.0.0.1.evil.example"}, 421, "foreign_host"),
        ({"Host": "localhost.evil.example:80"}, 421, "foreign_host"),
        ({"Host": "["}, 421, "foreign_host"),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403, "forbidden_origin"),
        ({"Host": "localhost", "Origin": "null"}, 403, "forbidden_origin"),
        ({"Host": "localhost", "Origin": "http://localhost:1"}, 403, "forbidden_origin"),
        ({"Host": "localhost:7", "Origin": "http://localhost:7"}, 200, None),
        ({"Host": "[::1]:7"}, 200, None),
    ],
)
async def test_pages_of_others_and_names_of_others_are_refused(
    running: Running, headers: dict[str, str], status: int, code: str | None
) -> None:
    async with running.http() as http:
        answer = await http.get("/v1/status", headers=headers)
        assert (answer.status_code, answer.json().get("code")) == (status, code)
        if code is not None:
            assert (await http.get("/health", headers=headers)).status_code == status
            assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", ACTIONS, b"{", 400, "usage"),
        ("POST", ACTIONS, b"[]", 400, "usage"),
        ("POST", ACTIONS, b"\xff\xfe", 400, "usage"),
        ("POST", ACTIONS, b'{"action": {"type": "nope"}}', 422, "invalid_action"),
        ("POST", ACTIONS, b'{"action": {"type": "put"}}', 422, "invalid_action"),
        ("POST", ACTIONS, b'{"action": "put"}', 400, "usage"),
        ("POST", ACTIONS, b'{"deed": {}}', 400, "usage"),
        ("POST", ACTIONS, b'{"action": {"type": "fail", "key": "k"}}', 409, "action_failed"),
        ("POST", ACTIONS, b" " * (asking.BODY_BYTES_MAX + 1), 413, "body_too_large"),
        ("POST", "/v1/environments/b/actions", b"{}", 404, "unknown_environment"),
        ("POST", "/v1/environments", b'{"name": "../b"}', 400, "invalid_name"),
        ("POST", "/v1/forks", b'{"ref": "a@9"}', 404, "unknown_ref"),
        ("POST", "/v1/forks", b'{"ref": "a", "lent": "me"}', 400, "usage"),
        ("POST", "/v1/exports", b'{"ref": "a", "path": "/etc/passwd"}', 400, "usage"),
        ("POST", "/v1/imports", b"no such file", 422, "export_unreadable"),
        ("GET", "/v1/log?limit=many", b"", 400, "usage"),
        ("GET", "/v1/log?limit=0", b"", 400, "usage"),
        ("GET", "/v1/log?after=-1", b"", 400, "usage"),
        ("GET", "/events?after=-1", b"", 400, "usage"),
        ("POST", "/v1/forks", b'{"ref": "a", "n": -1}', 400, "usage"),
        ("POST", "/v1/forks", b'{"ref": "a", "n": 0}', 400, "usage"),
        ("POST", "/v1/forks", b'{"ref": "a", "n": 1000000}', 429, "limit_reached"),
        ("POST", "/v1/bulk/environments", b'{"names": []}', 400, "out_of_range"),
        ("POST", "/v1/diffs", b'{"before": "a", "after": "a", "limit": -1}', 400, "usage"),
        ("POST", "/v1/environments/a/snapshots", b'{"deadline_s": -1}', 400, "usage"),
        ("POST", "/v1/environments/a/restore", b'{"ref": "a@1", "deadline_s": -1}', 400, "usage"),
        ("POST", "/v1/bulk/resets", b'{"envs": ["a"], "deadline_s": -1}', 400, "usage"),
        ("POST", ACTIONS, b'{"action": {"type": "get", "key": "x"}, "timeout_s": 0}', 400, "usage"),
        ("POST", ACTIONS, b'{"action": {"type": "get", "key": "x"}, "timeout_s": -1}', 400, "usage"),
        ("POST", "/v1/replays/t/steps", b'{"after": -1}', 400, "usage"),
        ("GET", "/v1/moments/a%23999", b"", 404, "unknown_ref"),
        ("GET", "/v1/blobs/..%2f..%2fjournal.sqlite3", b"", 404, "usage"),
        ("GET", "/v1/blobs/none", b"", 404, "blob_missing"),
        ("GET", "/v1/nope", b"", 404, "usage"),
        ("DELETE", "/v1/status", b"", 405, "usage"),
    ],
)
async def test_what_can_not_be_done_is_told_in_one_form(
    running: Running, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    async with running.http() as http:
        answer = await http.request(method, path, content=body)
        told = answer.json()
        assert (answer.status_code, told["code"], told["status"]) == (status, code, status), told
        assert answer.headers["content-type"] == "application/problem+json"
        assert told["type"] == f"urn:statefork:error:{code}"
        assert (await http.post(ACTIONS, json={"action": PUT})).json()["value"] == "tea"


async def test_what_an_event_stream_goes_on_behind_is_a_position(running: Running) -> None:
    async with running.http() as http:
        answer = await http.get("/events", headers={"Last-Event-ID": "x"})
        assert (answer.status_code, answer.json()["code"]) == (400, "usage")


async def test_a_client_that_leaves_in_mid_step_loses_nothing(running: Running) -> None:
    body = json.dumps({"action": WAIT}).encode()
    behind = await running.engine.journal.flush()
    with anyio.fail_after(PATIENCE_S):
        client = running.raw(head("POST", ACTIONS, f"Content-Length: {len(body)}") + body)
        begun = await until(running.engine, ActionBegun, behind, env="a")
        client.close()
        await anyio.wait_all_tasks_blocked()
        running.world.signal("bell")
        ended = await until(running.engine, ActionEnded, begun.position, env="a")
        assert getattr(ended.event, "outcome", "") == "ok"
        async with running.client() as engine:
            assert (await engine.act("a", PUT))["number"] == getattr(ended.event, "number", 0) + 1
            assert (await engine.audit())["clean"]


async def test_who_reads_nothing_is_cut_and_harms_nobody(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STALL_S", 2.0)
    heard: list[int] = []

    async def listen() -> None:
        async with running.client() as engine:
            async for event in engine.events(env="a", after=0):
                heard.append(event["position"])  # noqa: PERF401 -- it is looked at meanwhile

    async with anyio.create_task_group() as tasks, running.client() as engine, running.http() as http:
        tasks.start_soon(listen)
        with running.raw(head("GET", "/events?after=0"), buffer_bytes=4096):
            with anyio.fail_after(PATIENCE_S):
                for _ in range(24):
                    await engine.act("a", {**PUT, "value": "x" * 65_536})
                while "statefork_event_clients 1.0" not in (await http.get("/metrics")).text:
                    pass
                last = (await running.engine.journal.flush(), await running.engine.journal.head())[1]
                while not heard or heard[-1] < last:
                    await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert heard == sorted(set(heard))


async def test_bodies_that_do_not_come_are_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "STALL_S", 0.05)
    with anyio.fail_after(PATIENCE_S), running.raw(head("POST", ACTIONS, "Content-Length: 99") + b"{") as client:
        told = await anyio.to_thread.run_sync(_all_of, client)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"usage"' in told


async def test_heads_that_do_not_end_are_cut(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(PATIENCE_S):
        with running.raw(b"GET /v1/status HTTP/1.1\r\nX: " + b"x" * 100_000) as client:
            assert (await anyio.to_thread.run_sync(_all_of, client)).startswith(b"HTTP/1.1 4")
        with running.raw(b"\0\0\r\n\r\n") as client:
            assert (await anyio.to_thread.run_sync(_all_of, client)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "said",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        head(
            "GET", "/health", "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAAAAAAA"
        ),
    ],
)
async def test_no_other_version_is_spoken(running: Running, said: bytes) -> None:
    """In HTTP/2 a client that does not read is held up where no deadline is."""
    with anyio.fail_after(PATIENCE_S), running.raw(said) as client:
        client.shutdown(socket.SHUT_WR)
        assert (await anyio.to_thread.run_sync(_all_of, client)).startswith((b"HTTP/1.1 4", b"HTTP/1.1 2"))


def _all_of(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while more := client.recv(65_536):
            found += more
    except ConnectionResetError:
        pass
    return found


async def test_more_connections_than_there_may_be_are_turned_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 1)
    async with running.http() as http:
        with anyio.fail_after(PATIENCE_S):  # until those of the tests before have ended; then it holds the only place
            while (await http.get("/health")).status_code != 200:
                pass
        with running.raw(head("GET", "/v1/status")) as client, anyio.fail_after(PATIENCE_S):
            assert (await anyio.to_thread.run_sync(_all_of, client)).startswith(b"HTTP/1.1 503 ")
        assert (await http.get("/health")).status_code == 200


async def test_more_listeners_than_there_may_be_are_told(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CLIENTS_MAX", 0)
    async with running.http() as http:
        answer = await http.get("/events")
        assert (answer.status_code, answer.json()["code"]) == (429, "limit_reached")


async def test_what_nobody_waits_for_is_given_up(running: Running) -> None:
    """A replay of which nothing is to stay; it halts on an action that waits."""
    env = running.engine.environment("a")
    running.world.signal("bell")
    await env.act(WAIT)
    asked = json.dumps({"ref": "a", "task": "t", "steps": True}).encode()
    with anyio.fail_after(PATIENCE_S):
        client = running.raw(head("POST", "/v1/replays", f"Content-Length: {len(asked)}") + asked)
        await until(running.engine, ActionBegun, env="a-r1")
        client.close()
        while running.engine.capsules["a-r1"].phase.value != "retired":
            await anyio.lowlevel.checkpoint()


async def test_the_end_does_not_wait_for_listeners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "GRACE_S", 0.1)
    with anyio.fail_after(PATIENCE_S):
        async with http_kit.serving(tmp_path) as running:
            client = running.raw(head("GET", "/events?after=0"))
            assert (await anyio.to_thread.run_sync(client.recv, 12)) == b"HTTP/1.1 200"
        client.close()


async def test_who_hurries_the_end_does_not_wait_for_actions(tmp_path: Path) -> None:
    body = json.dumps({"action": WAIT}).encode()
    with anyio.fail_after(serving.GRACE_S - 1):
        async with http_kit.serving(tmp_path) as running:
            await running.engine.create("a")
            client = running.raw(head("POST", ACTIONS, f"Content-Length: {len(body)}") + body)
            await until(running.engine, ActionBegun, env="a")
            running.engine.kernel.hurry()
        client.close()


def test_an_answer_that_does_not_come_is_told_as_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", token="t") as client, pytest.raises(EngineLost):
            client.snapshot("a")
        thread.join()
    with Client(f"http://127.0.0.1:{listener_port()}", token="t") as client, pytest.raises(NoEngine):
        client.snapshot("a")


def listener_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
