"""What the gateway and the shared web server cost: a server, asked directly and through its doors, side by side.

    ./dev bench gateway [--json] [--rounds N] [--seconds S] [--idle N] [--parts P] [--profile]

*The least server* answers 1 KiB from memory, so that what is measured is the gateway: its parsing, the kernel's lease
and a connection to the server for each request. Added milliseconds are differences of percentiles of one run in which
every place was asked in turn, one request at a time. Then requests a second of the engine on one core, and both again
while connections rest.

*The shop* is the shared Django server of the example world, with a lease that is always granted: ``ready`` touches
every store and no application code, ``page`` is the catalogue; ``proxy`` is what a browser uses, ``site`` a base URL.
``bind`` and ``probe`` are what binding one more environment costs; the server's memory is told with one and sixteen.

What the figures don't cover: TLS, bodies of requests (what writes is journaled besides), responses of megabytes,
WebSockets, and clients that are slow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import psutil
from _gateway_load import WARM, asked, compared
from _gateway_load import measure as under_load
from _machine import machine

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
    conditions = ""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def carry(self, name: str) -> AbstractContextManager[None]:
        """Nobody asks."""
        return nullcontext()

    def spoil(self, fault: str) -> None:
        """Not expected here."""
        raise RuntimeError(fault)


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


async def the_shop(rounds: int, tmp: Path) -> dict[str, Any]:
    """All figures of the shop."""
    base = cached(lambda fraction, text: None)
    admission = AlwaysAdmitted()
    found: dict[str, Any] = {}
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
                place = {"name": "site", "address": site, "target": "/catalogue/", "host": site, "lasts": False}
                await asked(op="latency", places=[place], rounds=1, warm=0)
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
    ticket = [f"{TICKET_HEADER}: {sign(key, identity)}"]
    found = {}
    for name, path in (("ready", READY_PATH), ("page", "/catalogue/")):
        places: list[dict[str, Any]] = [
            {"name": "direct", "address": direct, "target": path, "host": HOST, "headers": ticket},
            {"name": "proxy", "address": through, "target": f"http://{HOST}{path}", "host": HOST},
            {"name": "site", "address": site, "target": path, "host": site},
        ]
        places = [{**place, "lasts": False} for place in places]  # the server ends some connections with an answer
        found[f"{name}_ms"] = compared(await asked(op="latency", places=places, rounds=rounds, warm=WARM), "direct")
    return found


async def run(given: argparse.Namespace, tmp: Path) -> dict[str, Any]:
    """Everything, one after the other."""
    result: dict[str, Any] = {"machine": machine(), "rounds": given.rounds}
    if "least" in given.parts:
        result["least"] = await under_load(tmp, given.rounds, given.seconds, given.idle, profile=given.profile)
    if "shop" in given.parts:
        result["shop"] = await the_shop(max(2, given.rounds // 10), tmp)
    return result


def show(found: dict[str, Any], indent: str = "") -> None:
    """Lines for people."""
    for key, value in found.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            print(f"{indent}{key}")
            show(value, indent + "  ")
        elif isinstance(value, dict):
            print(f"{indent}{key}: " + ", ".join(f"{name} {one}" for name, one in value.items()))
        elif isinstance(value, list):
            print(f"{indent}{key}", *value, sep=f"\n{indent}  ")
        else:
            print(f"{indent}{key}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=2000, help="requests to each place; a tenth of it to the shop")
    parser.add_argument("--seconds", type=float, default=8.0, help="of load")
    parser.add_argument("--idle", type=int, default=1000, help="connections that rest")
    parser.add_argument("--parts", default="least,shop", help="one of them, or both")
    parser.add_argument("--profile", action="store_true", help="also tell what the time under load goes to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        results = anyio.run(run, given, Path(folder), backend="trio")
    if given.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
