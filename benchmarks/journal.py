"""What the journal costs: durable appends by 1, 8 and 64 appenders, riders, reading with its checks, and the fold.

    ./dev bench journal [--rounds N] [--no-peer] [--postgres ADDRESS] [--json]

In each round everything is measured once, one after the other, on fresh files beside the present directory, and the
ratios are of that round; what is reported are the medians of all rounds. ``bare`` is ``executemany`` on the same tables
with the same rows, hashes (computed) and batches (as many events as the journal's group commits had on average);
``bare_events`` leaves out the heads of the streams. ``bare_commit`` is a sqlite3 commit of the same row;
``bare_commit_whole`` encodes and hashes it first and writes the head as well. The peer is the PyPI package
``eventsourcing`` in an environment made for it: as many threads, one event each time. ``bare_read`` reads rows, decodes
and hashes them; ``rebuild`` is the journal's own read with all its checks and the engine's fold.

``fsyncs`` are counted by strace in a run of their own with ``fsyncs_appends`` appends, opening and closing included;
where there is no strace they are the group commits, each of which waits for the disk once. ``disk_fsyncs_per_s`` is
what the disk itself gives to somebody who writes 4 KiB and waits, over and over.

With ``--postgres`` the appends are also measured on a journal in that database, in a schema of its own that is dropped:
``postgres_appenders_N``; and ``postgres_engines_2``, two journals open on it with 32 appenders each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import _journal_peers as peers
import anyio
import psutil
from _machine import machine

from statefork.engine.world import World
from statefork.journal.codec import Codec
from statefork.journal.events import ActionBegun, ActionEnded, EnvironmentCreated, Event
from statefork.journal.log import Append
from statefork.journal.postgres import open_postgres_journal
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.values import Moment, Observation

APPENDERS = (1, 8, 64)
APPENDS = {1: 400, 8: 1_600, 64: 9_600}  # by so many appenders, in a round
PEER_SECONDS = 1.0
RIDERS = 20_000
READ_EVENTS = 60_000
READ_ENVIRONMENTS = 100
TRACED_APPENDS = 512

Row = dict[str, float]


def event(number: int) -> ActionEnded:
    """A small event: 170 bytes."""
    return ActionEnded(
        at=1.0, env="shop-1", generation=1, epoch=1, activation=1, lease=1, number=number, outcome="ok", elapsed_ms=80.0
    )


def median(values: Iterable[float], digits: int) -> float:
    """Rounded."""
    return round(statistics.median(values), digits)


def opened(place: Path | str) -> AbstractAsyncContextManager[Any]:
    """A journal in a file, or at an address, where others may write as well."""
    return open_sqlite_journal(place) if isinstance(place, Path) else open_postgres_journal(place, whole=False)


async def append_many(place: Path | str, appenders: int, appends: int, name: str = "act") -> Row:
    """Concurrent durable appends, each of one event to a stream of its own."""
    latencies: list[float] = []
    async with opened(place) as journal:
        before = journal.stats.commits
        start = time.perf_counter()

        async def appender(number: int) -> None:
            for _ in range(appends // appenders):
                began = time.perf_counter()
                await journal.append(Append(f"{name}/{number}", (event(1),)))
                latencies.append(time.perf_counter() - began)

        async with anyio.create_task_group() as group:
            for number in range(appenders):
                group.start_soon(appender, number)
        elapsed = time.perf_counter() - start
        commits = journal.stats.commits - before
    latencies.sort()
    return {
        "appends_per_s": len(latencies) / elapsed,
        "latency_ms_p50": latencies[len(latencies) // 2] * 1e3,
        "latency_ms_p99": latencies[len(latencies) * 99 // 100] * 1e3,
        "events_per_commit": len(latencies) / commits,
    }


async def ride(path: Path) -> Row:
    """What riding costs the one who rides, and how long the disk takes for all."""
    async with open_sqlite_journal(path) as journal:
        start = time.perf_counter()
        for number in range(RIDERS):
            journal.ride("act/a", event(number))
        queued = time.perf_counter()
        await journal.flush()
        flushed = time.perf_counter()
    return {"ride_us": (queued - start) / RIDERS * 1e6, "riders_per_s_to_disk": RIDERS / (flushed - start)}


async def rebuild(path: Path, events: int) -> Row:
    """Reading a journal of actions with every check, and the same with the engine's fold."""
    async with open_sqlite_journal(path) as journal:
        for number, one in enumerate(history(events)):
            journal.ride(*one)
            if number % 10_000 == 0:
                await journal.flush()
        head = await journal.flush()
        start = time.perf_counter()
        count = sum([1 async for _ in journal.read()])
        read = time.perf_counter()
        world = World()
        async for recorded in journal.read():
            world.apply(recorded.event)
        folded = time.perf_counter()
        assert count == head
        assert len(world.environments) == READ_ENVIRONMENTS
    return {"read_events_per_s": count / (read - start), "rebuild_events_per_s": count / (folded - read)}


