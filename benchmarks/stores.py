"""What branching costs: SQLite and file trees, every strategy that works here, side by side.

    ./dev bench stores [--json] [--rounds N]

Each round does the same with every strategy in turn: open a branch and bind it, write a little (one row; one file
overwritten, one added, one deleted), seal it as a snapshot does (quiesce, mark, seal, mark, thaw), and discard it. The
figures are medians in milliseconds; ``private_kib`` is what the sealed version has on disk by itself. ``chain``
compares the 5th with the 200th snapshot of one environment. Strategies on XFS need root and mkfs.xfs: a sparse file is
formatted with reflinks and mounted for the time of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import msgspec
from _machine import machine

from statefork.adapters.resources import files, sqlite
from statefork.engine.errors import MissingDependency
from statefork.engine.ports import Needs, Owner, Resource, Services
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Branch, Identity, Sealed

CHAIN = 200
CHAIN_STRATEGIES = ("sqlite", "files overlay", "files reflink")  # a copy's seal walks the tree: the same each time
XFS_IMAGE_BYTES = 4 << 30  # sparse


class Size(msgspec.Struct, frozen=True):
    """One set of bases."""

    name: str
    database_mb: int
    files: int
    files_mb: int


SIZES = (Size("shop", 10, 500, 5), Size("small", 1, 10, 2), Size("large", 100, 3000, 60))
LARGE_ROUNDS = 3  # a plain copy of the large tree takes seconds where the disk is slow


class Case(msgspec.Struct, frozen=True):
    """One resource with one strategy, and how its branches are written."""

    label: str
    resource: Resource
    base: Sealed
    write: Callable[[Path, int], None]


def make_database(path: Path, megabytes: int) -> None:
    """Rows of a kilobyte."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text TEXT)")
        rows = ((number, os.urandom(500).hex()) for number in range(megabytes * 1000))
        connection.executemany("INSERT INTO item VALUES (?, ?)", rows)
    connection.close()


def make_files(directory: Path, count: int, megabytes: int) -> None:
    """Files of equal size, fifty to a directory."""
    for number in range(count):
        path = directory / f"d{number // 50}" / f"f{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(megabytes * 1_000_000 // count))


def write_row(path: Path, number: int) -> None:
    """One commit."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE item SET text = ? WHERE id = ?", (f"round {number}", number % 900))
    connection.close()


def write_files(path: Path, number: int) -> None:
    """One file of each kind of change."""
    (path / "d0" / "f0.bin").write_text(f"round {number}")
    (path / "d0" / f"new{number}.txt").write_text("new")
    (path / "d0" / f"new{number - 1}.txt").unlink(missing_ok=True)


async def open_branch(case: Case, env: str) -> tuple[Branch, Path]:
    """Branch and bind."""
    branch = await case.resource.branch(case.base, Owner(env=env, epoch=1))
    binding = await case.resource.bind(branch, Identity(env=env, epoch=1, activation=1), Needs())
    return branch, Path(str(binding.address["path"]))


async def cut(resource: Resource, branch: Branch) -> Sealed:
    """What a snapshot does to a store."""
    await resource.quiesce(branch)
    before = await resource.write_mark(branch)
    sealed = await resource.seal(branch)
    assert await resource.write_mark(branch) == before
    await resource.thaw(branch)
    return sealed


async def one_round(case: Case, number: int, times: dict[str, list[float]]) -> None:
    """Open, write, seal, fork, discard."""
    clock = time.perf_counter
    began = clock()
    branch, path = await open_branch(case, "bench")
    opened = clock()
    case.write(path, number)
    written = clock()
    sealed = await cut(case.resource, branch)
    cut_done = clock()
    child = await case.resource.branch(sealed, Owner(env="child", epoch=1))
    forked = clock()
    await case.resource.discard(child)
    await case.resource.discard(branch)
    closed = clock()
    usage = await case.resource.usage(sealed)
    await case.resource.discard(sealed)
    spans = {
        "branch_ms": opened - began,
        "seal_ms": cut_done - written,
        "fork_ms": forked - written,
        "discard_ms": (closed - forked) / 2,
    }
    for name, span in spans.items():
        times.setdefault(name, []).append(span * 1000)
    times.setdefault("private_kib", []).append(usage.private_bytes / 1024)


async def chain(case: Case) -> dict[str, float]:
    """Snapshots of one environment that change one thing each: the medians around the 5th and the 200th."""
    branch, path = await open_branch(case, "chain")
    spans = []
    sealed = []
    for number in range(CHAIN):
        case.write(path, number)
        began = time.perf_counter()
        sealed.append(await cut(case.resource, branch))
        spans.append((time.perf_counter() - began) * 1000)
    await case.resource.discard(branch)
    for version in sealed:
        await case.resource.discard(version)
    around = {"at_5_ms": spans[1:9], "at_200_ms": spans[-8:]}
    return {**{name: statistics.median(some) for name, some in around.items()}, "worst_ms": max(spans)}


@contextlib.contextmanager
def xfs(directory: Path) -> Iterator[Path | None]:
    """A file system with reflinks, or None where it can't be had."""
    image, place = directory / "xfs.img", directory / "xfs"
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(XFS_IMAGE_BYTES)
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def cases(size: Size, root: Path, on_xfs: Path | None) -> list[Case]:
    """Everything that works here."""
    bases = root / f"bases-{size.name}"
    bases.mkdir()
    make_database(bases / "db", size.database_mb)
    make_files(bases / "files", size.files, size.files_mb)
    found = []
    for place, state in {"": root, "xfs": on_xfs}.items():
        if state is None:
            continue
        services = Services(state=state / f"state-{size.name}", journal="bench", blobs=MemoryBlobs(), base_dir=bases)
        database = sqlite.make("db", sqlite.Options(base="db"), services)
        found.append((f"sqlite {database.strategy().name}{' on xfs' if place else ''}", database, write_row))
        for choice in ("overlay", "reflink", "copy"):
            if place and choice != "reflink":
                continue
            trees = files.make(f"files-{choice}", files.Options(base="files", strategy=choice), services)
            with contextlib.suppress(MissingDependency):
                found.append((f"files {trees.strategy().name}{' on xfs' if place else ''}", trees, write_files))
    return [Case(label, made, await made.provision(), write) for label, made, write in found]


