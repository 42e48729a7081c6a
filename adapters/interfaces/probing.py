"""What of chance and time comes out alike: a page of ours in two browsers, under the same conditions.

Both are told the same seeds and clocks, as a recording and its re-execution are. What a page reads is compared source
by source after each action, and what an agent sees besides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import anyio

from statefork.engine.ports import Needs, Owner, Services
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Conditions, Identity, Json, Value

BEGAN = 1_900_000_000.0  # Unix seconds: a day in 2030, which no clock says by itself
AGENT = ("accessibility tree", "screenshot")
_LATER = "#later"
_FIRED = "() => document.querySelector('[data-source=setTimeout]') !== null"
_READ = """() => Object.fromEntries(
    [...document.querySelectorAll("[data-source]")].map((entry) => [entry.dataset.source, entry.textContent]))"""


class Compared(Value, frozen=True, kw_only=True):
    """One source under one kind of determinism: after how many actions it was equal in both browsers, of how many."""

    source: str
    equal: int
    actions: int


Seen = dict[str, str]


async def compare(determinism: str, folder: Path) -> tuple[Compared, ...]:
    """Carry out the same actions in two browsers. Raises MissingDependency, RuntimeDied."""
    runs: list[list[Seen]] = [[], []]
    with _served() as url:
        async with anyio.create_task_group() as tasks:
            for number, run in enumerate(runs):
                tasks.start_soon(_run, determinism, folder / f"{determinism}-{number}", url, run)
    sources = dict.fromkeys(source for seen in (*runs[0], *runs[1]) for source in seen)
    pairs = list(zip(*runs, strict=True))
    return tuple(
        Compared(
            source=source,
            equal=sum(one.get(source) == two.get(source) for one, two in pairs if source in one or source in two),
            actions=sum(source in one or source in two for one, two in pairs),
        )
        for source in sorted(sources, key=lambda source: (source in AGENT, source))
    )


def _actions(url: str) -> list[Mapping[str, Json]]:
    draw: dict[str, Json] = {"type": "click", "selector": "#draw"}
    note: dict[str, Json] = {"type": "fill", "selector": "#note", "value": "twice"}
    later: dict[str, Json] = {"type": "click", "selector": _LATER}
    return [{"type": "goto", "url": url}, draw, note, later, draw, {"type": "reload"}]


async def _run(determinism: str, state: Path, url: str, run: list[Seen]) -> None:
    from statefork.adapters.resources.browser import Options
    from statefork.adapters.resources.browser.resource import BrowserResource

    await anyio.Path(state).mkdir(parents=True)
    blobs = MemoryBlobs()
    services = Services(state=state, journal="probe", blobs=blobs, base_dir=state, determinism=determinism)
    browser = BrowserResource("browser", Options(), services)
    await browser.start()
    try:
        branch = await browser.branch(await browser.provision(), Owner(env="probe", epoch=1))
        identity = Identity(env="probe", epoch=1, activation=1)
        binding = await browser.bind(branch, identity, Needs(conditions=_conditions(0)))
        for number, action in enumerate(_actions(url), 1):
            await browser.set_conditions(binding, _conditions(number))
            seen = await browser.act(binding, action)
            async with browser.raw(binding) as page:
                if action.get("selector") == _LATER and determinism != "strict":  # there its clock is led
                    # What a timer draws is drawn by whatever action it falls into, and shifts what that draws itself.
                    # When timers fire between actions is not recorded, so it must not be left to the machine here.
                    await page.wait_for_function(_FIRED)
                read = dict(await page.evaluate(_READ))
            run.append(read | dict(zip(AGENT, (seen.snapshot, seen.screenshot), strict=True)))
    finally:
        await browser.stop()


def _conditions(number: int) -> Conditions:
    """Of the action with a number: ten seconds after the one before."""
    return Conditions(seed=f"{number:032x}", now=BEGAN + 10 * number)


@contextmanager
def _served() -> Iterator[str]:
    """The page's address on this machine, while it is served."""
    body = resources.files(__package__).joinpath("probe.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body if self.path == "/" else b"")

        def log_message(self, *_: Any) -> None:
            """Tell nobody."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
