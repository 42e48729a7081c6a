"""The protocol under stress, and the proof that the detectors see what they are there for.

    ./dev bench protocol [--switches N] [--clients K] [--without-pages] [--json]

K clients judge one environment of the shop (its database, its files, its pages from the shared server) while it is
switched N times between generations whose contents differ. Each switch finds one operation in flight, and one is sent
inside its freeze. An operation notes in a row that it began and reads the mark in the database; later it reads the mark
in the files and the one that the product's page shows, and notes that it ended. All by raw clients (sqlite3, open(),
HTTP) at the addresses that are bound at that moment, never by what a lease says of itself.

``mixed``: the marks differ, so the operation saw two generations. ``in_flight``: when the publish was decided, the old
database held an operation that had begun and not ended. ``--without-pages`` leaves the server out, for very many
switches.

* ``full``: the whole protocol, newcomers refused. Must be 0 mixed, 0 in flight, N of N newcomers refused.
* ``hold``: the same, newcomers held. Must be 0, 0, and N of N served on the new generation.
* ``direct publish``: the drain is left out (here, by a subclass; the product can't do that). In *each* switch the same
  detectors must report both faults; else they are worthless, and this program fails.

Latencies are milliseconds as the engine's caller has them, percentiles over the switches of a mode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from _machine import machine
from _protocol_scene import ENV, Scene

import statefork
from statefork.adapters.interfaces.python import Engine
from statefork.engine import kernel as kernel_module
from statefork.engine.commands import Publish
from statefork.engine.conductor import Conductor
from statefork.engine.errors import EnvironmentFrozen
from statefork.engine.kernel import DrainPolicy, EvaluationContext
from statefork.engine.live import Run, Timer
from statefork.engine.staging import Context
from statefork.journal.values import Component, Moment

MARKS = 8  # generations that are switched between; neighbours always differ
DIRECT_SWITCHES_MAX = 100
STORES = """
[contract]
name = "witnesses"
build = "statefork.worlds.shop.build"

[resources.db]
adapter = "sqlite"
base = "shop.sqlite3"

[resources.media]
adapter = "files"
base = "media"

[resources.search]
adapter = "files"
base = "search"
"""
PAGES = """
[resources.shop]
adapter = "web"
stack = "django"
settings = "statefork.worlds.shop.settings"
host = "shop.example"
durability = "derived"
depends_on = ["db", "media", "search"]
stores = { database = "db", media = "media", search = "search" }
"""
PRODUCT = "SELECT id, slug FROM catalogue_product WHERE structure = 'standalone' ORDER BY id LIMIT 1"


class Watched(Conductor):
    """The engine's own, with the detectors looking on."""

    scene: Scene

    async def _drain(self, run: Run, policy: DrainPolicy | None, *, may_fence: bool) -> None:
        self.scene.draining.set()
        await super()._drain(run, policy, may_fence=may_fence)

    def _publish(
        self,
        env: str,
        manifest: Mapping[str, Component],
        timer: Timer,
        *,
        run: Run | None = None,
        staged: Context | None = None,
        source_actions: int = 0,
    ) -> Publish:
        if run is not None:
            self.scene.in_flight += bool(self.scene.unfinished(run.context))
            self.scene.decided_at = time.perf_counter()
        return super()._publish(env, manifest, timer, run=run, staged=staged, source_actions=source_actions)

    def _serve(self, live: Any, context: Context) -> None:
        if self.scene.decided_at:
            self.scene.publish_ms.append((time.perf_counter() - self.scene.decided_at) * 1000)
        super()._serve(live, context)
        self.scene.published.set()


class DirectPublish(Watched):
    """What a system does that lets the pointer move when the successor is ready: nobody is waited for."""

    async def _drain(self, run: Run, policy: DrainPolicy | None, *, may_fence: bool) -> None:
        self.scene.draining.set()

    def _publish(self, env: str, manifest: Any, timer: Timer, *, run: Run | None = None, **more: Any) -> Publish:
        if run is not None:
            self.scene.in_flight += bool(self.scene.unfinished(run.context))
            self.scene.decided_at = time.perf_counter()
        return Conductor._publish(self, env, manifest, timer, **more)

    async def _close(self, context: Context) -> None:
        await context.gate.idle()
        await super()._close(context)