async def measure(size: Size, rounds: int, root: Path, on_xfs: Path | None) -> dict[str, object]:
    """One size, all strategies in turn, round by round."""
    all_cases = await cases(size, root, on_xfs)
    times: dict[str, dict[str, list[float]]] = {case.label: {} for case in all_cases}
    for number in range(rounds + 1):
        for case in all_cases:
            await one_round(case, number, times[case.label] if number else {})  # the first one warms up
    result: dict[str, object] = {
        label: {name: round(statistics.median(values), 3) for name, values in found.items()}
        for label, found in times.items()
    }
    if size.name == "shop":
        for case in (case for case in all_cases if case.label.startswith(CHAIN_STRATEGIES)):
            result[f"{case.label}, chain"] = {name: round(span, 3) for name, span in (await chain(case)).items()}
    for case in all_cases:
        await case.resource.stop()
    return {"database_mb": size.database_mb, "files": size.files, "files_mb": size.files_mb, "strategies": result}


def file_system(directory: Path) -> str:
    """What the stores lie on decides the figures."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False)
    return kind.stdout.strip()


async def run(rounds: int) -> dict[str, object]:
    """All sizes."""
    with tempfile.TemporaryDirectory(prefix="statefork-stores-") as name:
        root = Path(name)
        result: dict[str, object] = {"machine": machine(), "file_system": file_system(root), "rounds": rounds}
        with xfs(root) as on_xfs:
            for size in SIZES:
                some = min(rounds, LARGE_ROUNDS) if size.name == "large" else rounds
                result[size.name] = await measure(size, some, root, on_xfs)
        return result


def show(result: dict[str, object]) -> None:
    """A table for people."""
    print(f"{result['machine']}, {result['file_system']}")
    for size in SIZES:
        measured = result[size.name]
        assert isinstance(measured, dict)
        print(f"\n{size.name}: database {size.database_mb} MB; {size.files} files, {size.files_mb} MB")
        for label, figures in measured["strategies"].items():
            print(f"  {label:34}" + "".join(f"  {name} {value:9.2f}" for name, value in figures.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=11, help="repetitions of which the medians are taken")
    arguments = parser.parse_args()
    result = anyio.run(run, arguments.rounds, backend="trio")
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
