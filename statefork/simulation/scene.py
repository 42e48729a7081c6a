"""What all parts of one run share: chance, the trace, the truth, and the process that may die at any boundary."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import trio
from anyio.abc import TaskGroup

from statefork.adapters.resources.memory import Call
from statefork.engine.collect import GcReport
from statefork.engine.errors import (
    DrainTimeout,
    EnvironmentExists,
    EnvironmentFrozen,
    EnvironmentRetired,
    GenerationPruned,
    LeaseRevoked,
    NoSlot,
    NotReady,
    ResourceFailed,
    RuntimeDied,
    StaleGeneration,
    UnknownEnvironment,
)
from statefork.engine.kernel import ActResult, Kernel
from statefork.journal.errors import JournalUnavailable, StateforkError
from statefork.journal.values import Handle, Identity, Observation
from statefork.simulation.lying import LyingWorld
from statefork.simulation.model import Witness
from statefork.simulation.plan import Plan
from statefork.simulation.truth import Truth

NEVER_S = 1e6
"""Longer than any run."""

EXPECTED = (
    DrainTimeout,
    EnvironmentExists,
    EnvironmentFrozen,
    EnvironmentRetired,
    GenerationPruned,
    LeaseRevoked,
    NoSlot,
    NotReady,
    RuntimeDied,
    StaleGeneration,
    UnknownEnvironment,
)
"""What may come of several who work on the same environments, without any trouble."""


def in_short(result: object) -> str:
    """What a command answered, for the trace."""
    match result:
        case ActResult():
            return f"{result.outcome} {result.error}".rstrip()
        case Observation():
            return str(result.value)
        case list():
            return ", ".join(str(one.moment or one.error) for one in result)
        case GcReport():
            return f"{len(result.collected)} removed, {len(result.failed)} can't be, {result.kept} kept"
        case None:
            return "done"
        case _:
            return str(result)


class Process:
    """One engine's process. ``crash_at``: the number of the boundary at which it dies; 0: it doesn't."""

    def __init__(self, crash_at: int) -> None:
        self.dead = False
        self.boundaries = 0
        self.crash_at = crash_at


class Scene:
    """One run of one plan. ``trace`` tells what was done, for the reader of a failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.trace: list[str] = []
        self.world = LyingWorld()
        self.truth: Truth  # given by the run, which knows the contract
        self.process = Process(0)
        self.trouble = 0.0  # the probability that a call or a commit goes wrong now
        self.troubled = False  # whether it is above zero in this life
        self.lying = plan.lies
        self.rivalled = False  # whether somebody else has written into the journal in this life
        self.journal_id = ""
        self.numbers = 0
        self.names = 0
        self.private: set[str] = set()  # environments that one agent has for itself
        self.pins: dict[str, int] = {}
        self.tickets: list[Identity] = []  # that were good at some time
        self.stubborn = 0  # actions under way that can't be cancelled
        self.hot = ""  # the environment that was commanded last: where things happen
        self.stories: list[Any] = []  # commands with keys that are to be given again
        self.took_s: dict[str, float] = {}  # actions, by what they were about
        self.everybody = trio.CancelScope()  # all that happens in this life
        self.tasks: TaskGroup | None = None  # of this life, for what outlives those who began it
        self.on_death: Callable[[], None] = lambda: None

    def tell(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{trio.current_time():10.3f}  {text}")

    def name(self) -> str:
        """A name that no environment had."""
        self.names += 1
        return f"e{self.names}"

    def witness(self, env: str, epoch: int, by: str) -> Witness:
        """A value that was never written before."""
        self.numbers += 1
        return Witness(env, epoch, self.numbers, by)

    # --- the process ------------------------------------------------------------------------------------------------

    def boundary(self, where: str) -> None:
        """A moment at which the process may die. Raises when it is dead."""
        process = self.process
        if not process.dead:
            process.boundaries += 1
            if process.boundaries == process.crash_at:
                self.die(where)
        self.alive()

    def alive(self) -> None:
        """Raises where the process is dead: it does nothing more."""
        if self.process.dead:
            raise ResourceFailed("the process is dead")

    def die(self, where: str) -> None:
        """The process is gone. What is on disk and in the world now is all that there is."""
        disk = self.world.disk
        keep = self.random.randint(disk.synced, len(disk.rows))
        self.tell(f"CRASH {where}: {keep} of {len(disk.rows)} events survive, {disk.synced} of them were synced")
        self.truth.catch_up()
        self.process.dead = True
        disk.crash(keep=keep)
        self.trouble = 0.0
        self.everybody.cancel()
        self.on_death()

    # --- what goes wrong --------------------------------------------------------------------------------------------

    async def call(self, call: Call) -> None:
        """Around every call of a resource."""
        self.boundary(f"{call.when} {call.resource}.{call.method}({call.env})")
        if self.plan.daemons and call.env:
            self._daemons(call.env)
        if self.random.random() < 0.15:
            await anyio.sleep(self.seconds(0.01))
        if self.random.random() < self.trouble:
            kind = self.random.choice(["fails", "fails", "stalls", "stalls for long"])
            self.tell(f"{call.when} {call.resource}.{call.method}({call.env}): it {kind}")
            if kind == "fails":
                raise ResourceFailed("simulated")
            await anyio.sleep(self.seconds(3 if kind == "stalls" else 60))
        self.alive()

    async def before_commit(self) -> None:
        """Nothing of the batch is kept yet."""
        await self._commit("before")

    async def after_commit(self) -> None:
        """It is kept, and nobody knows."""
        if not self.process.dead:
            self.truth.catch_up()
        await self._commit("after")

    async def _commit(self, when: str) -> None:
        try:
            self.boundary(f"{when} a commit")
            await anyio.sleep(self.seconds(0.01))
            self.alive()
        except ResourceFailed as error:
            raise JournalUnavailable(error.message) from error
        if self.random.random() < self.trouble:
            self.tell("a commit fails" if when == "before" else "the reply of a commit is lost")
            raise JournalUnavailable("simulated")

    def cant_read(self) -> None:
        """Before the journal is read."""
        if self.process.dead:
            raise JournalUnavailable("the process is dead")
        if self.random.random() < self.trouble:
            self.tell("the journal can't be read")
            raise JournalUnavailable("simulated")

    def seconds(self, most: float) -> float:
        """How long something takes."""
        return self.random.uniform(0, most)

    def lies(self) -> str:
        """What the next inventory does."""
        if self.lying and self.random.random() < 0.3:
            lie = self.random.choice(["repeat", "invent", "mistake", "omit"])
            return lie if self.troubled or lie != "omit" else ""
        return ""

    @contextmanager
    def acting(self, identity: Identity, what: str, *, joinable: bool) -> Iterator[None]:
        """Around an action."""
        began = trio.current_time()
        self.stubborn += not joinable
        try:
            with self.truth.acting(identity, what, joinable=joinable):
                yield
        finally:
            self.stubborn -= not joinable
            self.took_s[what] = trio.current_time() - began

    def discarding(self, handle: Handle) -> None:
        """Something is about to be discarded."""
        self.truth.on_discard(self.journal_id, handle)

    # --- what works in the background -------------------------------------------------------------------------------

    def _daemons(self, env: str) -> None:
        """What writes into the stores of an environment that serves, whenever it is not told to be quiet."""
        model = self.truth.models.get(env)
        if model is None or not model.serving or self.random.random() < 0.7:
            return
        store = self.random.choice(self.plan.stores)
        branch = self.world.newest.get((store, model.identity), "")
        namespace = self.world.branches.get(branch)
        if namespace is not None and not namespace.quiesced and self.truth.is_used(branch):
            self.world.write(branch, "tick", str(self.witness(env, model.epoch, "daemon")))

    # --- what agents do ---------------------------------------------------------------------------------------------

    async def tried(
        self,
        what: str,
        work: Callable[[], Awaitable[object]],
        *,
        patience_s: float = 0,
        excused: tuple[type[StateforkError], ...] = (),
    ) -> object:
        """The result, or None where it failed or its caller lost patience. Only errors that have a cause may come.

        ``excused``: errors for which this very work gives cause.
        """
        if not patience_s:
            patience_s = self.seconds(0.1) if self.random.random() < 0.15 else NEVER_S
        try:
            with anyio.move_on_after(patience_s):
                result = await work()
                self.tell(f"{what}: {in_short(result)}")
                return result
            self.tell(f"{what}: cancelled")
        except StateforkError as error:
            self.tell(f"{what}: {type(error).__name__}: {error.message}")
            if not isinstance(error, excused):
                self.check(what, error)
        return None

    def check(self, what: str, error: StateforkError) -> None:
        """Fail unless somebody has cause for the error."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, AssertionError):
                raise AssertionError(str(cause)) from error
            cause = cause.__cause__
        if not (self.troubled or self.rivalled or self.process.dead or isinstance(error, EXPECTED)):
            self.truth.fail("errors", f"{what} met {error!r}")

    def finish_jobs(self) -> None:
        """Whatever works in the background has done its work."""
        for job in sorted({job for namespace in self.world.branches.values() for job in namespace.background}):
            self.world.finish(job)

    def look(self, kernel: Kernel) -> None:
        """Every environment is as it must be."""
        for env in list(kernel.environments):
            self.truth.look(kernel, env)
