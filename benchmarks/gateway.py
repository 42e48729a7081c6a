"""What the gateway and the shared web server cost: the shop, asked directly and through its doors.

    ./dev bench gateway [--json] [--rounds N]

Latencies are medians in milliseconds, one request at a time, each on a connection of its own: ``direct`` to the server
with a ticket, ``proxy`` and ``site`` through the gateway, with a lease that is always granted. ``ready`` touches every
store and no application code, ``page`` is the catalogue. ``bind`` and ``probe`` are what binding one more
environment costs; the server's memory is told with one and with sixteen of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import psutil

from statefork.adapters.interfaces.gateway import open_gateway
from statefork.adapters.resources.web import Options, make
from statefork.adapters.resources.web.edge import READY_PATH
from statefork.engine.ports import AdmissionRequest, Needs, Owner, RequestLease, Route, Services
from statefork.engine.tickets import TICKET_HEADER, sign
from statefork.journal.values import Binding, Identity
from statefork.worlds.shop.build import cached

STORES = {"database": "db", "media": "media", "search": "search"}
HOST = "shop.example"


class Granted:
    """A lease that nothing revokes."""

    id = 1
    generation = 1
    root = True

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def carry(self, name: str) -> AbstractContextManager[None]:
        """Nobody asks."""
        return nullcontext()


class AlwaysAdmitted:
    """An admission without a kernel, so that the gateway alone is measured."""

    def __init__(self) -> None:
        self.present: dict[str, Identity] = {}

    @asynccontextmanager
    async def admit(self, request: AdmissionRequest) -> AsyncIterator[RequestLease]:
        """Yes."""
        yield Granted(request.identity or self.present[request.env])

    def refuse(self, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
        """Not expected here."""
        raise RuntimeError(f"{request.url}: {status} {code}: {detail}")

    def record_input(
        self, lease: RequestLease, *, method: str, url: str, headers: Mapping[str, str], body: bytes, status: int
    ) -> None:
        """Nothing is kept."""


async def ask(place: str, target: str, host: str, extra: str = "") -> int:
    """One request to address:port on a connection of its own; the number of bytes that came back."""
    address, _, port = place.partition(":")
    async with await anyio.connect_tcp(address, int(port)) as stream:
        await stream.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{extra}\r\n".encode())
        size, first = 0, b""
        try:
            while True:
                data = await stream.receive()
                first = first or data
                size += len(data)
        except anyio.EndOfStream:
            pass
    if not first.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")):
        raise RuntimeError(f"{target}: {first[:200]!r}")
    return size


async def median_ms(rounds: int, work: Callable[[], Awaitable[Any]]) -> float:
    """The median over ``rounds``, after one that does not count."""
    await work()
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(took), 2)


def needs(identity: Identity, root: Path) -> Needs:
    """Bindings of copies of the shop's base."""
    paths = {"db": root / "shop.sqlite3", "media": root / "media", "search": root / "search"}
    return Needs(
        bindings={
            name: Binding(
                journal="j", resource=name, adapter="copy", branch="b", identity=identity, address={"path": str(path)}
            )
            for name, path in paths.items()
        }
    )


async def measure(rounds: int, tmp: Path) -> dict[str, Any]:
    """All figures."""
    base = cached(lambda fraction, text: None)
    admission = AlwaysAdmitted()
    found: dict[str, Any] = {"rounds": rounds, "cpus": os.cpu_count() or 0, "python": platform.python_version()}
    async with open_gateway(admission) as gateway:
        services = Services(state=tmp / "state", journal="j", blobs=None, gateway=gateway, base_dir=tmp)
        options = Options(stack="django", settings="statefork.worlds.shop.settings", host=HOST, stores=STORES)
        web = make("shop", options, services)
        began = time.perf_counter()
        await web.start()
        found["server_start_ms"] = round((time.perf_counter() - began) * 1000)
        try:
            bind_ms, probe_ms = [], []
            sealed = await web.provision()
            for number in range(16):
                env = f"bench-{number}"
                identity = admission.present[env] = Identity(env=env, epoch=1, activation=1)
                await anyio.to_thread.run_sync(shutil.copytree, base, tmp / env)
                branch = await web.branch(sealed, Owner(env=env, epoch=1))
                began = time.perf_counter()
                binding = await web.bind(branch, identity, needs(identity, tmp / env))
                bound = time.perf_counter()
                await web.probe(binding)
                bind_ms.append((bound - began) * 1000)
                probe_ms.append((time.perf_counter() - bound) * 1000)
                site = str(binding.address["base_url"]).removeprefix("http://")
                await ask(site, "/catalogue/", site)
                if number in (0, 15):
                    memory = psutil.Process(web.server.pid).memory_full_info()
                    found[f"server_pss_mib_with_{number + 1}"] = round(memory.pss / 2**20, 1)
            found |= {
                "bind_ms": round(statistics.median(bind_ms), 2),
                "probe_ms": round(statistics.median(probe_ms), 2),
            }
            found |= await latencies(rounds, gateway, web, admission.present["bench-0"])
        finally:
            await web.stop()
    return found


async def latencies(rounds: int, gateway: Any, web: Any, identity: Identity) -> dict[str, Any]:
    """Direct, through a proxy door, through a site door."""
    key, port = web.server.ticket_key, web.server.port
    route = Route(host=HOST, upstream_host="127.0.0.1", upstream_port=port, ticket_key=key)
    proxy = await gateway.open_proxy(identity, (route,))
    door = await gateway.open_site(identity.env, route)
    direct, through, site = f"127.0.0.1:{port}", f"{proxy.host}:{proxy.port}", f"{door.host}:{door.port}"
    ticket = f"{TICKET_HEADER}: {sign(key, identity)}\r\n"
    found = {}
    for name, path in (("ready", READY_PATH), ("page", "/catalogue/")):
        found[f"{name}_direct_ms"] = await median_ms(rounds, lambda path=path: ask(direct, path, HOST, ticket))
        found[f"{name}_proxy_ms"] = await median_ms(
            rounds, lambda path=path: ask(through, f"http://{HOST}{path}", HOST)
        )
        found[f"{name}_site_ms"] = await median_ms(rounds, lambda path=path: ask(site, path, site))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        results = anyio.run(measure, options.rounds, Path(folder), backend="trio")
    if options.json:
        print(json.dumps(results))
        return
    for key, value in results.items():
        print(f"{key:32} {value}")


if __name__ == "__main__":
    main()
