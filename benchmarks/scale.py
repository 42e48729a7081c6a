"""What size costs: opening long journals and many environments, parked environments, long chains, many lives.

    ./dev bench scale [--json] [--events N] [--environments N]

All with the real journal and real files and sqlite stores, in a temporary directory beside the present one. Journals
are written by the engine's own ledger, environments by the engine's own ``create``; every opening is timed in a process
of its own, from the state directory to an engine that serves. ``bare`` is a loop that reads the same rows, decodes the
events and recomputes the hashes, in the same process as the rebuild that it is compared with. ``parked_bytes`` is what
the memory (PSS) of a process with N parked environments has more than that of one with none, divided by N.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
from _machine import machine

from statefork.adapters.interfaces.registry import make_resources
from statefork.engine.commands import Activate, Begin, Park, Publish
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import Kernel, Settings, open_kernel
from statefork.engine.memory import process_pss
from statefork.engine.ports import Services
from statefork.engine.world import World
from statefork.journal.codec import GENESIS, Codec, link
from statefork.journal.events import ActionBegun, ActionEnded
from statefork.journal.reading import open_sqlite_reader
from statefork.journal.sqlite import SqliteJournal
from statefork.journal.store import JOURNAL_NAME, open_state
from statefork.replay.rebuild import rebuild

CONTRACT = """
[contract]
name = "scale"
[resources.db]
adapter = "sqlite"
base = "db.sqlite3"
[resources.media]
adapter = "files"
base = "media"
"""
EVENTS = 1_000_000
ENVIRONMENTS = 100_000
ACTED = 100  # environments whose actions make the long journal
AT_ONCE = 64
SNAPSHOTS = 200
PAIRS = 20  # of the last snapshots, each beside a 5th one
LIVES = 1_000
FEW, MANY = 100, 10_000  # environments beside which a lease, an action and a snapshot are timed
ROUNDS = 50
REBUILT = 200_000  # events of the long journal that are rebuilt and read bare


def make_bases(folder: Path) -> None:
    """A small shop: one table, eight pictures."""
    media = folder / "media"
    media.mkdir(parents=True)
    for number in range(8):
        (media / f"{number}.bin").write_bytes(bytes([number]) * 4096)
    with sqlite3.connect(folder / "db.sqlite3") as connection:
        connection.execute("CREATE TABLE basket (product TEXT, pieces INTEGER)")
        connection.executemany("INSERT INTO basket VALUES (?, 0)", [(f"product {n}",) for n in range(200)])
    connection.close()


@asynccontextmanager
async def opened(state: Path, **settings: Any) -> AsyncIterator[tuple[Kernel, SqliteJournal]]:
    """An engine over a state directory, whose bases lie beside it."""
    bases = state.parent / "bases"
    if not bases.exists():
        make_bases(bases)
    contract = parse_contract(CONTRACT, "scale.toml")
    async with open_state(state, write=True) as opened_state:
        path, journal, blobs = opened_state.path, opened_state.journal, opened_state.blobs
        services = Services(state=path, journal=journal.id, blobs=blobs, base_dir=bases)
        async with open_kernel(
            journal=journal,
            contract=contract,
            resources=make_resources(contract, services),
            blobs=blobs,
            settings=Settings(**settings),
        ) as kernel:
            yield kernel, journal


async def side_by_side(count: int, work: Callable[[int], Any]) -> None:
    """Run ``work`` for every number, some at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(some)


async def make_parked(state: Path, count: int) -> float:
    """Environments that were never activated; seconds for each."""
    async with opened(state) as (kernel, _):
        start = time.perf_counter()
        await side_by_side(count, lambda number: kernel.create(f"env-{number}", activate=False))
        return (time.perf_counter() - start) / count


