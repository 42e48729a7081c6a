"""What a page of one environment tries in the Chromium that all share: it reaches its world and nothing else.

The browser, the gateway and the engine are real; whatever a page asks for must not arrive at a port that nobody may
reach. ``docs/security.md`` lists every attempt.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

import statefork
from statefork.actions import Goto
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.browser.chromium import find_chromium, is_headless_shell
from statefork.engine.errors import InvalidAction
from statefork.journal.events import ActionBegun, RequestRefused
from tests.contract.process_kit import SERVER
from tests.integration.fences_kit import forbidden

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

CONTRACT = """
[contract]
name = "paged"
[resources.site]
adapter = "process"
command = {command}
base = "base"
host = "site.example"
ready = "http /ready"
[resources.browser]
adapter = "browser"
depends_on = ["site"]
start = "http://site.example/keys/page"
screenshots = false
"""
PAGE = "<!doctype html><html><head><title>page</title></head><body>a page</body></html>"
ASK = """async (urls) => {
  const came = {};
  for (const url of urls) {
    try { await fetch(url, {mode: 'no-cors', signal: AbortSignal.timeout(5000)}); came[url] = 'an answer'; }
    catch (error) { came[url] = 'none'; }
  }
  return came;
}"""
TALK = """async (url) => await new Promise(resolve => {
  const socket = new WebSocket(url);
  socket.onopen = () => resolve('open');
  socket.onclose = () => resolve('closed');
})"""
LOOK_INTO = """async (url) => await new Promise(resolve => {
  const frame = document.createElement('iframe');
  frame.onload = () => {
    try { resolve(frame.contentDocument.body.innerText) } catch { resolve('not to be read') }
  };
  setTimeout(() => resolve('nothing came'), 1000);
  frame.src = url;
  document.body.append(frame);
})"""
CALL = """async (port) => {
  const call = new RTCPeerConnection({iceServers: [{urls: `stun:127.0.0.1:${port}`}]});
  call.createDataChannel('x');
  const done = new Promise(resolve => {
    call.onicegatheringstatechange = () => call.iceGatheringState === 'complete' && resolve();
  });
  await call.setLocalDescription();
  await done;
}"""
LEAVE = """async (mark) => {
  document.cookie = `mark=${mark}; path=/`;
  localStorage.setItem('mark', mark);
  sessionStorage.setItem('mark', mark);
  await new Promise((resolve, reject) => {
    const opening = indexedDB.open('marks', 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore('marks').put(mark, 'mark');
    opening.onsuccess = resolve;
    opening.onerror = reject;
  });
}"""
FIND = """async () => [
  document.cookie, localStorage.getItem('mark'), sessionStorage.getItem('mark'),
  (await indexedDB.databases()).map(found => found.name).join(),
].filter(found => found)"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One Chromium, environments ``a`` and ``b``."""
    folder = tmp_path_factory.mktemp("paged")
    (folder / "base").mkdir()
    (folder / "base" / "page").write_text(PAGE)
    command = json.dumps([sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"])
    (folder / "paged.toml").write_text(CONTRACT.format(command=command))
    async with statefork.open_engine(folder / "paged.toml", state=folder / "state") as engine:
        for name in ("a", "b"):
            await engine.create(name)
        yield engine
    assert statefork.audit(folder / "state").clean


async def refused(engine: Engine) -> list[RequestRefused]:
    await engine.journal.flush()
    found = [r.event async for r in engine.journal.read() if isinstance(r.event, RequestRefused)]
    assert {event.env for event in found} <= {"a"}
    return found


async def acts(engine: Engine) -> int:
    """How many actions the journal has begun."""
    await engine.journal.flush()
    return len([r async for r in engine.journal.read() if isinstance(r.event, ActionBegun)])


async def in_page(env: Environment, script: str, argument: Any = None) -> Any:
    async with env.page() as page:
        return await page.evaluate(script, argument)


async def sibling_goes_on(engine: Engine) -> None:
    assert "a page" in (await engine.environment("b").act(Goto("http://site.example/keys/page"))).text


async def test_what_a_page_fetches_from_elsewhere_does_not_arrive(engine: Engine) -> None:
    a, b = engine.environment("a"), engine.environment("b")
    with forbidden() as place:
        numbers = ("127.0.0.1", "[::1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0")
        hosts = (*numbers, "localhost", "x.localhost")
        urls = [f"http://{host}:{place.port}/" for host in hosts]
        urls += [f"{b.base_url()}/keys/page", f"http://127.0.0.1:{b.bindings['browser'].address['port']}/"]
        urls += [f"http://127.0.0.1:{b.bindings['site'].address['port']}/keys/page", "http://169.254.169.254/latest/"]
        before = len(await refused(engine))
        came = await in_page(a, ASK, urls)
        assert not place.visited()
    told = (await refused(engine))[before:]
    assert {event.code for event in told} <= {"unknown_host", "bad_request"}
    assert len(told) + list(came.values()).count("none") >= len(urls), "each was refused by the door, or by Chromium"
    assert any("169.254.169.254" in event.detail for event in told)
    await sibling_goes_on(engine)


async def test_a_websocket_to_elsewhere_does_not_open(engine: Engine) -> None:
    a = engine.environment("a")
    with forbidden() as place:
        for url in (f"ws://127.0.0.1:{place.port}/", f"ws://localhost:{place.port}/", f"wss://127.0.0.1:{place.port}/"):
            assert await in_page(a, TALK, url) == "closed"
        assert not place.visited()
    assert (await refused(engine))[-1].code == "unknown_host"
    await sibling_goes_on(engine)


async def test_files_of_the_machine_are_no_pages(engine: Engine, tmp_path: Path) -> None:
    a = engine.environment("a")
    secret = tmp_path / "secret.html"
    secret.write_text("known to the machine alone")
    before = await acts(engine)
    for url in (secret.as_uri(), f"view-source:{secret.as_uri()}", "chrome://version/"):
        with pytest.raises(InvalidAction):
            await a.act(Goto(url))
    assert await acts(engine) == before, "it was no action"
    assert (await in_page(a, ASK, [secret.as_uri()])) == {secret.as_uri(): "none"}
    assert "known to the machine" not in await in_page(a, LOOK_INTO, secret.as_uri())
    await in_page(a, "(url) => { window.open(url) }", secret.as_uri())
    assert "known to the machine" not in (await a.observe()).text
    await sibling_goes_on(engine)


@pytest.mark.skipif(not is_headless_shell(find_chromium()), reason="full Chromium has no WebRTC here at all")
async def test_a_call_sends_nothing_past_the_proxy(engine: Engine) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.setblocking(False)
        with anyio.fail_after(30):
            await in_page(engine.environment("a"), CALL, ear.getsockname()[1])
        with pytest.raises(BlockingIOError):
            ear.recv(2048)
    await sibling_goes_on(engine)


async def test_what_a_page_keeps_no_page_of_a_sibling_finds(engine: Engine) -> None:
    a, b = engine.environment("a"), engine.environment("b")
    for env in (a, b):
        await env.act(Goto("http://site.example/keys/page"))
    await in_page(a, LEAVE, "of a")
    assert await in_page(a, FIND) == ["mark=of a", "of a", "of a", "marks"]
    assert await in_page(b, FIND) == []
    await sibling_goes_on(engine)


async def test_nobody_can_drive_the_browser_from_outside(engine: Engine) -> None:
    """Its tools for developers speak through a pipe of the engine's: there is no port to connect to."""
    resource: Any = engine.kernel.resources["browser"]
    processes = [psutil.Process(pid) for pid in resource.process_ids()]
    assert processes
    everything = {found.pid: found for one in processes for found in (one, *one.children(recursive=True))}
    listening = [
        (found.name(), connection.laddr)
        for found in everything.values()
        for connection in found.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == []
