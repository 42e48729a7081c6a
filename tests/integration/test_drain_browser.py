"""Drain proved with a real Chromium: everything that is open at the freeze, or arrives in it, comes from a real page.

A service worker controls the page and polls: one long poll is open at the freeze, and it goes on writing short ones,
each a note with a number of its own. The page reads a slow response, has an event stream and a WebSocket at rest,
started a server thread, sends a beacon in the freeze, and at a switch another one when it is left. So what an
environment holds afterwards can be compared with what the page was told. Each guard is taken away in turn, and then
the proof must fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest

from statefork.adapters.interfaces.gateway import messages
from statefork.adapters.resources.browser.resource import BrowserResource
from statefork.adapters.resources.browser.session import Session
from statefork.adapters.resources.web import WebResource
from statefork.engine import admission, leases
from statefork.engine.kernel import DrainPolicy
from statefork.engine.staging import Context
from statefork.journal.events import (
    GenerationPublished,
    InputRecorded,
    LeaseRevoked,
    RequestRefused,
    TransitionDrained,
)
from statefork.journal.values import Binding
from tests.integration.drain_kit import (
    Scene,
    check_held,
    fails_without,
    no_names,
    nothing,
    nothing_at_once,
    open_scene,
    uncarried,
    unleased,
)
from tests.integration.web_kit import build_base

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

SITE = "http://notes.localhost"  # a secure context, as service workers need it, also over plain HTTP
SOCKET = "http://socket.localhost/ws"
BROWSER = """
[resources.browser]
adapter = "browser"
depends_on = ["site"]
start = "http://notes.localhost/pages/desk.html"
screenshots = false
"""
POLL = f"{SITE}/add/?by=worker"
BEACON = f"{SITE}/add/?by=beacon"
PAGEHIDE = f"{SITE}/add/?by=pagehide"
POLL_MS = 25


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("notes") / "base")


class Desk(Scene):
    """A scene whose environment has a browser. Looks into its page are raw: no action of the environment."""

    host = "notes.localhost"
    socket_host = "socket.localhost"
    patience_s = 20.0  # how long to wait for what must come

    @property
    def browser(self) -> BrowserResource:
        found = self.kernel.resources["browser"]
        assert isinstance(found, BrowserResource)
        return found

    def context(self) -> Any:
        """Playwright's object for the environment's present context."""
        entry = self.browser._open[self.kernel.bindings("a")["browser"].branch]
        assert entry.session is not None
        return entry.session.live.context

    async def call(self, method: Any, *args: Any) -> Any:
        """Call a method of one of Playwright's objects."""
        return await self.browser._thread.call(method, *args)

    async def run(self, expression: str, argument: Any = None) -> Any:
        """Evaluate in the page."""
        return await self.call(self.context().pages[0].evaluate, expression, argument)

    async def until(self, expression: str) -> None:
        """Wait until it is true in the page."""
        await self.call(self.context().pages[0].wait_for_function, expression)

    def before_closing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let the next closing of a browser context wait for something."""
        unbind = self.browser.unbind

        async def wait_and_unbind(binding: Binding) -> None:
            self.browser.unbind = unbind  # type: ignore[method-assign]  # this one object's
            try:
                with anyio.move_on_after(self.patience_s):
                    await work()
            finally:
                await unbind(binding)

        self.browser.unbind = wait_and_unbind  # type: ignore[method-assign]  # this one object's

    async def workers(self) -> dict[str, list[str]]:
        """Addresses of the running service workers by browser context, by Chromium's own account."""

        async def ask() -> dict[str, list[str]]:
            assert self.browser._host is not None
            session = await (await self.browser._host.ready()).new_browser_cdp_session()
            found: dict[str, list[str]] = {}
            for target in (await session.send("Target.getTargets"))["targetInfos"]:
                if target["type"] == "service_worker":
                    found.setdefault(target["browserContextId"], []).append(target["url"])
            await session.detach()
            return found

        return await self.browser._thread.call(ask)

    async def fate(self, url: str, *, after: int, passes: bool = True) -> int:
        """Wait for what the journal says of an address after a position: the status of its refusal, or 0: it passed.

        With ``passes=False`` only refusals count: what was admitted before a freeze is told when it ends.
        """
        with anyio.fail_after(self.patience_s):
            async with self.journal.subscribe(after=after) as records:
                async for record in records:
                    event = record.event
                    if isinstance(event, RequestRefused) and event.url == url:
                        return event.status
                    if passes and isinstance(event, InputRecorded) and event.url == url:
                        return 0
        raise AssertionError("the journal was closed")

    async def now(self) -> int:
        """The journal's position now."""
        await self.journal.flush()
        return await self.journal.head()


async def open_everything(desk: Desk) -> None:
    """Whatever can be open at a freeze, by the page and its worker; each has shown that it lives."""

    def address(path: str, pipe: str, **more: str) -> str:
        return f"{path}?{urlencode({'pipe': desk.pipe(pipe), **more})}"

    await desk.run("hireWorker()")
    await desk.run("url => { readSlowly(url) }", address("/stream/", "slow"))
    await desk.run("listen", address("/events/", "events"))
    await desk.run("talk", SOCKET.replace("http", "ws"))
    await desk.run("wait => tellWorker({ wait })", address("/poll/", "poll"))
    later = address("/later/", "thread", title="by the thread")
    assert await desk.run("async url => (await fetch(url)).text()", later) == "started"
    await desk.run("poll => tellWorker({ poll })", POLL_MS)
    await desk.until("seen.slow && seen.long && seen.events.includes('open')")
    await desk.until("seen.socket.includes('echo before') && seen.polls.some(([, status]) => status === 200)")


async def continuing(desk: Desk) -> None:
    """A snapshot waits for what is open, holds what is at rest, refuses what arrives; then page and worker go on."""
    await open_everything(desk)
    asked = desk.server_asked()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(desk.kernel.snapshot, "a", drain=DrainPolicy(deadline_s=20)))
        frozen = await desk.until_frozen()
        assert await desk.run("beacon", "by the beacon")
        assert await desk.fate(BEACON, after=frozen) == 503
        assert await desk.fate(POLL, after=frozen, passes=False) == 503
        await desk.run("socket.send('during')")
        desk.write_line("slow")
        desk.write_line("poll")
        await asked.wait()
        desk.write_line("thread")
    moment = desk.kernel.world.capsule("a").moment
    await desk.until("seen.slow.endsWith('end') && seen.long.endsWith('end')")
    await desk.until("seen.socket.includes('echo during')")
    assert desk.messages.generations == {"before": 1, "during": 2}, "a message passed between freeze and publish"
    desk.write_line("events", "after")
    await desk.until("seen.events.at(-1).startsWith('after')")
    await desk.until("seen.polls.some(([, status]) => status === 503) && seen.polls.at(-1)[1] === 200")

    polls = await desk.run("seen.polls")
    assert [title for title, _ in polls] == [f"poll {number:05}" for number in range(1, len(polls) + 1)]
    shape = [status for status, _ in groupby(polls, key=lambda poll: poll[1])]
    assert shape == [200, 503, 200]
    sealed, refused, _ = (list(group) for _, group in groupby(polls, key=lambda poll: poll[1]))

    (drained,) = await desk.events(TransitionDrained)
    expected = {
        "site: thread mailer": "ended",
        f"GET {SITE}/stream/": "ended",
        f"GET {SITE}/poll/": "ended",
        f"event stream {SITE}/events/": "held",
        f"WebSocket {SOCKET}": "held",
    }
    check_held(drained.held, expected)
    refusals = await desk.events(RequestRefused)
    assert Counter((event.method, event.url, event.status) for event in refusals) == {
        ("POST", POLL, 503): len(refused),
        ("POST", BEACON, 503): 1,
    }
    await desk.kernel.restore("a", moment, drain=DrainPolicy(then="revoke"))
    acknowledged = [title for title, _ in sealed]
    assert desk.titles() == ["by the thread", "first", *acknowledged], "sealed is what was acknowledged before it"
    assert await desk.run("navigator.serviceWorker.controller.scriptURL") == f"{SITE}/pages/worker.js"
    assert [len(urls) for urls in (await desk.workers()).values()] == [1], "the old worker is gone, and a new one there"


async def switching(desk: Desk) -> None:
    """A reset cuts the old page and worker off; what they send on until they are closed is refused by name."""
    old = desk.kernel.bindings("a")["browser"].identity
    await open_everything(desk)
    assert await desk.run("beacon", "abandoned")
    await desk.run("sayGoodbye", "by a page that is left")
    said: dict[str, int] = {}
    page = desk.context().pages[0]

    async def last_words() -> None:
        """The new generation is published, the old page still there."""
        published = await desk.now()
        await desk.call(page.wait_for_function, "seen.slow.endsWith('cut') && seen.long.endsWith('cut')")
        await desk.call(page.evaluate, "socket.send('late')")
        said["message"] = await desk.fate(SOCKET, after=published)
        await desk.call(page.evaluate, "beacon('by a late beacon')")
        said["beacon"] = await desk.fate(BEACON, after=published)
        await desk.call(page.goto, "about:blank")
        said["pagehide"] = await desk.fate(PAGEHIDE, after=published)
        said["poll"] = await desk.fate(POLL, after=await desk.now())

    desk.before_closing(last_words)
    await desk.kernel.reset("a", drain=DrainPolicy(deadline_s=0.1, then="revoke", join_s=desk.patience_s / 4))
    assert said == {"message": 409, "beacon": 409, "pagehide": 409, "poll": 409}
    desk.write_line("thread")

    drained = (await desk.events(TransitionDrained))[-1]
    expected = {
        "site: thread mailer": "fenced",
        f"GET {SITE}/stream/": "revoked",
        f"GET {SITE}/poll/": "revoked",
        f"event stream {SITE}/events/": "held",
        f"WebSocket {SOCKET}": "held",
    }
    check_held(drained.held, expected, others=("ended", "revoked", "fenced"))
    revoked = {event.holder.split("?")[0] for event in await desk.events(LeaseRevoked)}
    assert revoked >= {f"GET {SITE}/stream/", f"GET {SITE}/poll/"}
    refusals = await desk.events(RequestRefused)
    assert {(event.epoch, event.activation) for event in refusals} == {(old.epoch, old.activation)}
    assert {event.epoch for event in await desk.events(InputRecorded)} == {old.epoch}
    assert desk.messages == ["before"]
    assert len(await desk.events(GenerationPublished)) == 2
    assert desk.titles() == ["first"]
    assert await desk.run("async () => (await (await fetch('/notes/')).json()).titles") == ["first"]
    assert await desk.run("navigator.serviceWorker.getRegistrations().then(all => all.length)") == 0
    assert await desk.workers() == {}, "the old worker is gone"


@pytest.mark.parametrize("proof", [continuing, switching])
async def test_everything_a_page_has_open_is_accounted_for(base: Path, tmp_path: Path, proof: Any) -> None:
    async with open_scene(Desk, base, tmp_path, more=BROWSER) as desk:
        try:
            with anyio.fail_after(60):
                await proof(desk)
        finally:
            desk.let_go()


# --- the same, with one guard away --------------------------------------------------------------------------------


async def _whoever_serves(self: admission.Admitted) -> Context:
    """The context of the environment, whichever activation the door belongs to."""
    identity = self._request.identity
    assert identity is not None
    live = self._conductor.live(identity.env)
    contexts = [context for context in (live.context, live.staged) if context is not None]
    return next((context for context in contexts if context.identity == identity), contexts[0])


GUARDS: dict[str, tuple[Any, str, Any, Any]] = {
    "a frozen gate grants no root": (leases.Gate, "_check_open", nothing, continuing),
    "a drain waits for leases": (leases.Gate, "idle", nothing_at_once, continuing),
    "a drain asks the server what still runs": (WebResource, "pending", no_names, continuing),
    "messages take leases": (messages, "deliver", unleased, continuing),
    "carried connections are named": (leases.Gate, "carry", uncarried, continuing),
    "refusals are journaled": (admission, "refuse", nothing, continuing),
    "a door leads to its own activation": (admission.Admitted, "_context", _whoever_serves, switching),
    "leases are revoked": (leases.Gate, "revoke_all", lambda self, reason: [], switching),
    "stragglers are named": (WebResource, "terminate", no_names, switching),
    "an old context is closed": (Session, "close", nothing_at_once, switching),
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_proof_fails_without_the_guard(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    async with open_scene(Desk, base, tmp_path, more=BROWSER) as desk:
        desk.patience_s = 3.0
        failed = await fails_without(desk, GUARDS[guard], monkeypatch, 20)
    assert failed, f"the proof passes without: {guard}"
