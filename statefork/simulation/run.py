"""One run: engines opened one after the other on one world and one journal, most of them killed, all of it checked."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import trio
from anyio.lowlevel import checkpoint

from statefork.adapters.resources.memory import Options
from statefork.engine.capsule import Phase
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import Kernel, open_kernel
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.codec import Codec
from statefork.journal.errors import StateforkError
from statefork.journal.events import ActionBegun, ActionEnded, EnvironmentRetired, control_stream
from statefork.journal.log import Append, Journal, Recorded
from statefork.journal.memory import open_memory_journal
from statefork.replay.audit import audit_recorded
from statefork.replay.rebuild import differences, rebuild
from statefork.simulation import commands, holding, keyed, workload
from statefork.simulation.clock import SimulatedClock, run_seeded
from statefork.simulation.lying import NEIGHBOUR, LyingJournal, LyingResource
from statefork.simulation.model import Witness
from statefork.simulation.plan import Plan
from statefork.simulation.scene import Scene
from statefork.simulation.truth import Truth
from statefork.simulation.violation import Violation, rule_of
from statefork.simulation.watch import Watch

KINDS = workload.KINDS | holding.KINDS | commands.KINDS | keyed.KINDS
STUBBORN_S = 200.0
"""What can't be cancelled has ended by itself after so long, in simulated seconds, the longest stalls included."""

LIFE_S = 5000.0
"""No life takes so long, in simulated seconds: who is still there then waits for ever."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. ``rule`` is empty where every rule held."""

    seed: int
    rule: str = ""
    message: str = ""
    fingerprint: str = ""  # of the journal and of the trace
    events: int = 0
    environments: int = 0
    generations: int = 0
    crashes: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    trace: tuple[str, ...] = ()
    traceback: str = ""


