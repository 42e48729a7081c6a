"""What a PostgreSQL database costs as an environment's state, against the copy that PostgreSQL itself offers.

    ./dev bench database [--scale N] [--rounds N] [--copies N] [--only KIND] [--accelerate] [--place DIR] [--json]

A database like pgbench's is made on the spot (``--scale 240``: 3.6 GB) and becomes the base of a contract. Then, round
after round, as a user calls them, journal included: ``create``; ``snapshot`` after five transactions; ``fork, live``
after five more; ``fork, historical`` of the snapshot; ``reset``. Between them, spread over the rounds, the same
database is copied by ``CREATE DATABASE ... STRATEGY FILE_COPY`` on the same server. All are medians in milliseconds, of
what the caller waits, and of the same until all of it is on the disk (a copy that fits into memory is quick, and keeps
the disk busy after); ``x`` is the copy's median over the operation's, in the same sense. The parts are what the engine
journals with each generation. Each operation begins when the pool is full, nothing waits to be removed, and nothing to
be written.

With the databases in a state store, of XFS and of btrfs (root, mkfs.xfs, mkfs.btrfs), and on the file system of
``--place`` as it is; the journal is on that one in each case. Where copies are whole, few rounds are made
(``--copies``). ``storage`` is what the databases' files take more for each created environment, and for each generation
of five transactions, an extent that several share counted once (see ``_allocated.py``). All of it is removed in the
end. What this leaves out, many branches and others that write meanwhile, is in ``branches.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from _allocated import allocated_bytes
from _database_scene import (
    BYTES_OF_SCALE,
    LOG_BYTES,
    clones,
    connect,
    kind_of,
    make_contract,
    transact,
)
from _machine import machine
from psycopg import sql

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.interfaces.store.kinds import KINDS, KindName
from statefork.adapters.interfaces.store.making import Wish, fault, init
from statefork.adapters.resources.postgres import PostgresResource
from statefork.adapters.resources.postgres.workshop import Workshop
from statefork.journal.events import GenerationPublished

SCALE = 240
COPIES_AT_ONCE = 9  # where nothing is shared: base, five branches, two versions, one that is being removed or made
WHOLE_COPIES_IN_POOL = 0
STORED = 10  # environments over which storage is measured
TRANSACTIONS = 5


class Bench:
    """One engine over the database, and the times of what was done with it."""

    def __init__(self, engine: Engine, scale: int) -> None:
        resource = engine.kernel.resources["db"]
        assert isinstance(resource, PostgresResource)
        self.engine = engine
        self.resource = resource
        self.scale = scale
        self.times_ms: dict[str, list[float]] = defaultdict(list)
        self.on_disk_ms: dict[str, list[float]] = defaultdict(list)
        self.parts_ms: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._written = 0

    async def settled(self) -> None:
        """Nothing is made in advance, removed or written behind what comes next."""
        workshop: Workshop = self.resource.backend.workshop
        await anyio.to_thread.run_sync(workshop.settle)
        await self.written_back()

    async def written_back(self) -> None:
        """Everything is on the disk."""
        await anyio.to_thread.run_sync(os.sync)

    @contextlib.asynccontextmanager
    async def clocked(self, what: str) -> AsyncIterator[None]:
        """Until the body's end, and until all of it is on the disk."""
        began = time.perf_counter()
        yield
        self.times_ms[what].append((time.perf_counter() - began) * 1000)
        await self.written_back()
        self.on_disk_ms[what].append((time.perf_counter() - began) * 1000)

    @contextlib.asynccontextmanager
    async def timed(self, what: str) -> AsyncIterator[None]:
        """Until the caller has its environment; then the parts, of every generation that was published for it."""
        await self.settled()
        after = await self.engine.journal.head()
        async with self.clocked(what):
            yield
        spans: dict[str, float] = defaultdict(float)
        async for recorded in self.engine.journal.read(after=after):
            if isinstance(recorded.event, GenerationPublished):
                for part, span in recorded.event.timings_ms.items():
                    spans[part] += span
        for part, span in spans.items():
            self.parts_ms[what][part].append(span)

    def write(self, env: Environment) -> None:
        """Five transactions of pgbench, on rows all over the database."""
        with connect(env) as connection:
            for _ in range(TRANSACTIONS):
                self._written += 1
                transact(connection, self._written, self.scale)

    async def written(self, env: Environment) -> None:
        """:meth:`write`, in a thread."""
        await anyio.to_thread.run_sync(self.write, env)

    async def round(self, number: int) -> None:
        """Each operation once."""
        engine = self.engine
        async with self.timed("create"):
            env = await engine.create(f"env-{number}")
        await self.written(env)
        async with self.timed("snapshot"):
            moment = await env.snapshot()
        await self.written(env)
        async with self.timed("fork, live"):
            (live,) = await engine.fork(env.name)
        async with self.timed("fork, historical"):
            (old,) = await engine.fork(moment)
        async with self.timed("reset"):
            await env.reset()
        for each in (live, old, env):
            await each.retire()
        await engine.gc()

    async def copy(self) -> None:
        """PostgreSQL's own way to the same: a whole copy of the base, by files."""
        await self.settled()
        base = await self.resource.provision()
        make = sql.SQL("CREATE DATABASE bench_copy TEMPLATE {} STRATEGY FILE_COPY").format(
            sql.Identifier(str(base.data["database"]))
        )
        admin = self.resource.backend.admin
        async with self.clocked("copy"):
            await anyio.to_thread.run_sync(admin.run, "SET file_copy_method = copy", make)
        await anyio.to_thread.run_sync(admin.run, "DROP DATABASE bench_copy")

    async def storage(self, place: Path) -> dict[str, float]:
        """MiB that the files take for each environment, and for each generation of five transactions."""

        def used() -> int:
            self.resource.backend.admin.run("CHECKPOINT")
            os.sync()
            return allocated_bytes(place)

        async def settled_use() -> int:
            await self.settled()
            return await anyio.to_thread.run_sync(used)

        before = await settled_use()
        envs = [await self.engine.create(f"stored-{number}") for number in range(STORED)]
        created = await settled_use()
        for env in envs:
            await self.written(env)
        wrote = await settled_use()
        for env in envs:
            await env.snapshot()
        sealed = await settled_use()
        for env in envs:
            await env.retire()
        mib = STORED << 20
        return {
            "environment_mib": round((created - before) / mib, 3),
            "writes_mib": round((wrote - created) / mib, 3),
            "generation_mib": round((sealed - wrote) / mib, 3),
        }


