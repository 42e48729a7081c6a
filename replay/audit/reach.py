"""I11 in the world: whatever lies in the state directory is reached by the journal, or is an orphan, and named.

Reached are the sealed versions of every generation, and the branches of environments that are bound now. While an
engine runs, what is being staged or closed looks like an orphan from outside: it is told as a note. After a crash
orphans are to be expected; they are told as notes as well, for the next opening collects them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.contracts import Contracts
from statefork.replay.audit.engines import engine_of
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.places import place_at
from statefork.replay.audit.records import (
    Stored,
    branch_records,
    keeps_records,
    listed,
    profiles,
    resource_folders,
    sealed_records,
)
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_NAMED_MAX = 20  # orphans told one by one as notes; of the others the number
_SCHEMA = """
create table layer (resource text, layer text, primary key (resource, layer)) without rowid;
create table branch (resource text, env text, epoch int, branch text, primary key (resource, env, epoch)) without rowid;
"""


class Reach(Checker):
    """Compares what the stores hold with what the journal names."""

    invariant = "I11"
    rule = "whatever is in the world is reached by the journal"
    kinds = frozenset({kinds.CONTRACT, kinds.STARTED, kinds.STOPPED})

    def __init__(self, state: Path, heads: Heads, *, moved_on: Callable[[str, int], bool]) -> None:
        super().__init__(heads)
        self._state = state
        self._moved_on = moved_on
        self._contracts = Contracts()
        self._spill = open_spill(_SCHEMA)
        self._place = place_at(state)
        self._stopped = True  # the last engine here ended in good order
        self._running = 0
        self._excused: list[str] = []

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        if row.kind == kinds.CONTRACT:
            self._contracts.register(row)
        elif row.place == self._place:
            self._stopped = row.kind == kinds.STOPPED
        return iter(())

    def finish(self) -> Iterator[str]:
        self._running = engine_of(self._state)
        for orphan in self._orphans():
            if self._running or not self._stopped:
                self._excused.append(orphan)
            else:
                yield orphan
        if self._running:
            yield from self._missing()
        else:
            yield from self._processes()

    def notes(self) -> Iterator[str]:
        if not self._excused:
            return
        why = "an engine runs and may be staging or closing it" if self._running else "the next opening collects it"
        for orphan in self._excused[:_NAMED_MAX]:
            yield f"{orphan}; {why}"
        if len(self._excused) > _NAMED_MAX:
            yield f"and {len(self._excused) - _NAMED_MAX} more that the journal does not reach; {why}"

    @property
    def _owner(self) -> str:
        return self.heads.owner(self._place)

    def _orphans(self) -> Iterator[str]:
        adapters = self._contracts.adapters()
        for record in sealed_records(self._state):
            yield from self._sealed(record)
        for record in branch_records(self._state):
            yield from self._branch(record)
        for folder in resource_folders(self._state):
            if folder.name not in adapters:
                yield f"{folder.relative_to(self._state)} is of a resource that no contract knows"
            elif keeps_records(folder):
                yield from self._layers(folder)
            else:
                for version in profiles(folder, self._owner):
                    self.looked_at += 1
                    yield from self._version(folder.name, version)

    def _sealed(self, record: Stored) -> Iterator[str]:
        self.looked_at += 1
        self._spill.executemany(
            "insert or ignore into layer values (?, ?)", [(record.resource, layer) for layer in record.layers]
        )
        if record.journal != self._owner:
            return  # somebody else's, and left alone
        yield from self._version(record.resource, record.name)

    def _version(self, resource: str, version: str) -> Iterator[str]:
        if self.heads.versions.find(self._owner, resource, version) is not None:
            return
        if self.heads.versions.named(self._owner, resource, version) is None:
            yield f"version {version} of {resource} is in no generation"
        else:  # an engine that ends in a hurry leaves it to the next one
            self._excused.append(f"version {version} of {resource} is of pruned generations only")

    def _branch(self, record: Stored) -> Iterator[str]:
        self.looked_at += 1
        layers = (*record.layers, record.upper)
        self._spill.executemany(
            "insert or ignore into layer values (?, ?)", [(record.resource, layer) for layer in layers if layer]
        )
        if record.journal != self._owner:
            return
        env, epoch = record.handle.get("env"), record.handle.get("epoch")
        head = self.heads.of(str(env))
        name = f"branch {record.name} of {record.resource} (of {env}, epoch {epoch})"
        if not self._running:
            yield f"{name} is open, and no engine runs"
        elif head.place != self._place or (not head.transition and (not head.activation or head.epoch != epoch)):
            yield f"{name} is of no environment that is bound"
        else:
            made = self._spill.execute(
                "insert or ignore into branch values (?, ?, ?, ?)", (record.resource, env, epoch, record.name)
            )
            if not made.rowcount:
                yield f"{name} is not the only one"

    def _layers(self, folder: Path) -> Iterator[str]:
        for path in listed(folder / "layers"):
            named = self._spill.execute(
                "select 1 from layer where resource = ? and layer = ?", (folder.name, path.name)
            ).fetchone()
            if named is None:
                yield f"layer {path.name} of {folder.name} belongs to no version and no branch"

    def _missing(self) -> Iterator[str]:
        """What an environment that is bound must have on disk, and has not."""
        folders = [folder.name for folder in resource_folders(self._state) if keeps_records(folder)]
        for head in self.heads:
            wanted = self._contracts.of(head.contract) or {}
            if not head.activation or head.transition or head.place != self._place:
                continue
            for resource in folders:
                found = self._spill.execute(
                    "select 1 from branch where resource = ? and env = ? and epoch = ?",
                    (resource, head.env, head.epoch),
                ).fetchone()
                if resource in wanted and found is None and not self._moved_on(head.env, self.heads.position):
                    yield f"{head.env} is bound (activation {head.activation}), and has no branch of {resource}"

    def _processes(self) -> Iterator[str]:
        """Runtimes that outlived their engine."""
        for path in listed(self._state / "runtimes", ".json"):
            try:
                record = json.loads(path.read_bytes())
                pid, started = int(record["pid"]), int(record["started_ticks"])
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise Unreadable(f"{path} can't be read: {error}") from None
            self.looked_at += 1
            if _started_ticks(pid) == started:
                yield f"process {pid} of the runtime {path.stem} is alive, and no engine runs"


def _started_ticks(pid: int) -> int:
    """When a process was started, in the kernel's ticks since boot; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])