class Simulation:
    """The run of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scene = Scene(plan)
        self.contract = parse_contract(plan.contract, "simulated.toml")
        resources = frozenset(self.contract.order)
        self.scene.truth = Truth(self.scene.world, plan.stores, resources, plan.slots)
        self.truth = self.scene.truth
        self.neighbours = self.scene.world.neighbours(self.contract.order)
        self.crashes = 0
        self.simulated_s = 0.0
        self.rested = False  # whether the last engine parked everything before it ended

    async def run(self) -> str:
        """All lives, and what is left of them; the fingerprint."""
        for number in range(self.plan.lives):
            await self._life(number, last=number == self.plan.lives - 1)
            self.crashes += self.scene.process.dead
        await self._life(self.plan.lives, last=True, idle=True)
        self._check_outcomes()
        self.simulated_s = trio.current_time()
        return self.fingerprint()

    def fingerprint(self) -> str:
        """SHA-256 over the journal's hashes and the trace."""
        digest = hashlib.sha256()
        for row in self.scene.world.disk.rows:
            digest.update(f"{row.position} {row.stream} {row.hash}\n".encode())
        digest.update("\n".join(self.scene.trace).encode())
        return digest.hexdigest()

    # --- one life ---------------------------------------------------------------------------------------------------

    async def _life(self, number: int, *, last: bool, idle: bool = False) -> None:
        """Open an engine, work, and be killed or close in good order. ``idle``: only look at what was left."""
        scene = self.scene
        scene.process.dead = False
        scene.process.boundaries = 0
        scene.process.crash_at = 0 if last else scene.random.randint(1, self.plan.crash_within[number])
        trouble = self.plan.trouble[number] if not idle else 0.0
        scene.trouble = 0.0 if last else trouble
        scene.troubled = trouble > 0
        scene.rivalled = False
        scene.lying = self.plan.lies and not idle
        scene.everybody = trio.CancelScope()
        tasks = trio.lowlevel.current_statistics().tasks_living
        try:
            with anyio.fail_after(LIFE_S), scene.everybody:
                async with self._opened(check=idle) as kernel:
                    await self._live(kernel, trouble, idle=idle, last=last)
        except TimeoutError:
            self.truth.fail("progress", f"somebody still waits after {LIFE_S} simulated seconds")
        except StateforkError as error:
            scene.tell(f"the engine ended: {error!r}")
            scene.check("the engine", error)
        finally:
            scene.on_death = _nothing
            scene.tasks = None
        if scene.stubborn:
            await anyio.sleep(STUBBORN_S)
        await checkpoint()
        left = trio.lowlevel.current_statistics().tasks_living - tasks
        self.truth.require(not left, "progress", f"{left} tasks are left of an engine that has ended")
        self.truth.ended()
        self._raise_found()

    def _raise_found(self) -> None:
        if self.truth.found:
            raise self.truth.found[0]

    @asynccontextmanager
    async def _opened(self, *, check: bool) -> AsyncIterator[Kernel]:
        scene = self.scene
        scene.world.hook = scene.call
        async with open_memory_journal(
            scene.world.disk, before_commit=scene.before_commit, after_commit=scene.after_commit
        ) as memory:
            scene.journal_id = memory.id
            lying: Journal = LyingJournal(memory, fails=scene.cant_read, rides=self.truth.aborted)
            async with open_kernel(
                journal=lying,
                contract=self.contract,
                resources={name: self._resource(name, memory.id) for name in self.contract.order},
                blobs=MemoryBlobs(),
                settings=self.plan.settings,
                clock=SimulatedClock(),
                pid=1,
            ) as kernel:
                found = kernel.recovered
                recovered = " ".join(map(str, found.recovered))
                scene.tell(f"opened: settled {found.settled}, recovered {recovered}, {found.orphans} orphans")
                scene.on_death = kernel.hurry
                if not scene.process.dead:
                    self.truth.opened(kernel)
                yield kernel
            if not scene.process.dead:
                await self._closed(kernel, memory, check=check)

    def _resource(self, name: str, journal: str) -> LyingResource:
        return LyingResource(name, self.contract.convert(name, Options), self.scene.world, journal, self.scene)

    async def _live(self, kernel: Kernel, trouble: float, *, idle: bool, last: bool) -> None:
        scene = self.scene
        watch = Watch(scene, kernel)
        if idle:
            self.truth.require(
                kernel.recovered.clean or not self.rested, "I9", f"nothing was to be recovered: {kernel.recovered}"
            )
            return
        async with anyio.create_task_group() as everybody:
            scene.tasks = everybody
            everybody.start_soon(watch.run)
            if self.plan.crowd and not kernel.environments:
                await self._crowd(kernel)
            scene.trouble = trouble
            async with anyio.create_task_group() as agents:
                for _ in range(self.plan.agents):
                    agents.start_soon(workload.Agent(scene, kernel, KINDS).run)
            await anyio.sleep(scene.seconds(4))
            everybody.cancel_scope.cancel()
        scene.tasks = None
        scene.trouble = 0.0
        if scene.process.dead:
            return
        watch.at_rest()
        if last:
            scene.finish_jobs()
            await self._tidy(kernel)
        elif self.plan.rival and await self._rival(kernel):
            scene.die("after a rival has written")
        elif scene.random.random() < 0.6:
            scene.die("when the work was done")

    async def _crowd(self, kernel: Kernel) -> None:
        """Many environments, of which few will ever be bound."""
        first = self.scene.name()
        names = [self.scene.name() for _ in range(self.plan.crowd)]

        async def work() -> str:
            await kernel.create(first, activate=False)
            results = await kernel.fork(first, names, activate=False)
            return f"{sum(result.error is None for result in results)} are born"

        await self.scene.tried("a crowd", work, patience_s=1000)

    async def _rival(self, kernel: Kernel) -> bool:
        """Somebody else writes into the journal: the engine notices before it adds anything to it."""
        parked = [env for env, capsule in kernel.environments.items() if capsule.phase is Phase.PARKED]
        if not parked:
            return False
        scene, env = self.scene, self.scene.random.choice(parked)
        scene.rivalled = True
        event = EnvironmentRetired(at=SimulatedClock().now(), env=env, generation=kernel.environments[env].generation)
        journal = kernel._conductor.ledger.journal
        await journal.append(Append(control_stream(env), (event,)))
        scene.tell(f"a rival retires {env}")
        await scene.tried(f"reset {env} behind a rival's back", lambda: kernel.reset(env), patience_s=1000)
        return True

    # --- the end of a life ------------------------------------------------------------------------------------------

    async def _tidy(self, kernel: Kernel) -> None:
        """Without broken calls nothing needs the collector, but versions whose sealing was cancelled."""
        if not self.scene.troubled:
            left = [name for name in self._unreached(kernel) if "-v" not in name]
            self.truth.require(not left, "I9", f"left behind: {left}")
        self.scene.lying = False
        await kernel.collect()
        left = self._unreached(kernel)
        self.truth.require(not left, "I11", f"not collected: {left}")

    async def _closed(self, kernel: Kernel, journal: Journal, *, check: bool) -> None:
        """An engine that was closed in good order has parked everything, and its fold is the journal's."""
        scene = self.scene
        scene.trouble = 0.0
        self.rested = not kernel.not_parked
        excused = scene.troubled or scene.rivalled or any(one.background for one in scene.world.branches.values())
        self.truth.require(excused or not kernel.not_parked, "progress", f"not parked: {kernel.not_parked}")
        told = differences(kernel.world, await rebuild(journal))
        self.truth.require(not told, "I10", f"the fold is not the live state: {told}")
        if check:
            await self._check_everything(kernel, journal)

    async def _check_everything(self, kernel: Kernel, journal: Journal) -> None:
        recorded: list[Recorded] = [one async for one in journal.read()]
        report = audit_recorded(recorded)
        self.truth.require(report.clean, "audit", "; ".join(map(str, (*report.findings, *report.unreadable))))
        self.truth.check_published()
        for moment in self.truth.needs:
            content = self.truth.published[moment]
            env, _, number = moment.rpartition("@")
            manifest = kernel.environments[env].generations[int(number)].manifest
            for store in self.plan.stores:
                found = self.scene.world.contents[manifest[store].sealed.version]
                self.truth.require(found == content[store], "I6", f"{store} of {moment} was written after its seal")
        for version in self.neighbours:
            kept = self.scene.world.contents.get(version) == {"of": NEIGHBOUR}
            self.truth.require(kept, "I11", f"{version} of another journal is gone")

    def _unreached(self, kernel: Kernel) -> list[str]:
        """What exists in the world, and neither the journal nor a serving environment knows."""
        world = self.scene.world
        known = {branch.id for env in kernel.environments for branch in kernel.branches(env).values()}
        versions = {version for _, version in kernel.world.reachable()} | self.neighbours.keys()
        return [
            *(name for name in world.branches if name not in known),
            *(name for name, _ in world.bindings if name not in known),
            *(name for name in world.versions if name not in versions),
        ]

    def _check_outcomes(self) -> None:
        """What is recorded as done was done."""
        asked: dict[tuple[str, int, int], Witness] = {}
        codec = Codec()
        for row in self.scene.world.disk.rows:
            if not row.stream.startswith("act/"):
                continue
            event = codec.decode(row.event, position=row.position)
            if isinstance(event, ActionBegun) and (witness := Witness.read(event.action.get("value"))):
                asked[event.env, event.generation, event.lease] = witness
            elif isinstance(event, ActionEnded) and event.outcome == "ok":
                told = asked.get((event.env, event.generation, event.lease))
                if told is not None and told.number not in self.truth.written:
                    self.truth.fail("outcome", f"{told} is recorded as written, and was not")