async def make_long(state: Path, events: int) -> None:
    """A journal of so many events: environments that are activated, act, and are parked with a snapshot."""
    async with opened(state) as (kernel, journal):
        await side_by_side(ACTED, lambda number: kernel.create(f"env-{number}", activate=False))
        ledger, at = kernel._ledger, time.time()
        while (left := events - await journal.flush()) > 0:
            for number in range(ACTED):
                env = f"env-{number}"
                capsule = kernel.environments[env]
                stay = {"env": env, "generation": capsule.generation, "epoch": 1, "activation": capsule.activation + 1}
                await ledger.commit(Activate(env=env, at=at, activation=capsule.activation + 1))
                for action in range(1, min(left // (2 * ACTED), 200) + 1):
                    step = {**stay, "at": at, "lease": action, "number": capsule.actions + action}
                    ledger.ride(env, ActionBegun(**step, action={"type": "click", "role": "button", "name": "Add"}))
                    ledger.ride(env, ActionEnded(**step, outcome="ok", elapsed_ms=80.0))
                begin = Begin(env=env, at=at, transition=ledger.name(env), op="snapshot")
                publish = Publish(env=env, at=at, manifest=capsule.head.manifest, required=frozenset(("db", "media")))
                await ledger.commit(begin, publish, Park(env=env, at=at))


async def open_once(state: Path) -> dict[str, float]:
    """In a process of its own: how long it takes until the engine serves, and what it costs then."""
    start = time.perf_counter()
    async with opened(state) as (kernel, _):
        seconds = time.perf_counter() - start
        gc.collect()
        pss = process_pss(os.getpid())
        start = time.perf_counter()
        await kernel.activate(next(iter(kernel.environments)))
        first = time.perf_counter() - start
    return {"open_s": round(seconds, 3), "pss_bytes": pss, "first_activation_ms": round(first * 1e3, 1)}


def in_child(state: Path) -> dict[str, float]:
    """``open_once`` there."""
    result = subprocess.run(
        [sys.executable, __file__, "--open", str(state)], stdout=subprocess.PIPE, check=True, text=True
    )
    answer: dict[str, float] = json.loads(result.stdout)
    return answer


def opening(state: Path) -> dict[str, float]:
    """With the checkpoint, and without it."""
    quick = in_child(state)
    (checkpoint,) = state.glob("*.checkpoint")  # too short a journal has none
    size = checkpoint.stat().st_size
    checkpoint.unlink()
    whole = in_child(state)
    return {
        **quick,
        "without_checkpoint_s": whole["open_s"],
        "times_quicker": round(whole["open_s"] / quick["open_s"], 1),
        "checkpoint_mb": round(size / 1e6, 1),
        "journal_mb": round((state / JOURNAL_NAME).stat().st_size / 1e6, 1),
    }


async def rebuilding(state: Path) -> dict[str, float]:
    """Folding events with all checks, against reading, decoding and hashing the same rows."""
    path = state / JOURNAL_NAME
    ratios, rates = [], []
    for _ in range(3):
        start = time.perf_counter()
        bare_loop(path, REBUILT)
        bare = time.perf_counter() - start
        async with open_sqlite_reader(path) as reader:
            start = time.perf_counter()
            world: World = await rebuild(reader, position=REBUILT)
            took = time.perf_counter() - start
            assert world.environments
        ratios.append(bare / took)
        rates.append(REBUILT / took)
    return {"events_per_s": round(statistics.median(rates)), "of_bare": round(statistics.median(ratios), 2)}


def bare_loop(path: Path, events: int) -> None:
    """What no reader that checks can go without."""
    connection = sqlite3.connect(path)
    codec, heads = Codec(), dict[str, str]()
    for stream, number, event, digest in connection.execute(
        "SELECT stream, version, event, hash FROM events ORDER BY position LIMIT ?", (events,)
    ):
        data = event.encode()
        codec.decode(data)
        assert link(heads.get(stream, GENESIS), stream, number, data) == digest
        heads[stream] = digest
    connection.close()


def write(kernel: Kernel, env: str, number: int) -> None:
    """One row and one file, as an application would."""
    bindings = kernel.bindings(env)
    connection = sqlite3.connect(str(bindings["db"].address["path"]), isolation_level=None)
    connection.execute("INSERT INTO basket VALUES (?, 1)", (f"round {number}",))
    connection.close()
    (Path(str(bindings["media"].address["path"])) / f"{number % 8}.bin").write_bytes(b"%d" % number * 500)


async def chain(folder: Path) -> dict[str, Any]:
    """Snapshots of one environment in a row, with writes between: its last ones beside the 5th of fresh ones."""
    took: dict[str, list[float]] = {"fifth": [], "last": []}
    costs: list[tuple[int, int]] = []
    async with opened(folder / "chain") as (kernel, _):

        async def snapshots(env: str, count: int, timed: str = "") -> None:
            for number in range(count):
                write(kernel, env, number)
                start = time.perf_counter()
                await kernel.snapshot(env)
                if timed:
                    took[timed].append(time.perf_counter() - start)

        await kernel.create("old")
        for number in range(SNAPSHOTS // 10 - PAIRS // 10):
            await snapshots("old", 10)
            if number in (0, SNAPSHOTS // 10 - PAIRS // 10 - 1):
                costs.append((process_pss(os.getpid()), len(os.listdir("/proc/self/fd"))))  # noqa: PTH208 - names only
        for number in range(PAIRS):
            await kernel.create(f"young-{number}")
            await snapshots(f"young-{number}", 4)
            await snapshots(f"young-{number}", 1, "fifth")
            await snapshots("old", 1, "last")
            await kernel.retire(f"young-{number}")
        published = kernel.environments["old"].generation
    fifth, last = statistics.median(took["fifth"]), statistics.median(took["last"])
    return {
        "snapshots": published - 1,
        "fifth_ms": round(fifth * 1e3, 2),
        "last_ms": round(last * 1e3, 2),
        "ratio": round(last / fifth, 2),
        "kib_per_snapshot": round((costs[1][0] - costs[0][0]) / 1024 / (SNAPSHOTS - PAIRS - 10), 1),
        "descriptors_more": costs[1][1] - costs[0][1],
    }


def counts(state: Path) -> dict[str, int]:
    """What lives must not leave behind."""
    me = psutil.Process()
    return {
        "processes": len(me.children(recursive=True)),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names only
        "threads": me.num_threads(),
        "mounts": Path("/proc/self/mountinfo").read_text().count(f" {state.resolve()}/"),
        "ports": len(me.net_connections()),
        "files": sum(1 for _ in (state / "resources").rglob("*")),
    }


async def lives(folder: Path) -> dict[str, Any]:
    """Environments that are created, written and retired one after the other."""
    state = folder / "lives"
    async with opened(state) as (kernel, _):
        for number in range(LIVES + 20):
            if number == 20:
                before, memory = counts(state), process_pss(os.getpid())
                start = time.perf_counter()
            await kernel.create(f"env-{number}")
            write(kernel, f"env-{number}", number)
            await kernel.retire(f"env-{number}")
        took = time.perf_counter() - start
        after = counts(state)
        more = {name: after[name] - before[name] for name in after}
        grown = (process_pss(os.getpid()) - memory) / LIVES
    return {"ms_each": round(took / LIVES * 1e3, 2), "more": more, "kib_each": round(grown / 1024, 2)}


async def beside(folder: Path, count: int) -> dict[str, float]:
    """What one environment's operations cost while so many others exist."""
    took: dict[str, list[float]] = {"lease_us": [], "snapshot_ms": [], "park_and_activate_ms": [], "create_ms": []}
    async with opened(folder / f"beside-{count}") as (kernel, journal):
        await side_by_side(count, lambda number: kernel.create(f"env-{number}", activate=False))
        await kernel.create("shop")

        async def timed(name: str, work: Any) -> None:
            start = time.perf_counter()
            await work
            took[name].append(time.perf_counter() - start)

        async def lease() -> None:
            async with kernel.lease("shop", "somebody"):
                pass

        async def again() -> None:
            await kernel.park("shop")
            await kernel.activate("shop")

        for number in range(ROUNDS):
            write(kernel, "shop", number)
            await timed("lease_us", lease())
            await timed("snapshot_ms", kernel.snapshot("shop"))
            await timed("park_and_activate_ms", again())
            await timed("create_ms", kernel.create(f"new-{number}", activate=False))
        commits = journal.stats.commits
        await kernel.snapshot("shop")
        commits = journal.stats.commits - commits
    found = {name: statistics.median(times) * (1e6 if name.endswith("us") else 1e3) for name, times in took.items()}
    return {**{name: round(value, 2) for name, value in found.items()}, "commits_of_a_snapshot": commits}


def measure(events: int, environments: int) -> dict[str, Any]:
    """All of it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=Path.cwd()))
    results: dict[str, Any] = {"machine": machine()}
    try:
        anyio.run(make_long, folder / "long", events, backend="trio")
        results[f"open {events} events"] = opening(folder / "long")
        results["rebuild"] = anyio.run(rebuilding, folder / "long", backend="trio")
        shutil.rmtree(folder / "long")
        anyio.run(make_parked, folder / "none", 1, backend="trio")
        nothing = in_child(folder / "none")["pss_bytes"]
        for count in sorted({environments // 10, environments}):
            state = folder / f"parked-{count}"
            each = anyio.run(make_parked, state, count, backend="trio")
            found = opening(state)
            found["parked_bytes"] = round((found["pss_bytes"] - nothing) / count)
            found["create_ms"] = round(each * 1e3, 3)
            results[f"open {count} parked"] = found
            shutil.rmtree(state)
        results["200 snapshots"] = anyio.run(chain, folder, backend="trio")
        results["1000 lives"] = anyio.run(lives, folder, backend="trio")
        for count in (FEW, MANY):
            results[f"beside {count}"] = anyio.run(beside, folder, count, backend="trio")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--environments", type=int, default=ENVIRONMENTS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(anyio.run(open_once, arguments.open, backend="trio")))
        return
    results = measure(arguments.events, arguments.environments)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for what, found in results.items():
        print(f"{what}: {found if isinstance(found, str) else ', '.join(f'{k} {v}' for k, v in found.items())}")


if __name__ == "__main__":
    main()