def wanted_bytes(scale: int) -> int:
    """What the databases need, all whole."""
    return COPIES_AT_ONCE * scale * BYTES_OF_SCALE + LOG_BYTES


def enough_room(place: Path, scale: int) -> None:
    """End where the disk would run full."""
    wanted = wanted_bytes(scale)
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise SystemExit(
            f"{place} has {free >> 30} GiB free, and scale {scale} wants {wanted >> 30}: see --scale, --place"
        )


async def measure(
    place: Path, kind: KindName | None, *, scale: int, rounds: int, copies: int, accelerate: bool
) -> dict[str, Any]:
    """All of it in a store of this kind, or without one. Without clones as many rounds as copies."""
    folder = place / "bench"
    light = kind is not None or clones(place) or scale * BYTES_OF_SCALE < LOG_BYTES // 16
    pool = 4 if light else WHOLE_COPIES_IN_POOL
    contract = make_contract(folder, scale, pool, accelerate=accelerate)
    if kind is not None:
        init(folder / "state", Wish(kind=kind, size_bytes=wanted_bytes(scale)), lambda _done, _doing: None)
    rounds = rounds if light else copies
    began = time.perf_counter()
    async with open_engine(contract, state=folder / "state") as engine:
        bench = Bench(engine, scale)
        await bench.resource.provision()
        imported = time.perf_counter() - began
        await bench.round(0)  # warms up
        bench.times_ms.clear()
        bench.on_disk_ms.clear()
        bench.parts_ms.clear()
        copied = 0
        for number in range(1, rounds + 1):
            await bench.round(number)
            if number * copies // rounds > copied:
                await bench.copy()
                copied += 1
        resources = folder / "state" / "resources"
        stored = await bench.storage(resources) if light else {}
        strategy = bench.resource.strategy()
        file_system = kind_of(resources)
    shutil.rmtree(folder)
    copy_ms = statistics.median(bench.times_ms["copy"])
    copy_on_disk_ms = statistics.median(bench.on_disk_ms["copy"])
    return {
        "file_system": file_system if kind is None else f"store ({file_system})",
        "strategy": f"{strategy.name}: {strategy.reason}",
        "import_s": round(imported, 1),
        "rounds": rounds,
        "pool": pool,
        "copy_ms": round(copy_ms, 1),
        "copy_on_disk_ms": round(copy_on_disk_ms, 1),
        "operations": {
            what: {
                "ms": round(statistics.median(spans), 2),
                "worst_ms": round(max(spans), 2),
                "times_faster": round(copy_ms / statistics.median(spans), 1),
                "on_disk_ms": round(statistics.median(bench.on_disk_ms[what]), 2),
                "times_faster_on_disk": round(copy_on_disk_ms / statistics.median(bench.on_disk_ms[what]), 1),
                "parts_ms": {
                    part: round(statistics.median(some), 2) for part, some in sorted(bench.parts_ms[what].items())
                },
            }
            for what, spans in bench.times_ms.items()
            if what != "copy"
        },
        "storage": stored,
    }


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """All places, one after the other."""
    scale = given.scale
    enough_room(given.place, scale)
    measured = functools.partial(
        measure, scale=scale, rounds=given.rounds, copies=given.copies, accelerate=given.accelerate
    )
    with tempfile.TemporaryDirectory(prefix="sf-db-", dir=given.place) as made:
        root = Path(made)
        result: dict[str, Any] = {"machine": machine(), "scale": scale, "bytes": scale * BYTES_OF_SCALE, "places": []}
        for name in KINDS:
            if given.only in (None, name) and not fault(KINDS[name]):
                result["places"].append(await measured(root, name))
        if given.only in (None, "here"):
            result["places"].append(await measured(root, None))
        return result


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print(f"{result['machine']}; about {result['bytes'] / 1e6:,.0f} MB")
    for place in result["places"]:
        print(f"\n{place['file_system']}: {place['strategy']}")
        print(
            f"  base made in {place['import_s']} s; rounds {place['rounds']}; "
            f"full copy {place['copy_ms']:,.1f} ms, on disk after {place['copy_on_disk_ms']:,.1f}"
        )
        for what, found in place["operations"].items():
            print(
                f"  {what:18}{found['ms']:10.1f} ms  worst {found['worst_ms']:10.1f}  x {found['times_faster']:8.1f}"
                f"   on disk after {found['on_disk_ms']:8.1f}  x {found['times_faster_on_disk']:8.1f}"
            )
            parts = (f"{part} {span:.1f}" for part, span in found["parts_ms"].items() if span >= 0.1)
            print(f"      {', '.join(parts)}")
        for what, size in place["storage"].items():
            print(f"  {what:18}{size:10.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=SCALE, help=f"pgbench's; {SCALE} makes 3.6 GB")
    parser.add_argument("--rounds", type=int, default=20, help="of clones; as many as copies where copies are whole")
    parser.add_argument("--copies", type=int, default=3, help="full copies by PostgreSQL among the rounds")
    parser.add_argument("--only", choices=("xfs", "btrfs", "here"), help="one of the three places")
    parser.add_argument("--accelerate", action="store_true", help="with the library that clones a file by one call")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="a directory on a large disk")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    result = anyio.run(run, given, backend="trio")
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
