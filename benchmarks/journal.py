"""What the journal costs: durable appends by 1, 8 and 64 concurrent appenders, riders, and reading with its checks.

    ./dev bench journal [--json]

``fsyncs`` are counted by strace in a run of their own with ``fsyncs_appends`` appends, opening and closing included;
where there is no strace they are the group commits, each of which waits for the disk once. ``disk_fsyncs_per_s`` is
what the disk itself gives to somebody who writes 4 KiB and waits, over and over.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from statefork.journal.events import ActionEnded
from statefork.journal.log import Append
from statefork.journal.sqlite import open_sqlite_journal

APPENDERS = (1, 8, 64)
SECONDS = 2.0
RIDERS = 20_000
TRACED_APPENDS = 512


def event(number: int) -> ActionEnded:
    """A typical event: about 300 bytes."""
    return ActionEnded(
        at=1.0, env="shop-1", generation=1, epoch=1, activation=1, lease=1, number=number, outcome="ok", elapsed_ms=80.0
    )


async def append_for(path: Path, appenders: int, seconds: float, appends_max: int) -> dict[str, float]:
    """Concurrent durable appends, until the time or the number is used up."""
    latencies: list[float] = []

    async with open_sqlite_journal(path) as journal:
        before = journal.stats.commits
        start = time.perf_counter()

        async def appender(name: int) -> None:
            while len(latencies) < appends_max and (began := time.perf_counter()) - start < seconds:
                await journal.append(Append(f"act/{name}", (event(1),)))
                latencies.append(time.perf_counter() - began)

        async with anyio.create_task_group() as group:
            for name in range(appenders):
                group.start_soon(appender, name)
        elapsed = time.perf_counter() - start
        commits = journal.stats.commits - before
    latencies.sort()
    return {
        "appends_per_s": round(len(latencies) / elapsed, 1),
        "latency_ms_p50": round(latencies[len(latencies) // 2] * 1e3, 2),
        "latency_ms_p99": round(latencies[len(latencies) * 99 // 100] * 1e3, 2),
        "appends": len(latencies),
        "group_commits": commits,
    }


async def ride_and_read(path: Path) -> dict[str, float]:
    """What riding costs the one who rides, how long the disk takes for all, and reading them back."""
    async with open_sqlite_journal(path) as journal:
        start = time.perf_counter()
        for number in range(RIDERS):
            journal.ride("act/a", event(number))
        queued = time.perf_counter()
        head = await journal.flush()
        flushed = time.perf_counter()
        count = sum([1 async for _ in journal.read()])
        read = time.perf_counter()
        assert count == head
    return {
        "ride_us": round((queued - start) / RIDERS * 1e6, 1),
        "riders_per_s_to_disk": round(RIDERS / (flushed - start)),
        "events_read_per_s": round(count / (read - flushed)),
    }


def disk_fsyncs_per_s(folder: Path) -> float:
    """The disk's own pace."""
    with (folder / "pace").open("wb", buffering=0) as file:
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < SECONDS / 2:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            count += 1
        return round(count / (time.perf_counter() - start), 1)


def traced_fsyncs(folder: Path, appenders: int) -> tuple[int, int] | None:
    """Fsyncs and appends of a traced run of this file, opening and closing included; None without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    trace = folder / f"trace-{appenders}"
    command = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace), sys.executable, __file__]
    result = subprocess.run(
        [*command, "--traced", str(appenders), str(folder / f"traced-{appenders}.sqlite3")],
        stdout=subprocess.PIPE,
        check=False,
    )
    if result.returncode:
        return None  # tracing is forbidden here
    calls = sum("sync(" in line for line in trace.read_text().splitlines())
    return calls, int(json.loads(result.stdout)["appends"])


def measure() -> dict[str, object]:
    """All of it, in a temporary directory beside the present one, so that it is on a real disk."""
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix=".bench-journal-", dir=Path.cwd()) as name:
        folder = Path(name)
        results["disk_fsyncs_per_s"] = disk_fsyncs_per_s(folder)
        for appenders in APPENDERS:
            path = folder / f"{appenders}" / "journal.sqlite3"
            row = anyio.run(append_for, path, appenders, SECONDS, sys.maxsize, backend="trio")
            traced = traced_fsyncs(folder, appenders)
            fsyncs, appends = traced or (row["group_commits"], row["appends"])
            row["fsyncs"], row["fsyncs_appends"] = fsyncs, appends
            row["fsyncs_per_append"] = round(fsyncs / appends, 3)
            results["fsyncs_counted_by"] = "strace" if traced else "group commits"
            results |= {f"appenders_{appenders}_{key}": value for key, value in row.items()}
        results |= anyio.run(ride_and_read, folder / "riders" / "journal.sqlite3", backend="trio")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--traced", nargs=2, metavar=("APPENDERS", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.traced:
        appenders, path = options.traced
        row = anyio.run(append_for, Path(path), int(appenders), 60.0, TRACED_APPENDS, backend="trio")
        print(json.dumps(row))
        return
    results = measure()
    if options.json:
        print(json.dumps(results))
        return
    for key, value in results.items():
        print(f"{key:40} {value}")


if __name__ == "__main__":
    main()
