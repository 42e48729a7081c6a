"""What many PostgreSQL branches on one server cost, and what those who write notice of somebody else's fork.

    ./dev bench branches [--branches N] [--scale N] [--forks N] [--place DIR] [--json]

*Many*: environments are created one after the other on one server and all stay (``--branches 500``); the medians of the
first and of the last twenty, and of ten forks in the end. *Writers*: eight environments commit transactions of pgbench
as fast as they can, first alone, then while a ninth is forked again and again (``--forks``); what one transaction took,
in both times. *Small*: a database of 25 MB, created; here the pool is switched off for one half of the rounds.

On an XFS with reflinks in a sparse file below ``--place`` (root, mkfs.xfs), and *small* also on the file system of
``--place`` as it is. All of it is removed in the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from _database_scene import BYTES_OF_SCALE, XFS, clones, connect, kind_of, make_contract, on_image, transact
from _machine import machine

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.postgres import PostgresResource

BRANCHES, SCALE, FORKS = 500, 12, 30
WRITERS = 8
EDGE = 20  # environments at the beginning and at the end
SMALL_SCALE, SMALL_ROUNDS = 1, 20  # 16 MB of tables, and the 7 MB that every database has
LOG_BYTES = 4 << 30
BRANCH_BYTES = 4 << 20  # on XFS, with what eight writers leave


async def settled(engine: Engine) -> None:
    """Nothing is made in advance or removed behind what comes next."""
    resource = engine.kernel.resources["db"]
    assert isinstance(resource, PostgresResource)
    await anyio.to_thread.run_sync(resource.backend.workshop.settle)


async def timed_create(engine: Engine, name: str) -> tuple[Environment, float]:
    """A new environment, and after how many milliseconds the caller had it."""
    await settled(engine)
    began = time.perf_counter()
    env = await engine.create(name)
    return env, (time.perf_counter() - began) * 1000


async def many(engine: Engine, branches: int) -> dict[str, Any]:
    """Each create of a row, by its place in the row."""
    (first, _) = await timed_create(engine, "warm-up")
    spans = [(await timed_create(engine, f"env-{number}"))[1] for number in range(branches)]
    forks = []
    for number in range(10):
        await settled(engine)
        began = time.perf_counter()
        await engine.fork(first.name, names=[f"fork-{number}"])
        forks.append((time.perf_counter() - began) * 1000)
    first_ms, last_ms = statistics.median(spans[:EDGE]), statistics.median(spans[-EDGE:])
    return {
        "branches": branches,
        "first_ms": round(first_ms, 2),
        "last_ms": round(last_ms, 2),
        "last_over_first": round(last_ms / first_ms, 2),
        "fork_with_all_of_them_ms": round(statistics.median(forks), 2),
    }


class Writers:
    """Threads that commit in environments of their own, and what each transaction took, in milliseconds."""

    def __init__(self, envs: Sequence[Environment], scale: int) -> None:
        self._scale = scale
        self._over = threading.Event()
        self._spans: list[tuple[float, float]] = []  # when it ended, how long it took
        self._threads = [threading.Thread(target=self._write, args=(env,)) for env in envs]

    def _write(self, env: Environment) -> None:
        number = 0
        with connect(env) as connection:
            while not self._over.is_set():
                number += 1
                began = time.perf_counter()
                transact(connection, number, self._scale)
                ended = time.perf_counter()
                self._spans.append((ended, (ended - began) * 1000))

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def tail(self, since: float, until: float) -> dict[str, float]:
        """Of the transactions that ended in between."""
        found = sorted(span for ended, span in self._spans if since <= ended < until)
        return {
            "transactions_per_s": round(len(found) / (until - since), 1),
            **{f"p{part}_ms": round(found[int(len(found) * part / 100)], 2) for part in (50, 95, 99)},
            "worst_ms": round(found[-1], 2),
        }


async def written(engine: Engine, scale: int, forks: int) -> dict[str, Any]:
    """Eight write; a ninth is forked, and its children are retired."""
    writers = [await engine.create(f"writer-{number}") for number in range(WRITERS)]
    forked = await engine.create("forked")
    await settled(engine)
    spans = []
    with Writers(writers, scale) as busy:
        await anyio.sleep(5)
        alone = time.perf_counter()
        await anyio.sleep(10)
        together = time.perf_counter()
        for number in range(forks):
            began = time.perf_counter()
            (child,) = await engine.fork(forked.name, names=[f"child-{number}"])
            spans.append((time.perf_counter() - began) * 1000)
            await child.retire()
        ended = time.perf_counter()
    return {
        "writers": WRITERS,
        "alone": busy.tail(alone, together),
        "while_forked": busy.tail(together, ended),
        "forks": forks,
        "fork_ms": round(statistics.median(spans), 2),
        "worst_fork_ms": round(max(spans), 2),
    }


async def small(place: Path) -> dict[str, Any]:
    """A small database, from the pool and without one."""
    found: dict[str, Any] = {"file_system": kind_of(place), "clones": clones(place)}
    for what, pool in (("from_the_pool_ms", 4), ("without_ms", 0)):
        folder = place / "small"
        contract = make_contract(folder, SMALL_SCALE, pool)
        async with open_engine(contract, state=folder / "state") as engine:
            await timed_create(engine, "warm-up")
            spans = [(await timed_create(engine, f"env-{number}"))[1] for number in range(SMALL_ROUNDS)]
            found["strategy"] = engine.kernel.resources["db"].strategy().name
        shutil.rmtree(folder)
        found[what] = round(statistics.median(spans), 2)
    return found


async def run(place: Path, branches: int, scale: int, forks: int) -> dict[str, Any]:
    """All three."""
    result: dict[str, Any] = {"machine": machine(), "scale": scale, "bytes": scale * BYTES_OF_SCALE, "small": []}
    with tempfile.TemporaryDirectory(prefix="sf-db-", dir=place) as name:
        root = Path(name)
        size = 2 * scale * BYTES_OF_SCALE + LOG_BYTES + branches * BRANCH_BYTES
        with on_image(root, XFS, size) as there:
            if there is not None:
                folder = there / "bench"
                contract = make_contract(folder, scale, 4)
                async with open_engine(contract, state=folder / "state") as engine:
                    result["many"] = await many(engine, branches)
                    result["writers"] = await written(engine, scale, forks)
                shutil.rmtree(folder)
                result["small"].append(await small(there))
        result["small"].append(await small(root))
    return result


def show(result: dict[str, Any]) -> None:
    """Lines for people."""
    print(f"{result['machine']}; about {result['bytes'] / 1e6:,.0f} MB")
    for what in ("many", "writers"):
        for name, value in result.get(what, {}).items():
            print(f"  {what:9}{name:28}{value}")
    for found in result["small"]:
        print(f"  small    {found}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=BRANCHES, help="environments that stay on the server")
    parser.add_argument("--scale", type=int, default=SCALE, help=f"pgbench's, for many and writers; {SCALE}: 190 MB")
    parser.add_argument("--forks", type=int, default=FORKS, help="while the others write")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="a directory on a large disk")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    result = anyio.run(run, given.place, given.branches, given.scale, given.forks, backend="trio")
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
