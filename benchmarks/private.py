"""What a private backend costs: to start, to hold still and seal, to fork; and what its keeper adds to its memory.

    ./dev bench private [--files N] [--rounds N] [--environments N] [--place DIR] [--json]

The backend is the small HTTP server of the tests over a tree of ``--files`` files of 4 KiB. For each way of branching
trees that works below ``--place`` (as root: overlays; else copies) and each way of cutting: from a version to an answer
over HTTP (branch, bind, probe), a snapshot after one file was written, and the end. Memory is the sum of PSS
(``smaps_rollup``) of all commands and of all keeper processes of ``--environments`` environments at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from _machine import machine

from statefork.adapters.resources.process import Options, ProcessResource
from statefork.engine.errors import MissingDependency
from statefork.engine.ports import Needs, Owner, Services
from statefork.journal.blobs import BlobStore
from statefork.journal.values import Binding, Branch, Identity, Sealed

FILES, ROUNDS, ENVIRONMENTS = 2000, 20, 16
FILE_BYTES = 4096
SERVER = Path(__file__).resolve().parent.parent / "tests" / "contract" / "process_server.py"


def make_base(place: Path, files: int) -> None:
    """The tree that every environment begins with."""
    for number in range(files):
        folder = place / "base" / str(number // 100)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.dat").write_bytes(bytes(FILE_BYTES))


def resource_at(place: Path, state: Path, **options: Any) -> ProcessResource:
    """A resource of its own state directory."""
    state.mkdir()
    command = [sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"]
    given = Options(command=command, base="base", ready="http /ready", settle_s=0.0, **options)
    services = Services(state=state, journal="bench", blobs=BlobStore(state / "blobs"), base_dir=place)
    return ProcessResource("private", given, services)


async def opened(resource: ProcessResource, sealed: Sealed, env: str) -> tuple[Branch, Binding]:
    """One that answers."""
    branch = await resource.branch(sealed, Owner(env=env, epoch=1))
    binding = await resource.bind(branch, Identity(env=env, epoch=1, activation=1), Needs())
    await resource.probe(binding)
    return branch, binding


async def cut(resource: ProcessResource, branch: Branch) -> Sealed:
    """A continuing snapshot, as the engine takes it."""
    await resource.quiesce(branch)
    await resource.write_mark(branch)
    sealed = await resource.seal(branch)
    await resource.write_mark(branch)
    await resource.thaw(branch)
    return sealed


def put(binding: Binding, value: str) -> None:
    """Write one file through the server, which keeps it open."""
    connection = http.client.HTTPConnection("127.0.0.1", int(str(binding.address["port"])))
    connection.request("PUT", "/keys/one", value)
    connection.getresponse().read()
    connection.close()


async def spans(resource: ProcessResource, rounds: int) -> dict[str, float]:
    """Medians, in milliseconds."""
    found: dict[str, list[float]] = {"start_ms": [], "snapshot_ms": [], "unchanged_ms": [], "end_ms": []}
    base = await resource.provision()
    for number in range(rounds):
        marks = [time.perf_counter()]
        branch, binding = await opened(resource, base, f"env-{number}")
        marks.append(time.perf_counter())
        put(binding, str(number))
        began = time.perf_counter()
        await cut(resource, branch)
        found["snapshot_ms"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await cut(resource, branch)
        found["unchanged_ms"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await resource.unbind(binding)
        await resource.discard(branch)
        found["end_ms"].append(time.perf_counter() - began)
        found["start_ms"].append(marks[1] - marks[0])
    return {name: round(statistics.median(times) * 1000, 1) for name, times in found.items()}


def is_keeper(pid: int) -> bool:
    """Whether a process is one of ours, and not the command."""
    return b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def pss_mib(pid: int) -> float:
    """One process's proportional share of memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def memory(resource: ProcessResource, environments: int) -> dict[str, float]:
    """Of one environment, when so many run."""
    base = await resource.provision()
    for number in range(environments):
        await opened(resource, base, f"memory-{number}")
    pids = resource.process_ids()
    keepers = [pid for pid in pids if is_keeper(pid)]
    return {
        "environments": environments,
        "command_mib": round(sum(pss_mib(pid) for pid in pids if pid not in keepers) / environments, 2),
        "keeper_mib": round(sum(map(pss_mib, keepers)) / environments, 2),
    }


async def run(place: Path, files: int, rounds: int, environments: int) -> dict[str, Any]:
    """Every way that works here."""
    result: dict[str, Any] = {"machine": machine(), "files": files, "ways": []}
    with tempfile.TemporaryDirectory(prefix="sf-private-", dir=place) as name:
        root = Path(name)
        make_base(root, files)
        for strategy in ("overlay", "reflink", "copy"):
            for how in ("freeze", "restart"):
                resource = resource_at(root, root / f"{strategy}-{how}", strategy=strategy, cut=how)
                try:
                    await resource.start()
                    found = {"files_by": strategy, "cut": how, **await spans(resource, rounds)}
                    result["ways"].append(found)
                    if "memory" not in result:
                        result["memory"] = await memory(resource, environments)
                        result["how"] = resource.strategy().reason
                except MissingDependency as missing:
                    result["ways"].append({"files_by": strategy, "cut": how, "not_here": missing.message})
                finally:
                    await resource.stop()
    return result


def show(result: dict[str, Any]) -> None:
    """Lines for people."""
    print(f"{result['machine']}; {result['files']} files of {FILE_BYTES} bytes")
    print(f"  {result['how']}")
    for found in result["ways"]:
        print("  " + ", ".join(f"{name} {value}" for name, value in found.items()))
    print("  memory: " + ", ".join(f"{name} {value}" for name, value in result["memory"].items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES, help="in the tree")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each way")
    parser.add_argument("--environments", type=int, default=ENVIRONMENTS, help="at once, for memory")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="where to measure")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    result = anyio.run(run, given.place, given.files, given.rounds, given.environments, backend="trio")
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