def _nothing() -> None:
    pass


class _Listener(logging.Handler):
    """What the engine logs goes into the trace; assertions that it caught are found all the same."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not self._simulation.scene.process.dead:
            self._simulation.scene.tell(f"log: {record.getMessage()}{f' ({error!r})' if error else ''}")
        if isinstance(error, AssertionError) and not isinstance(error, Violation):
            rule = rule_of(error)
            self._simulation.truth.found.append(Violation(rule, str(error).removeprefix(f"{rule}: ")))


def simulate(plan: Plan) -> Outcome:
    """Run a plan. Never raises for what it finds."""
    simulation = Simulation(plan)
    logger = logging.getLogger("statefork")
    kept = (logger.handlers[:], logger.propagate, logger.level)
    logger.handlers, logger.propagate = [_Listener(simulation)], False
    began = time.perf_counter()
    error: BaseException | None = None
    fingerprint = ""
    try:
        fingerprint = run_seeded(plan.seed, simulation.run)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001 - whatever it is, it is what the run is about
        error = first_cause(raised, simulation)
    finally:
        logger.handlers, logger.propagate, _ = kept
    truth = simulation.truth
    return Outcome(
        seed=plan.seed,
        rule="" if error is None else rule_of(error) if isinstance(error, AssertionError) else "raised",
        message="" if error is None else str(error) or repr(error),
        fingerprint=fingerprint or simulation.fingerprint(),
        events=len(simulation.scene.world.disk.rows),
        environments=len(truth.models),
        generations=len(truth.published),
        crashes=simulation.crashes,
        steps=len(simulation.scene.trace),
        simulated_s=simulation.simulated_s,
        took_s=time.perf_counter() - began,
        trace=tuple(simulation.scene.trace),
        traceback="" if error is None else _traceback(error),
    )


def first_cause(error: BaseException, simulation: Simulation) -> BaseException:
    """Of all that was raised together, what came first: a rule that was found broken before everything else."""
    if simulation.truth.found:
        return simulation.truth.found[0]
    while isinstance(error, BaseExceptionGroup):
        assertions = error.subgroup(AssertionError)
        inner = assertions if assertions is not None else error
        error = inner.exceptions[0]
    return error


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))