def history(events: int) -> Iterable[tuple[str, Event]]:
    """A hundred environments and what is done in them, in turns: about 450 bytes for an action, in two events."""
    names = [f"shop-{number}" for number in range(READ_ENVIRONMENTS)]
    for name in names:
        origin = Moment(env=name, generation=1)
        yield f"env/{name}", EnvironmentCreated(at=1.0, env=name, contract="c" * 64, how="create", origin=origin)
    click = {"type": "click", "role": "button", "name": "Add to basket"}
    seen = Observation(digest="a" * 64, url="http://shop.example/basket", title="Basket", snapshot="b" * 64)
    for number in range((events - len(names)) // 2):
        name = names[number % len(names)]
        about = {"env": name, "generation": 1, "epoch": 1, "activation": 1, "lease": number}
        nth = number // len(names) + 1
        yield f"act/{name}", ActionBegun(at=1.0, number=nth, action=click, **about)
        yield (
            f"act/{name}",
            ActionEnded(at=1.0, number=nth, outcome="ok", elapsed_ms=80.0, observation=seen, **about),
        )


def disk_fsyncs_per_s(folder: Path) -> float:
    """The disk's own pace."""
    with (folder / "pace").open("wb", buffering=0) as file:
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < 0.5:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - start)


def traced_fsyncs(folder: Path, appenders: int) -> tuple[int, int] | None:
    """Fsyncs and appends of a traced run of this file, opening and closing included; None without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    trace = folder / f"trace-{appenders}"
    command = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace), sys.executable, __file__]
    result = subprocess.run([*command, "--traced", str(appenders), str(folder / f"traced-{appenders}")], check=False)
    if result.returncode:
        return None  # tracing is forbidden here
    return sum("sync(" in line for line in trace.read_text().splitlines()), TRACED_APPENDS


def one_round(folder: Path, python: Path | None) -> Row:
    """Everything once, with the ratios that belong together."""
    found: Row = {"disk_fsyncs_per_s": disk_fsyncs_per_s(folder)}

    def appended(appenders: int, backend: str) -> Row:
        path = folder / f"{backend}-{appenders}" / "journal.sqlite3"
        return anyio.run(append_many, path, appenders, APPENDS[appenders], backend=backend)

    data = Codec().encode(event(1))
    for appenders in APPENDERS:
        row = appended(appenders, "trio")
        found |= {f"appenders_{appenders}_{key}": value for key, value in row.items()}
    ours = row["appends_per_s"]
    batch = max(round(row["events_per_commit"]), 1)
    for name, heads in (("bare", True), ("bare_events", False)):
        bare = peers.bare_batches(folder / name / "x.sqlite3", data, APPENDS[64] // batch, batch, heads=heads)
        found |= {f"{name}_events_per_s": bare, f"appenders_64_to_{name}_ratio": ours / bare}
        if heads:
            asyncio = appended(64, "asyncio")
            found["asyncio_appenders_64_appends_per_s"] = asyncio["appends_per_s"]
            found["asyncio_appenders_64_to_bare_ratio"] = asyncio["appends_per_s"] / bare
    if python is not None:
        peer = peers.peer_appends(python, folder / "peer-files" / "x.sqlite3", 64, PEER_SECONDS, data)
        found |= {"eventsourcing_64_appends_per_s": peer, "appenders_64_to_eventsourcing_ratio": ours / peer}
    single = found["appenders_1_latency_ms_p50"]
    for name, whole in (("bare_commit", False), ("bare_commit_whole", True)):
        took = peers.bare_commits(folder / name / "x.sqlite3", event(1), APPENDS[1], whole=whole)
        found[f"{name}_ms_p50"] = statistics.median(took) * 1e3
        found[f"single_append_to_{name}_ratio"] = single / found[f"{name}_ms_p50"]
    found["single_append_asyncio_ms_p50"] = appended(1, "asyncio")["latency_ms_p50"]
    found |= anyio.run(ride, folder / "riders" / "journal.sqlite3", backend="trio")
    path = folder / "rebuild" / "journal.sqlite3"
    found |= anyio.run(rebuild, path, READ_EVENTS, backend="trio")
    found["bare_read_events_per_s"] = peers.bare_read(path)
    found["read_to_bare_read_ratio"] = found["read_events_per_s"] / found["bare_read_events_per_s"]
    return found


def postgres_round(address: str) -> Row:
    """Appends to a journal in a database, by one engine and by two."""
    import psycopg

    found: Row = {}
    for count, appenders in ((1, 1), (1, 8), (1, 64), (2, 64)):
        schema = f"bench_{os.getpid()}_{count}_{appenders}"
        place = f"{address}{'&' if '?' in address else '?'}schema={schema}"
        if count == 1:
            row = anyio.run(append_many, place, appenders, APPENDS[appenders], backend="trio")
            found |= {f"postgres_appenders_{appenders}_{key}": value for key, value in row.items()}
        else:
            anyio.run(append_many, place, 1, 1, backend="trio")  # makes the journal
            engines = [(str(number), place, appenders // count, APPENDS[appenders] // count) for number in range(count)]
            with ProcessPoolExecutor(count) as pool:
                rates = [row["appends_per_s"] for row in pool.map(_engine, engines)]
            found[f"postgres_engines_{count}_appends_per_s"] = sum(rates)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
    return found


def _engine(told: tuple[str, str, int, int]) -> Row:
    name, place, appenders, appends = told
    return anyio.run(append_many, place, appenders, appends, name, backend="trio")


def measure(rounds: int, *, with_peer: bool, postgres: str | None) -> dict[str, object]:
    """All of it, in a temporary directory beside the present one, so that it is on a real disk."""
    results: dict[str, object] = {"machine": machine(), "rounds": rounds, "load_1min_before": psutil.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix=".bench-journal-", dir=Path.cwd()) as name:
        folder = Path(name)
        python = peers.peer_python(folder) if with_peer else "not asked for"
        results["eventsourcing"] = python if isinstance(python, str) else peers.PEER
        found: list[Row] = []
        for number in range(rounds):
            (folder / str(number)).mkdir()
            found.append(one_round(folder / str(number), python if isinstance(python, Path) else None))
            if postgres is not None:
                found[-1] |= postgres_round(postgres)
            shutil.rmtree(folder / str(number))
        results |= {key: median((row[key] for row in found), 1 if key.endswith("_s") else 3) for key in found[0]}
        for appenders in APPENDERS:
            traced = traced_fsyncs(folder, appenders)
            if traced:
                results[f"appenders_{appenders}_fsyncs"], results[f"appenders_{appenders}_fsyncs_appends"] = traced
                results[f"appenders_{appenders}_fsyncs_per_append"] = round(traced[0] / traced[1], 3)
            results["fsyncs_counted_by"] = "strace" if traced else "group commits"
    results["load_1min_after"] = psutil.getloadavg()[0]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (%(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="don't install and measure the package eventsourcing")
    parser.add_argument("--postgres", metavar="ADDRESS", help="measure a journal in this database, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--traced", nargs=2, metavar=("APPENDERS", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.traced:
        appenders, path = options.traced
        anyio.run(append_many, Path(path) / "journal.sqlite3", int(appenders), TRACED_APPENDS, backend="trio")
        return
    results = measure(options.rounds, with_peer=not options.no_peer, postgres=options.postgres)
    if options.json:
        print(json.dumps(results))
        return
    for key, value in results.items():
        print(f"{key:44} {value}")


if __name__ == "__main__":
    main()
