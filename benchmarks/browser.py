"""What the browser costs: a context, an action, a capture, a restore, and the memory of each environment.

    ./dev bench browser [--json] [--rounds N]

One Chromium, a small local site, no gateway in between. Each round opens a fresh profile, acts, takes a cut as a
snapshot does (quiesce, mark, seal, mark, thaw) and restores it in a second context, once with one tab and once with
three; times are medians in milliseconds. ``pss_mib`` is the proportional memory of driver and Chromium together,
``pss_per_environment_mib`` what each of several live environments with one page adds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
from _machine import machine

from statefork.adapters.resources.browser import Options
from statefork.adapters.resources.browser import actions as a
from statefork.adapters.resources.browser.resource import BrowserResource
from statefork.engine.memory import process_pss
from statefork.engine.ports import Needs, Owner, Services
from statefork.journal.values import Binding, Branch, Identity, Sealed

ENVIRONMENTS = 6
ROWS = 150

PAGE = (
    "<!doctype html><title>shop</title><form><input id=q name=q><select name=s><option>a<option>b</select></form>"
    + "".join(
        f"<article><h2>Thing {n}</h2><a href='/thing/{n}'>See</a> <button>Buy {n}</button></article>"
        for n in range(ROWS)
    )
    + "<script>localStorage.visits = 1 + Number(localStorage.visits ?? 0); sessionStorage.s = 'x'.repeat(2000)</script>"
).encode()


class Blobs:
    """Digests only: what the disk costs is another benchmark's."""

    def put(self, data: bytes) -> str:
        """The digest."""
        return hashlib.sha256(data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One page at every address."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """The page, and a cookie."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.send_header("Set-Cookie", "session=one; Path=/; HttpOnly")
        self.end_headers()
        self.wfile.write(PAGE)


@contextmanager
def site() -> Iterator[str]:
    """The site's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Bench:
    """The resource, and the times of what was done with it."""

    def __init__(self, resource: BrowserResource) -> None:
        self.resource = resource
        self.times: dict[str, list[float]] = defaultdict(list)
        self._activation = 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long the body took."""
        began = time.perf_counter()
        yield
        self.times[name].append((time.perf_counter() - began) * 1000)

    async def bind(self, sealed: Sealed, name: str) -> tuple[Branch, Binding]:
        """A branch of a version, bound."""
        self._activation += 1
        env = f"env-{self._activation}"
        branch = await self.resource.branch(sealed, Owner(env=env, epoch=1))
        with self.timed(name):
            binding = await self.resource.bind(branch, Identity(env=env, epoch=1, activation=self._activation), Needs())
        return branch, binding

    async def cut(self, branch: Branch, name: str) -> Sealed:
        """What a continuing snapshot does."""
        with self.timed(name):
            await self.resource.quiesce(branch)
            await self.resource.write_mark(branch)
            sealed = await self.resource.seal(branch)
            await self.resource.write_mark(branch)
            await self.resource.thaw(branch)
        return sealed

    async def round(self, base: Sealed, url: str) -> None:
        """Everything once."""
        branch, binding = await self.bind(base, "bind_fresh_ms")
        for name, action in (
            ("act_goto_ms", a.Goto(f"{url}/list")),
            ("act_fill_ms", a.Fill("#q", value=f"cup {self._activation}")),
            ("act_click_link_ms", a.Click("article:nth-of-type(3) a")),
            ("act_back_ms", a.Back()),
            ("act_scroll_ms", a.Scroll(dy=600)),
        ):
            with self.timed(name):
                await self.resource.act(binding, action.to_json())
        with self.timed("observe_ms"):
            await self.resource.observe(binding)
        for tabs in (1, 3):
            for _ in range(tabs - 1):
                with self.timed("act_new_tab_ms"):
                    await self.resource.act(binding, a.NewTab(f"{url}/tab").to_json())
            sealed = await self.cut(branch, f"cut_{tabs}_tabs_ms")
            fork, bound = await self.bind(sealed, f"restore_{tabs}_tabs_ms")
            with self.timed("unbind_ms"):
                await self.resource.unbind(bound)
            await self.resource.discard(fork)
        await self.resource.discard(branch)


@asynccontextmanager
async def resource(state: Path) -> AsyncIterator[tuple[BrowserResource, float]]:
    """The resource, and how long its start took, in milliseconds."""
    services = Services(state=state, journal="bench", blobs=Blobs(), base_dir=state)
    made = BrowserResource("browser", Options(), services)
    began = time.perf_counter()
    await made.start()
    try:
        yield made, (time.perf_counter() - began) * 1000
    finally:
        await made.stop()


def pss_mib(made: BrowserResource) -> float:
    """Memory of all the runtime's processes."""
    return sum(process_pss(pid) for pid in made.process_ids()) / 2**20


async def run(rounds: int) -> dict[str, object]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="statefork-browser-") as name, site() as url:
        async with resource(Path(name)) as (made, start_ms):
            bench = Bench(made)
            base = await made.provision()
            for _ in range(rounds):
                await bench.round(base, url)
            empty = pss_mib(made)
            for _ in range(ENVIRONMENTS):
                _, binding = await bench.bind(base, "ignored")
                await made.act(binding, a.Goto(f"{url}/list").to_json())
            full = pss_mib(made)
            medians = {
                key: round(statistics.median(times), 1) for key, times in bench.times.items() if key.endswith("_ms")
            }
            return {
                "machine": machine(),
                "chromium": made.strategy().name,
                "rounds": rounds,
                "start_ms": round(start_ms, 1),
                **medians,
                "pss_mib": round(empty, 1),
                "pss_per_environment_mib": round((full - empty) / ENVIRONMENTS, 1),
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions of which the medians are taken")
    arguments = parser.parse_args()
    result = anyio.run(run, arguments.rounds, backend="trio")
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    for key, value in result.items():
        print(f"{key:<26} {value}")


if __name__ == "__main__":
    main()
