"""Runs the demo over a state directory and makes its report: timings from the journal, memory, lineage, audit."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.interfaces.views import Cost, ProcessCost
from statefork.adapters.interfaces.worlds import Progress
from statefork.journal.errors import StateForeign, StateforkError
from statefork.journal.events import GenerationPublished
from statefork.journal.store import NOTE_PREFIX
from statefork.replay.auditing import audit
from statefork.worlds.shop.demo import Cast, Demo, Tell
from statefork.worlds.shop.report import (
    Audited,
    Branching,
    DemoReport,
    EnvironmentReport,
    Memory,
    RuntimeMemory,
    Timing,
)

STORES, SERVER, BROWSER = ("db", "media", "search"), ("shop",), ("browser",)
CONTRACTS = {"sqlite": "shop", "postgres": "shop-postgres"}
"""By what the rows are kept in: the packaged contract, whose name begins the names of its bases, too."""
_NOTE = f"{NOTE_PREFIX}demo-of-"  # an empty file whose name goes on with the contract's: there whole, or not at all


async def run_demo(
    state: Path, *, environments: int, keep: bool, tell: Tell, progress: Progress, database: str = "sqlite"
) -> DemoReport:
    """Play the demo over ``state`` and report. Without ``keep`` its environments are retired at the end.

    A state directory that an earlier demo left is used again: its base, and its journal, where the new environments get
    names of their own. Raises StateForeign for a directory of something else, MissingDependency, StateLocked.
    """
    begin(state, database)
    began = time.perf_counter()
    async with open_engine(CONTRACTS[database], state=state, progress=progress) as engine:
        run = next_run(engine.capsules)
        beside = ", one PostgreSQL" if database == "postgres" else ""
        tell("", f"run {run}: one web server{beside} and one browser are up")
        after = await engine.journal.head()
        demo = Demo(engine, environments=environments, run=run, tell=tell)
        await demo.play()
        members = [await _environment(demo, member) for member in demo.cast.values()]
        timings = await _timings(engine, demo, after)
        lineage = tuple(Branching(name=m.env.name, parent=_parent(m)) for m in demo.cast.values())
        if not keep:
            for member in demo.cast.values():
                async with demo.step(member.env.name, "retired", quiet=True):
                    await member.env.retire()
    tell("", "engine, servers and browser are closed")
    audited = _audited(state)
    tell("", f"audit: {audited.lines[0]}")
    return DemoReport(
        run=run,
        database=database,
        seconds=round(time.perf_counter() - began, 2),
        environments=tuple(members),
        lineage=lineage,
        timings=timings,
        memory=_memory(demo),
        replayed=demo.replayed,
        audited=audited,
        screenshots=str(demo.pictures),
        state=str(state),
        problems=_problems(demo, members, audited, database),
    )


def begin(state: Path, database: str = "sqlite") -> None:
    """Leave a note of whose directory it is, before anything else is put there: a run that is cut short goes on.

    Raises StateForeign as ``refuse_foreign``.
    """
    refuse_foreign(state, database)
    with suppress(OSError):  # can't be written: opening it says so
        state.mkdir(parents=True, exist_ok=True)
        (state / f"{_NOTE}{CONTRACTS[database]}").touch()


def refuse_foreign(state: Path, database: str = "sqlite") -> None:
    """Raise StateForeign when the directory holds something that no demo made, or one with another database."""
    try:
        if not any(state.iterdir()):
            return
    except OSError:
        return  # nothing there, or not to be read: opening it says so
    made = {note.name.removeprefix(_NOTE) for note in state.glob(f"{_NOTE}*")}
    # of a demo that left no note: even the beginning of a base shows whose directory it is
    made |= {base.name.rpartition("-")[0] for base in (state / "worlds").glob("shop-*")}
    if CONTRACTS[database] not in made:
        raise StateForeign(
            f"{state} is not empty and holds no earlier demo" + (f" of {CONTRACTS[database]}" if made else ""),
            hint="Name another directory with --state",
            path=str(state),
        )


def next_run(names: Mapping[str, object]) -> int:
    """The number of the next demo in this journal: names are never used twice."""
    runs = [1 if name.startswith("shop-") else int(found[1]) for name in names if (found := _RUN.match(name))]
    return max(runs, default=0) + 1


_RUN = re.compile(r"(?:shop|run(\d+))-\d+")


def _parent(member: Cast) -> str | None:
    parent = member.env.capsule.parent
    return str(parent) if parent is not None else None


async def _environment(demo: Demo, member: Cast) -> EnvironmentReport:
    name, times = member.env.name, member.camera.times_ms
    capsule = member.env.capsule
    costs = demo.costs.get("end")
    return EnvironmentReport(
        name=name,
        task=member.role.task,
        origin=member.origin,
        generation=capsule.generation,
        epoch=capsule.epoch,
        actions=len(times),
        inherited_actions=member.inherited,
        checked=tuple(demo.checked[name]),
        ms_per_action=round(statistics.median(times), 1) if times else 0.0,
        private_bytes=dict(costs.private_bytes.get(name, {})) if costs is not None else {},
        screenshots=member.camera.pictures,
        errors=tuple(demo.errors.get(name, ())),
    )


async def _timings(engine: Engine, demo: Demo, after: int) -> tuple[Timing, ...]:
    """Medians per operation; the parts come from what the engine journaled with each published generation."""
    phases: dict[str, list[dict[str, float]]] = {what: [] for what in demo.ready_ms}
    async for recorded in engine.journal.read(after=after):
        event = recorded.event
        if isinstance(event, GenerationPublished) and (what := demo.operation(event.env, event.op)) in phases:
            phases[what].append(event.timings_ms)
    return tuple(
        Timing(
            op=what,
            times=len(ready),
            ready_ms=_median(ready),
            stores_ms=_median([_slowest(parts, STORES) for parts in phases[what]]),
            browser_ms=_median([_slowest(parts, BROWSER) for parts in phases[what]]),
            server_ms=_median([_slowest(parts, SERVER) for parts in phases[what]]),
        )
        for what, ready in demo.ready_ms.items()
        if ready and phases[what]
    )


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 2)


def _slowest(parts: Mapping[str, float], resources: tuple[str, ...]) -> float:
    """Milliseconds of the resource that took longest; phases are called ``<what> <resource>``."""
    return max(sum(ms for phase, ms in parts.items() if phase.partition(" ")[2] == name) for name in resources)


def _memory(demo: Demo) -> Memory | None:
    one, everybody, end = (demo.costs.get(when) for when in ("one", "all", "end"))
    if one is None or everybody is None or end is None:
        return None

    def runtime(cost: Cost, name: str) -> ProcessCost:
        return next(found for found in cost.runtimes if found.resource == name)

    runtimes = []
    for name in [found.resource for found in end.runtimes]:
        with_one, with_all, at_end = (runtime(cost, name) for cost in (one, everybody, end))
        runtimes.append(
            RuntimeMemory(
                name=name,
                processes=at_end.processes,
                with_one=with_one.pss_bytes,
                with_all=with_all.pss_bytes,
                at_end=at_end.pss_bytes,
                per_environment=round((with_all.pss_bytes - with_one.pss_bytes) / (demo.wanted - 1)),
            )
        )
    return Memory(
        environments=demo.wanted,
        environments_at_end=len(demo.cast),
        runtimes=tuple(runtimes),
        engine=end.engine_pss_bytes,
    )


def _audited(state: Path) -> Audited:
    try:
        report = audit(state)
    except StateforkError as error:
        return Audited(clean=False, events=0, lines=(str(error),))
    return Audited(clean=report.clean, events=report.events, lines=tuple(report.lines()))


def _problems(demo: Demo, members: list[EnvironmentReport], audited: Audited, database: str) -> tuple[str, ...]:
    """Everything that is not as it should be, as sentences."""
    found = [f"{name or 'engine'}: {text}" for name, errors in demo.errors.items() for text in errors]
    for member in members:
        for check in member.checked:
            wrong = {name: fact for name, fact in check.facts.items() if "wanted" in fact}
            if not check.good:
                found.append(f"{member.name}: {check.what} (generation {check.generation}): {wrong}")
    if len(members) != demo.expected:
        found.append(f"{len(members)} environments took part instead of {demo.expected}")
    memory = _memory(demo)
    measured = {runtime.name: runtime.processes for runtime in memory.runtimes} if memory is not None else {}
    wanted = {*SERVER, *BROWSER, *(("db",) if database == "postgres" else ())}
    if measured.keys() != wanted or measured[SERVER[0]] != 1:
        found.append(f"one server process and one browser should serve all; found {measured}")
    if demo.replayed is None:
        found.append("no environment was replayed")
    if not audited.clean:
        found.append(f"audit: {audited.lines[0]}")
    return tuple(found)
