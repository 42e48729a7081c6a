"""The gateway with an engine behind it, under load: what it adds to a request, how many it carries, what rests.

The engine (with the gateway, its leases and its journal) is alone on one core, the least server and the clients on
another, if there is one. Each environment has a server of its own behind a site door of its own.
"""

from __future__ import annotations

import cProfile
import io
import json
import os
import pstats
import statistics
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import open_engine

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = 5
CLIENTS = 16
WARM = 50
_LINE_BYTES_MAX = 64 << 20
CONTRACT = """
[contract]
name = "least"

[resources.least]
adapter = "process"
command = {command}
host = "least.example"
"""


def cores() -> tuple[int | None, int | None]:
    """The engine's, and everybody else's; none where there is but one."""
    there = sorted(os.sched_getaffinity(0))
    return (there[0], there[1]) if len(there) > 1 else (None, None)


def percentiles(took_ms: list[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


def compared(took_ms: dict[str, list[float]], direct: str) -> dict[str, Any]:
    """Percentiles of each place, and what the others have more than ``direct``."""
    found: dict[str, Any] = {name: percentiles(times) for name, times in took_ms.items()}
    for name in took_ms:
        if name != direct:
            found[name] |= {f"added_{cut}": round(found[name][cut] - found[direct][cut], 3) for cut in ("p50", "p99")}
    return found


@asynccontextmanager
async def client(**told: Any) -> AsyncIterator[tuple[Process, BufferedByteReceiveStream]]:
    """A process of clients that has been told what to do."""
    command = [sys.executable, str(HERE / "_gateway_client.py")]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(json.dumps({"core": cores()[1], **told}).encode() + b"\n")
        yield process, BufferedByteReceiveStream(process.stdout)


async def asked(**told: Any) -> Any:
    """What such a process found."""
    async with client(**told) as (_, said):
        return json.loads(await said.receive_until(b"\n", _LINE_BYTES_MAX))


@contextmanager
def alone_on_core(core: int | None) -> Iterator[None]:
    """This process, with the threads that it starts, for the while."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def door_of(env: Environment, name: str = "") -> dict[str, Any]:
    """An environment's site door, as a place to ask."""
    address = env.base_url("least").removeprefix("http://")
    return {"name": name or env.name, "address": address, "target": "/", "host": address}


async def measure(tmp: Path, rounds: int, seconds: float, idle: int, *, profile: bool) -> dict[str, Any]:
    """All figures of the load."""
    engine_core, core = cores()
    upstream = [sys.executable, "-I", "-S", str(HERE / "_gateway_upstream.py"), "{port}", str(core or 0)]
    (tmp / "least.toml").write_text(CONTRACT.format(command=json.dumps(upstream)))
    with alone_on_core(engine_core):
        async with open_engine(tmp / "least.toml", state=tmp / "state") as engine:
            envs = [await engine.create(f"env-{number}") for number in range(ENVIRONMENTS)]
            found: dict[str, Any] = {"latency_ms": await latencies(envs[0], rounds)}
            found["load"] = await loaded(envs, seconds)
            found["idle"] = await rested(envs, rounds, seconds, idle)
            if profile:
                found["profile"] = await profiled(envs, seconds)
    return found


async def latencies(env: Environment, rounds: int) -> dict[str, Any]:
    """Over connections that last, and over one for each request; each beside the same server without a gateway."""
    direct = f"127.0.0.1:{env.bindings['least'].address['port']}"
    found = {}
    for name, lasts in (("lasting", True), ("new", False)):
        places = [
            {"name": "direct", "address": direct, "target": "/", "host": "least.example", "lasts": lasts},
            {**door_of(env, "gateway"), "lasts": lasts},
        ]
        took = await asked(op="latency", places=places, rounds=rounds, warm=WARM)
        found[name] = compared(took, "direct")
    return found


async def loaded(envs: list[Environment], seconds: float) -> dict[str, float]:
    """As many requests as there is room for, over some connections that are never at rest."""
    process = psutil.Process()
    began = process.cpu_times()
    found = await asked(op="load", places=[door_of(env) for env in envs], clients=CLIENTS, seconds=seconds)
    ended = process.cpu_times()
    cpu_s = ended.user + ended.system - began.user - began.system
    return {
        "clients": CLIENTS,
        "requests_per_s": round(found["answers"] / found["seconds"]),
        "requests_per_cpu_s": round(found["answers"] / cpu_s),
        "cpu_ms_per_request": round(cpu_s * 1000 / found["answers"], 3),
    }


async def rested(envs: list[Environment], rounds: int, seconds: float, idle: int) -> dict[str, Any]:
    """The same again while connections rest, which are used once more afterwards."""
    process = psutil.Process()
    before = process.memory_full_info().uss
    places = [door_of(env) for env in envs]
    async with client(op="idle", places=places, clients=idle) as (resting, said):
        await said.receive_until(b"\n", _LINE_BYTES_MAX)
        held = sum(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(resting.pid).net_connections("tcp"))
        grown = process.memory_full_info().uss - before
        found: dict[str, Any] = {"connections": held, "kib_each": round(grown / 1024 / idle, 1)}
        found["latency_ms"] = (await latencies(envs[0], rounds))["lasting"]
        found["load"] = await loaded(envs, seconds)
        assert resting.stdin is not None
        await resting.stdin.send(b"\n")
        found |= json.loads(await said.receive_until(b"\n", _LINE_BYTES_MAX))
        return found


async def profiled(envs: list[Environment], seconds: float) -> list[str]:
    """Where the event loop's time goes under load: the functions that take most themselves. Costs time of its own."""
    profile = cProfile.Profile()
    profile.enable()
    await loaded(envs, seconds)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
    return text.getvalue().splitlines()