@asynccontextmanager
async def opened(
    folder: Path, conductor: type[Watched], *, pages: bool
) -> AsyncIterator[tuple[Engine, Scene, list[Moment]]]:
    """An engine with one environment and the generations that it is switched between."""
    contract = lay_contract(folder, pages=pages)
    scene = conductor.scene = Scene(pages=pages)
    original, kernel_module.Conductor = kernel_module.Conductor, conductor  # type: ignore[misc]  # the ablation's door
    try:
        async with statefork.open_engine(contract, state=folder / "state") as engine:
            scene.kernel = engine.kernel
            await engine.create(ENV)
            with scene.database() as raw:
                raw.executescript(
                    "CREATE TABLE world (mark TEXT); INSERT INTO world VALUES ('');"
                    "CREATE TABLE operations (number INTEGER, step TEXT);"
                )
                scene.product = raw.execute(PRODUCT).fetchone()
            yield engine, scene, [await marked(scene, f"mark-{number}") for number in range(MARKS)]
    finally:
        kernel_module.Conductor = original  # type: ignore[misc]  # as above


def lay_contract(folder: Path, *, pages: bool) -> Path:
    folder.mkdir()
    contract = folder / "witnesses.toml"
    contract.write_text(STORES + (PAGES if pages else ""))
    return contract


async def marked(scene: Scene, mark: str) -> Moment:
    with scene.database() as raw:
        raw.execute("UPDATE world SET mark = ?", (mark,))
        raw.execute("UPDATE catalogue_product SET title = ? WHERE id = ?", (mark, scene.product[0]))
    (Path(str(scene.kernel.bindings(ENV)["media"].address["path"])) / "mark").write_text(mark)
    return await scene.kernel.snapshot(ENV)


async def client(scene: Scene, over: anyio.Event) -> None:
    """Operations, one after the other; who is refused comes again."""

    async def operation(context: EvaluationContext) -> float:
        number, mark = await scene.begin()
        await anyio.sleep(0.001)
        await scene.end(number, mark)
        return 1.0

    while not over.is_set():
        try:
            await scene.kernel.evaluate(ENV, "client", operation)
        except EnvironmentFrozen:
            await anyio.sleep(0.001)


async def straggler(scene: Scene, begun: anyio.Event, answered: anyio.Event, *, waits_for_publish: bool) -> None:
    """The operation in flight: it ends when the freeze was seen to work, or, where nobody waits for it, too late."""

    async def operation(context: EvaluationContext) -> float:
        number, mark = await scene.begin()
        begun.set()
        await answered.wait()
        if waits_for_publish:
            await scene.published.wait()
        await scene.end(number, mark)
        return 1.0

    await scene.kernel.evaluate(ENV, "straggler", operation)


async def newcomer(scene: Scene, answered: anyio.Event, target: str, told: dict[str, int], *, held: bool) -> None:
    """The operation that is sent inside the freeze."""

    async def operation(context: EvaluationContext) -> float:
        seen = {await anyio.to_thread.run_sync(mark) for mark in (scene.row_mark, scene.file_mark)}
        if scene.pages:
            seen.add(await scene.page_mark())
        told["on_the_new"] += seen == {target}
        return 1.0

    await scene.draining.wait()
    if held:
        answered.set()
    try:
        await scene.kernel.evaluate(ENV, "newcomer", operation)
    except EnvironmentFrozen:
        told["refused"] += 1
    answered.set()


