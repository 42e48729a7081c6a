"""What a lease costs: its cancel scope included, contended, and among many environments.

    ./dev bench leases [--environments N] [--json]

Microseconds from asking to having given back, one after the other; medians and 99th percentiles of one run. ``scope``
is a cancel scope alone, as the event loop has it and through AnyIO: what a lease can't cost less than. ``gate`` is a
lease on a context that is at hand, ``kernel`` one by the environment's name, as an action takes it; ``child`` one under
it.
``64 tasks`` take leases on one environment at once: the time of all over their number. ``of N environments``: one of N
bound environments at random, and the same with one environment alone, in turns. Resources are in memory and the journal
is not written: what is measured is the engine's own part.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import trio
from _machine import machine

from statefork.adapters.resources.memory import MemoryResource, MemoryWorld, Options
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import Kernel, Settings, open_kernel
from statefork.engine.leases import Gate, lease_ids
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.memory import open_memory_journal
from statefork.journal.values import Identity

ROUNDS = 20_000
TASKS = 64
CONTRACT = """
[contract]
name = "notes"

[resources.db]
adapter = "memory"

[resources.media]
adapter = "memory"

[resources.app]
adapter = "memory"
durability = "derived"
depends_on = ["db", "media"]

[resources.page]
adapter = "memory"
depends_on = ["app"]
"""


@asynccontextmanager
async def engine(environments: int) -> AsyncIterator[Kernel]:
    """A kernel with so many environments, all bound."""
    contract, world = parse_contract(CONTRACT, "notes.toml"), MemoryWorld()
    async with open_memory_journal() as journal:
        resources = {
            name: MemoryResource(name, contract.convert(name, Options), world, journal.id) for name in contract.order
        }
        async with open_kernel(
            journal=journal, contract=contract, resources=resources, blobs=MemoryBlobs(), settings=Settings(close_s=600)
        ) as kernel:
            for number in range(environments):
                await kernel.create(f"e{number}")
            yield kernel


async def each(work: Callable[[], Awaitable[None]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median and 99th percentile of one after the other."""
    for _ in range(rounds // 10):
        await work()
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1e6)
    cuts = statistics.quantiles(took, n=100)
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)}


async def scopes(backend: str) -> dict[str, Any]:
    async def through_anyio() -> None:
        with anyio.CancelScope():  # noqa: ASYNC100 - it is what is measured
            pass

    async def native() -> None:
        with trio.CancelScope():  # noqa: ASYNC100 - as above
            pass

    found = {"scope through AnyIO": await each(through_anyio)}
    return found if backend != "trio" else {"scope of Trio": await each(native), **found}


async def uncontended() -> dict[str, Any]:
    gate = Gate(Identity(env="e0", epoch=1, activation=1), 1, lease_ids(), time.monotonic)
    gate.open(1)

    async def at_hand() -> None:
        async with gate.lease("client", "lease"):
            pass

    async with engine(1) as kernel:

        async def by_name() -> None:
            async with kernel.lease("e0", "client"):
                pass

        found = {"gate": await each(at_hand), "kernel": await each(by_name)}
        async with kernel.lease("e0", "parent"):
            found["child"] = await each(by_name)
        return found


async def contended(tasks: int) -> float:
    """Microseconds per lease when so many tasks take them at once on one environment, each with a pause inside."""
    rounds = ROUNDS // tasks

    async with engine(1) as kernel:

        async def client() -> None:
            for _ in range(rounds):
                async with kernel.lease("e0", "client"):
                    await anyio.lowlevel.checkpoint()

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(client)
        return (time.perf_counter() - began) / (rounds * tasks) * 1e6


async def crowd(environments: int) -> dict[str, Any]:
    """A lease on one of many, and on one alone, in turns."""
    chance = random.Random(0)

    async def one_of(kernel: Kernel, names: list[str]) -> None:
        async with kernel.lease(chance.choice(names), "client"):
            pass

    async with engine(1) as alone, engine(environments) as many:
        names = [f"e{number}" for number in range(environments)]
        found: dict[str, list[dict[str, float]]] = {"alone": [], "many": []}
        for _ in range(3):
            found["alone"].append(await each(partial(one_of, alone, ["e0"]), ROUNDS // 4))
            found["many"].append(await each(partial(one_of, many, names), ROUNDS // 4))
    return {
        name: {key: statistics.median(one[key] for one in rounds) for key in ("p50", "p99")}
        for name, rounds in found.items()
    }


async def measure(backend: str, environments: int) -> dict[str, Any]:
    one, many = await contended(1), await contended(TASKS)
    crowded = await crowd(environments)
    return {
        **await scopes(backend),
        **await uncontended(),
        "1 task": {"each": round(one, 1)},
        f"{TASKS} tasks": {"each": round(many, 1), "times 1 task": round(many / one, 2)},
        "alone": crowded["alone"],
        f"of {environments} environments": crowded["many"],
    }


def main() -> None:
    """Measure on both event loops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {
        backend: anyio.run(measure, backend, asked.environments, backend=backend) for backend in ("trio", "asyncio")
    }
    if asked.json:
        print(json.dumps({"machine": machine(), "unit": "microseconds", **found}, indent=2))
        return
    print(machine())
    for backend, table in found.items():
        print(f"{backend}, microseconds")
        for name, values in table.items():
            told = "  ".join(f"{key} {value:g}" for key, value in values.items())
            print(f"  {name:28}{told}")


if __name__ == "__main__":
    main()
