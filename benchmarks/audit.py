"""What an audit costs: time per event, and memory that must not grow with the journal.

    ./dev bench audit [--json] [--events N]

Journals of a tenth of the events and of all of them are written, as an engine would have written them: environments
come, act, are snapshotted, restored, parked and retired, sixty-four at a time. Each is audited in a process of its own.
``above_start_mib`` is the highest resident memory less what the process had before it opened the journal. ``bare_read``
is the same rows read, parsed and hashed, and nothing else: what any audit must do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

EVENTS = 1_000_000
AT_A_TIME = 64  # environments that are alive together
ROUNDS = 8  # of eight actions and a generation each, in the life of one environment
BATCH = 5_000
CONTRACT = '[contract]\nname = "bench"\n[resources.db]\nadapter = "sqlite"\nbase = "b"\n'

Told = tuple[str, dict[str, Any]]


class Teller:
    """Tells the lives of environments, one after the other and many at a time."""

    def __init__(self) -> None:
        self.leases = 0
        self.versions = 0

    def manifest(self) -> dict[str, Any]:
        """A new sealed version."""
        self.versions += 1
        version = f"v{self.versions}"
        data = {"path": f"resources/db/layers/{version}/db.sqlite3"}
        sealed = {"journal": "j", "resource": "db", "adapter": "sqlite", "version": version, "data": data}
        return {"db": {"sealed": sealed, "durability": "authoritative", "depends_on": []}}

    def beginning(self) -> Iterator[Told]:
        """What an engine says when it opens a new state directory."""
        yield "engine", {"type": "journal.created/1", "at": 1.0, "journal": "j", "statefork": "0.1.0"}
        yield "engine", {"type": "engine.started/1", "at": 1.0, "run": "run-1", "pid": 1, "statefork": "0.1.0"}
        yield "engine", {"type": "contract.registered/1", "at": 1.0, "digest": "c", "name": "bench", "text": CONTRACT}
        yield "engine", {"type": "recovery.finished/1", "at": 1.0, "run": "run-1", "orphans": 0}
        self.base = self.manifest()
        yield "engine", {"type": "base.provisioned/1", "at": 1.0, "contract": "c", "manifest": self.base}

    def life(self, env: str) -> Iterator[Told]:
        """One environment."""
        control, activity = f"env/{env}", f"act/{env}"
        generation = epoch = activation = number = 1
        number = 0
        manifests = {1: self.base}
        counted = {1: 0}

        def told(kind: str, **fields: Any) -> Told:
            return control, {"type": f"{kind}/1", "at": 1.5, "env": env, **fields}

        def published(op: str, source: int = 0) -> Told:
            moment = {"env": env, "generation": source} if source else None
            return told(
                "generation.published", transition=f"{env}/{generation}", op=op, generation=generation, epoch=epoch,
                contract="c", manifest=manifests[generation], source=moment, actions=counted[generation],
            )  # fmt: skip

        def begun(op: str, source: int = 0) -> Told:
            moment = {"env": env, "generation": source} if source else None
            name = f"{env}/{generation + 1 if op != 'create' else 1}"
            base = generation if op != "create" else 0
            return told("transition.begun", transition=name, op=op, base=base, source=moment)

        def active() -> Told:
            probed = {"db": 1.5}
            return told("environment.activated", generation=generation, activation=activation, probed_ms=probed)

        origin = {"env": env, "generation": 1}
        yield told("environment.created", contract="c", how="create", parent=None, origin=origin)
        yield begun("create")
        yield published("create")
        yield active()
        for round_number in range(ROUNDS):
            for _ in range(8):
                number += 1
                self.leases += 1
                place = {
                    "env": env, "generation": generation, "epoch": epoch, "activation": activation,
                    "lease": self.leases, "number": number,
                }  # fmt: skip
                action = {"type": "click", "role": "button", "name": "Add to basket", "nth": 0}
                yield activity, {"type": "action.begun/1", "at": 2.5, **place, "action": action}
                seen = {"digest": f"{self.leases:064x}", "url": "http://shop.example/basket/", "title": "Basket"}
                ended = {"outcome": "ok", "error": "", "observation": seen, "elapsed_ms": 80.5}
                yield activity, {"type": "action.ended/1", "at": 3.5, **place, **ended}
            switch = round_number == ROUNDS // 2
            op, source = ("restore", generation - 1) if switch else ("snapshot", 0)
            yield begun(op, source)
            generation += 1
            manifests[generation] = manifests[source] if switch else self.manifest()
            number = counted[generation] = counted[source] if switch else number
            yield told("transition.drained", transition=f"{env}/{generation}", held=[])
            epoch = generation if switch else epoch
            yield published(op, source)
            if switch:
                activation += 1
                yield active()
        yield told("environment.parked", generation=generation)
        yield told("environment.retired", generation=generation)

    def journal(self, events: int) -> Iterator[Told]:
        """So many events."""
        left = events
        lives: list[Iterator[Told]] = []
        born = 0
        for told in self.beginning():
            left -= 1
            yield told
        while left:
            while len(lives) < AT_A_TIME:
                born += 1
                lives.append(self.life(f"bench-{born}"))
            for life in list(lives):
                told_next = next(life, None)
                if told_next is None:
                    lives.remove(life)
                    continue
                yield told_next
                left -= 1
                if not left:
                    return


def link_of(previous: str, stream: str, version: int, raw: str) -> str:
    """The hash of an event in its stream's chain."""
    return hashlib.sha256(f"{previous}\n{stream}\n{version}\n{raw}".encode()).hexdigest()