async def switches(mode: str, folder: Path, *, count: int, clients: int, pages: bool) -> dict[str, Any]:
    """One mode, from an empty state directory to its table."""
    direct, hold = mode == "direct publish", mode == "hold"
    kind = DirectPublish if direct else Watched
    drain = DrainPolicy(deadline_s=30, hold_s=30 if hold else 0)
    told = {"refused": 0, "on_the_new": 0}
    total_ms: list[float] = []
    both = 0
    async with opened(folder, kind, pages=pages) as (engine, scene, moments):
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(clients):
                tasks.start_soon(client, scene, over)
            for number in range(count):
                scene.next_switch()
                before = scene.mixed, scene.in_flight
                begun, answered = anyio.Event(), anyio.Event()
                target = moments[number % MARKS]
                async with anyio.create_task_group() as beside:
                    beside.start_soon(partial(straggler, scene, begun, answered, waits_for_publish=direct))
                    await begun.wait()
                    wanted = f"mark-{number % MARKS}"
                    beside.start_soon(partial(newcomer, scene, answered, wanted, told, held=hold))
                    began = time.perf_counter()
                    await scene.kernel.restore(ENV, target, drain=drain)
                    total_ms.append((time.perf_counter() - began) * 1000)
                both += scene.mixed > before[0] and scene.in_flight > before[1]
            over.set()
        phases = await timings(engine)
    return {
        "switches": count,
        "operations": scene.done,
        "mixed": scene.mixed,
        "in_flight": scene.in_flight,
        "switches_with_both_faults": both,
        "newcomers_refused": told["refused"],
        "newcomers_on_the_new_generation": told["on_the_new"],
        "ms": {
            **{phase: percentiles(found[-count:]) for phase, found in phases.items()},
            "publish": percentiles(scene.publish_ms[-count:]),
            "whole": percentiles(total_ms),
        },
    }


async def timings(engine: Engine) -> dict[str, list[float]]:
    """What the journal holds of each phase of the restores."""
    found: dict[str, list[float]] = {"freeze": [], "drain": [], "stage": []}
    await engine.journal.flush()
    async for recorded in engine.journal.read(stream=f"env/{ENV}"):
        if getattr(recorded.event, "op", "") == "restore":
            for phase, values in found.items():
                if phase in (measured := getattr(recorded.event, "timings_ms", {})):
                    values.append(measured[phase])
    return {phase: values for phase, values in found.items() if values}


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p90, p99."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p90": round(cuts[89], 2), "p99": round(cuts[98], 2)}


def faults(tables: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it must be."""
    wrong: list[str] = []
    for mode, counted in ("full", "newcomers_refused"), ("hold", "newcomers_on_the_new_generation"):
        table = tables[mode]
        if table["mixed"] or table["in_flight"]:
            wrong.append(
                f"{mode}: {table['mixed']} mixed operations, {table['in_flight']} publishes over one in flight"
            )
        if table[counted] != table["switches"]:
            wrong.append(f"{mode}: {counted} is {table[counted]}, not {table['switches']}")
    direct = tables["direct publish"]
    if direct["switches_with_both_faults"] != direct["switches"]:
        seen = f"{direct['switches_with_both_faults']} of {direct['switches']}"
        wrong.append(f"direct publish: both faults were seen in {seen} switches only: the detectors are worthless")
    return wrong


def show(tables: dict[str, dict[str, Any]]) -> None:
    for mode, table in tables.items():
        print(f"{mode}: {table['switches']} switches, {table['operations']} operations")
        for name in ("mixed", "in_flight", "newcomers_refused", "newcomers_on_the_new_generation"):
            print(f"  {name.replace('_', ' '):34}{table[name]:>8}")
        print(f"  {'milliseconds':34}{'p50':>8}{'p90':>8}{'p99':>8}")
        for phase, found in table["ms"].items():
            print(f"    {phase:32}" + "".join(f"{value:>8.2f}" for value in found.values()))


def main() -> int:
    """Run all three modes. 1: something was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switches", type=int, default=100, help="of the full protocol; the ablation does at most 100")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--without-pages", action="store_true", help="rows and files only")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.switches < 2 or asked.clients < 0:
        parser.error("at least 2 switches and 0 clients")
    tables: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="statefork-bench-") as folder:
        for mode in ("full", "hold", "direct publish"):
            count = min(asked.switches, DIRECT_SWITCHES_MAX) if mode == "direct publish" else asked.switches
            work = partial(
                switches,
                mode,
                Path(folder) / mode.replace(" ", "-"),
                count=count,
                clients=asked.clients,
                pages=not asked.without_pages,
            )
            tables[mode] = anyio.run(work, backend=asked.backend)
    wrong = faults(tables)
    if asked.json:
        print(json.dumps({"machine": machine(), "clients": asked.clients, "modes": tables, "wrong": wrong}, indent=2))
    else:
        print(machine())
        show(tables)
        print("\n".join(wrong) or "all as it must be: the protocol has no fault, and the detectors see both without it")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