def write_journal(path: Path, told: Iterator[Told]) -> None:
    """The tables of a journal file, filled as fast as SQLite takes it."""
    tails: dict[str, tuple[int, str]] = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("pragma synchronous = off")
        file.execute(
            "create table events (position integer primary key, stream text, version int, event text, hash text)"
        )
        file.execute("create table streams (stream text primary key, version int, hash text)")
        rows = []
        file.execute("begin")
        for position, (stream, event) in enumerate(told, 1):
            version, previous = tails.get(stream, (0, "0" * 64))
            raw = json.dumps(event, separators=(",", ":"))
            link = link_of(previous, stream, version + 1, raw)
            tails[stream] = (version + 1, link)
            rows.append((position, stream, version + 1, raw, link))
            if len(rows) == BATCH:
                file.executemany("insert into events values (?, ?, ?, ?, ?)", rows)
                rows.clear()
        file.executemany("insert into events values (?, ?, ?, ?, ?)", rows)
        heads = ((stream, *tail) for stream, tail in tails.items())
        file.executemany("insert into streams values (?, ?, ?)", heads)
        file.execute("create unique index by_stream on events (stream, version)")
        file.execute("commit")


def bare_read(state: Path) -> None:
    """Read, parse and hash every row."""
    with closing(sqlite3.connect(state / "journal.sqlite3")) as file:
        for stream, version, event, _ in file.execute(
            "select stream, version, event, hash from events order by position"
        ):
            json.loads(event)
            hashlib.sha256(f"{stream}\n{version}\n{event}".encode()).hexdigest()


def audited(state: Path) -> None:
    """The audit, blobs and stores left alone: there are none."""
    import statefork

    report = statefork.audit(state, stores=False)
    assert report.clean, "\n".join(report.lines())


def measured(work: Callable[[Path], None], state: Path, loaded: bool) -> dict[str, float]:
    """Seconds and memory of one piece of work, in a process of its own."""
    queue: multiprocessing.Queue[dict[str, float]] = _SPAWN.Queue()
    process = _SPAWN.Process(target=_measure, args=(work, state, loaded, queue))
    process.start()
    found = queue.get()
    process.join()
    return found


_SPAWN = multiprocessing.get_context("spawn")


def _measure(work: Callable[[Path], None], state: Path, loaded: bool, queue: Any) -> None:
    if loaded:
        import statefork

        assert statefork.audit
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    work(state)
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue.put({"seconds": round(took, 2), "above_start_mib": round((after - before) / 1024, 1)})


def run(events: int) -> dict[str, Any]:
    """Both sizes, each read barely and audited."""
    results: dict[str, Any] = {}
    for size in (events // 10, events):
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder)
            write_journal(state / "journal.sqlite3", Teller().journal(size))
            bare = measured(bare_read, state, loaded=False)
            audit = measured(audited, state, loaded=True)
        audit["events_per_s"] = round(size / audit["seconds"])
        audit["times_a_bare_read"] = round(audit["seconds"] / bare["seconds"], 1)
        results[str(size)] = {"bare_read": bare, "audit": audit}
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=EVENTS)
    options = parser.parse_args()
    results = run(options.events)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for size, found in results.items():
        bare, audit = found["bare_read"], found["audit"]
        print(
            f"{size:>9} events: {audit['seconds']} s ({audit['events_per_s']} events/s, "
            f"{audit['times_a_bare_read']} times a bare read of {bare['seconds']} s), "
            f"{audit['above_start_mib']} MiB above the start"
        )


if __name__ == "__main__":
    sys.exit(main())
