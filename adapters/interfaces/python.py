"""The Python face: :func:`open_engine` wires journal, kernel, adapters and gateway together (the composition root).

::

    async with statefork.open_engine("shop", state="./state") as engine:
        env = await engine.create("shop-1")
        seen = await env.act(Goto("http://shop.example/"))
        ref = await env.snapshot()
        left, right = await engine.fork("shop-1", n=2)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from statefork.adapters.interfaces.assembly import Assembled, assemble
from statefork.adapters.interfaces.bisecting import Bisecting, Bisection, Check, Span, Watch, nobody_watches, span
from statefork.adapters.interfaces.blaming import Blaming
from statefork.adapters.interfaces.carrying import Carrying, Exported, Imported
from statefork.adapters.interfaces.carrying import nobody_watches as nobody_looks
from statefork.adapters.interfaces.comparing import CHANGES_MAX as DIFF_CHANGES_MAX
from statefork.adapters.interfaces.comparing import Comparing
from statefork.adapters.interfaces.environment import Environment, chosen, making
from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.interfaces.views import Cost, ProcessCost
from statefork.adapters.interfaces.worlds import Progress
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.collect import Counted, GcReport, nobody_counts
from statefork.engine.errors import ContractError, PartialFailure
from statefork.engine.kernel import BulkResult, DrainPolicy, Kernel, Settings
from statefork.engine.memory import process_pss
from statefork.engine.ports import Blobs, Resident
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import Ref, as_ref, resolve, to_mark
from statefork.engine.slots import EVERY_KIND
from statefork.journal.log import Journal
from statefork.journal.values import Json, Moment
from statefork.replay.blame import Blame, asked
from statefork.replay.differing import Difference
from statefork.replay.rollout import RolloutResult, rollout
from statefork.replay.stage import Progress as Played
from statefork.replay.stage import nobody_watches as nobody_plays
from statefork.replay.steps import OnStep, nobody_asks

__all__ = ["DIFF_CHANGES_MAX", "Engine", "Environment", "open_engine"]


class Engine:
    """One open state directory: environments are made, found, forked and replayed through it."""

    def __init__(self, assembled: Assembled) -> None:
        self._assembled = assembled
        self.kernel: Kernel = assembled.kernel
        self.blobs: Blobs = assembled.blobs
        self.journal: Journal = assembled.journal
        self.state: Path = assembled.state
        self._forks = Forks(self.kernel, self.journal, self.blobs)
        self._comparing = Comparing(self.kernel, self.journal, self.blobs, self._forks)
        self._carrying = Carrying(self.kernel, self.journal, self.blobs, self.state, self._forks)

    # --- environments -------------------------------------------------------------------------------------------

    @property
    def capsules(self) -> Mapping[str, Capsule]:
        """The control state of every environment, retired ones included."""
        return self.kernel.environments

    @property
    def recovered(self) -> RecoveryReport:
        """What opening this state directory found and repaired."""
        return self.kernel.recovered

    @property
    def place(self) -> str:
        """The name of this state directory in a journal that several may share; empty where the journal is its own."""
        return self.kernel.world.place or ""

    def environments(self) -> list[Environment]:
        """Every environment that is not retired, in the order of their names."""
        alive = (name for name, capsule in sorted(self.capsules.items()) if capsule.phase is not Phase.RETIRED)
        return [Environment(self.kernel, self.blobs, name, self._forks) for name in alive]

    def environment(self, name: str) -> Environment:
        """The environment of that name. Raises UnknownEnvironment.

        See :meth:`find` for names that another engine may have given meanwhile.
        """
        self.kernel.world.capsule(name)
        return Environment(self.kernel, self.blobs, name, self._forks)

    async def find(self, name: str) -> Environment:
        """The same. Where several engines share the journal it is asked whose an unknown name is.

        Raises UnknownEnvironment, and EnvironmentElsewhere where it lives in another state directory.
        """
        await self.kernel.find(name)
        return self.environment(name)

    async def create(
        self, name: str, *, key: str | None = None, snapshots: str | None = None, retention: str | None = None
    ) -> Environment:
        """A new environment over the contract's base: generation 1, bound and probed.

        ``key``, here and below: a text of the caller's choice. Who gives the same command again with the same key gets
        the answer of the first time, and nothing happens twice: also after a crash, and for ever. Raises KeyReused
        where it was given with another command.

        ``snapshots``, ``retention``: as in Environment.keep_snapshots and keep_generations, from generation 1 on.

        Raises EnvironmentExists, ContractError for a text that is no policy, TransitionAborted (naming the component
        that failed).
        """
        await self.kernel.create(name, key=key, choice=chosen(snapshots, retention))
        return self.environment(name)

    async def create_many(
        self,
        names: Sequence[str],
        *,
        key: str | None = None,
        snapshots: str | None = None,
        retention: str | None = None,
        count: Counted = nobody_counts,
    ) -> list[Environment]:
        """Several at once; as many are bound as there are slots, the others when they are used.

        ``count``, here and below, is called with how many are done, and of how many. Each succeeds or fails on its own:
        PartialFailure carries the names of those that are there, and the others' errors. Raises LimitReached.
        """
        results = await self.kernel.create_each(names, key=key, choice=chosen(snapshots, retention), count=count)
        _check_all("create", results)
        return [self.environment(result.env) for result in results]

    async def reset_many(
        self,
        names: Sequence[str],
        *,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        count: Counted = nobody_counts,
    ) -> list[Moment]:
        """Several back to their origins at once; each succeeds or fails on its own (PartialFailure)."""
        results = await self.kernel.reset_each(names, drain=drain, key=key, count=count)
        return _check_all("reset", results)

    async def fork(
        self,
        ref: str | Ref | Moment,
        *,
        n: int = 1,
        names: Sequence[str] | None = None,
        key: str | None = None,
        progress: Played = nobody_plays,
        count: Counted = nobody_counts,
    ) -> list[Environment]:
        """``n`` children that continue from a moment: the present (one snapshot for all), or any of the past.

        Where no generation was published at the moment, the recorded actions from the nearest one are carried out
        again, in the first child, and compared; the others continue from that. ``made`` of each child says how it went:
        ``exact-observed``, or ``unverified`` with what could not be done again or compared. Children are called
        ``<parent>-f1`` and so on unless ``names`` says otherwise; as many are bound as there are slots, the others when
        they are used. Each succeeds or fails on its own: PartialFork carries the survivors' names and the others'
        errors. A repetition with the same ``key`` returns the same children, and makes those that had failed, of the
        same moment. ``progress`` is called with the number of actions and inputs that were done again, and of all;
        ``count`` of children. Raises UnknownRef, LimitReached; Diverged where an action went otherwise this time: the
        first child is left as it was then, to be looked at, and the others are retired.
        """
        children = n if names is None else tuple(names)
        return await self._forks.fork(as_ref(ref), children, key=key, progress=progress, count=count)

    async def lend(self, ref: str | Ref | Moment, what_for: str, *, progress: Played = nobody_plays) -> Environment:
        """A child of a moment for the use of one command, which gives it back (:meth:`take_back`) at its end.

        Where that is cut short, the next opening of the state directory retires it, and says for what it was there.
        Raises UnknownRef, Diverged.
        """
        return await self._forks.lend(as_ref(ref), what_for, progress)

    async def take_back(self, name: str) -> None:
        """Retire what was lent. Idempotent; what is in its way raises nothing, and the next opening does it then."""
        await self._forks.take_back(name)

    async def clone(
        self, ref: str | Ref | Moment, name: str, *, key: str | None = None, progress: Played = nobody_plays
    ) -> Environment:
        """A new environment whose origin (generation 1) is that moment: the present, or any of the past.

        One that nobody sealed is made first, in a child beside, as for a fork, and ``made`` says how that went;
        ``progress`` as there. Raises UnknownRef, EnvironmentExists, Diverged.
        """
        ref = as_ref(ref)
        await self.kernel.find(ref.env)
        clone = Environment(self.kernel, self.blobs, name, self._forks)
        await self.kernel.clone(ref.env if ref.is_now else making(ref, clone, self._forks, progress), name, key=key)
        return clone

    def moment(self, ref: str | Ref | Moment) -> Moment:
        """The published generation a ref names. Raises UnknownRef with the nearest one."""
        return resolve(as_ref(ref), self.kernel.histories())

    # --- the past -----------------------------------------------------------------------------------------------

    async def replay(
        self,
        to: str | Ref | Moment,
        *,
        start: str | Ref | Moment | None = None,
        keep: bool = False,
        states: bool = True,
        progress: Played = nobody_plays,
        on_step: OnStep = nobody_asks,
    ) -> RolloutResult:
        """Re-execute what led to a moment (of an environment's name: to its present) and compare every observation.

        On a fresh fork of the origin, or of the last generation at or before ``start``; it is retired afterwards unless
        ``keep``. Where a generation was published at the moment, what its stores hold is compared as well, unless
        ``states`` is False (large databases take a while). ``progress`` is called with the number of steps done and of
        all; ``on_step`` with each step's StepResult, the one that went otherwise included. It may be asynchronous, and
        ends the replay by returning False: the rest is unverified then. Raises UnknownEnvironment, UnknownRef,
        TransitionAborted.
        """
        end = as_ref(to)
        await self.kernel.find(end.env)
        return await rollout(
            self.kernel,
            self.journal,
            self.blobs,
            end,
            start=None if start is None else as_ref(start),
            keep=keep,
            states=states,
            progress=progress,
            on_step=on_step,
        )

    async def bisect(
        self, good: str | Ref | Moment, bad: str | Ref | Moment, check: Check, *, watch: Watch = nobody_watches
    ) -> Bisection:
        """The first action after which ``check`` fails, of those between two moments of one history.

        About log2(n) moments are made, each in an environment of its own that ``check`` may use as it likes; it answers
        True (it holds), False, or None (that can't be said here). ``good`` and ``bad`` themselves are not asked.
        ``watch`` is called with each ref and its answer. Raises UnknownRef, NothingBetween, Diverged where a moment
        could not be made as it was.
        """
        return await Bisecting(self._forks, self.kernel.world).bisect(as_ref(good), as_ref(bad), check, watch)

    def between(self, good: str | Ref | Moment, bad: str | Ref | Moment) -> Span:
        """The moments of one history between two ends, by number. Raises UnknownRef."""
        return span(self.kernel.world, as_ref(good), as_ref(bad))

    async def diff(
        self,
        before: str | Ref | Moment,
        after: str | Ref | Moment,
        *,
        limit: int = DIFF_CHANGES_MAX,
        look: bool = False,
    ) -> Difference:
        """What differs between any two moments, of whatever environments of one contract.

        By resource at most ``limit`` changes, and how many there are; and what was seen last before each moment, or,
        with ``look`` and where nothing was, what a child that is made of the moment shows. The present is published
        where it was written to. A moment of the past at which no generation stands is made in an environment of its
        own, which is retired afterwards, also where it fails. Values of secrets are covered: see
        :mod:`statefork.replay.covering`. Raises UnknownRef, ForeignHandle (of two contracts), Diverged.
        """
        return await self._comparing.diff(as_ref(before), as_ref(after), limit, look=look)

    async def blame(
        self,
        ref: str | Ref | Moment,
        *,
        row: tuple[str, Json] | None = None,
        file: str | None = None,
        item: str | None = None,
        resource: str | None = None,
        thorough: bool = False,
        progress: Played = nobody_plays,
    ) -> Blame:
        """The action that last changed one thing on the way to a moment.

        ``row``: of a database, its table and key (of several columns a list); ``file``: a path in a tree; ``item``: any
        other thing, by the name that ``diff`` gives it. ``resource``: where; without it wherever there may be such a
        thing. Where several actions lie between two generations that differ in it, they are done again in an
        environment of its own, which is retired afterwards; ``progress`` is called with how many were, and of how many.
        What was changed and changed back between two generations is found only with ``thorough``, which does every
        stretch again in which something was written. Raises UnknownRef, ContractError, TransitionAborted.
        """
        blaming = Blaming(self.kernel, self.journal, self.blobs, self._comparing)
        return await blaming.blame(as_ref(ref), asked(row, file, item, resource), progress, thorough=thorough)

    async def export(
        self,
        ref: str | Ref | Moment,
        path: str | Path,
        progress: Progress = nobody_looks,
        *,
        ends: bool = False,
        base: bool = True,
        secrets: bool = False,
    ) -> Exported:
        """Write a moment, and all that led to it, into one file that can be imported on another machine.

        The present is published first; a moment of the past that nobody sealed is made in an environment of its own.
        ``ends``: no generations but the origin and the last. ``base`` False: without what the contract's base has.
        ``secrets``: with Authorization headers of recorded requests, which are left out otherwise. The file is there
        once it is whole. Raises UnknownRef, Diverged, NotPortable, ResourceFailed, BlobMissing.
        """
        return await self._carrying.export(as_ref(ref), Path(path), progress, ends=ends, base=base, secrets=secrets)

    async def import_(self, path: str | Path, name: str | None = None, progress: Progress = nobody_looks) -> Imported:
        """A new environment with the content and the past that a file holds; parked until it is used.

        Everything in the file is verified before anything is made. It is called ``name``, or as where it comes from.
        Raises ExportUnreadable, ContractDiffers, EnvironmentExists, ResourceFailed; nothing is left of it then.
        """
        return await self._carrying.import_(Path(path), name, progress)

    # --- cost and upkeep ----------------------------------------------------------------------------------------

    async def mark(self, ref: str | Ref | Moment, text: str) -> Moment:
        """Call a published generation something, which keeps it from being pruned; an empty text takes that away.

        A name alone means the newest generation. Raises UnknownRef, GenerationPruned, InvalidName.
        """
        wanted = as_ref(ref)
        await self.kernel.find(wanted.env)
        capsule = self.kernel.histories()[wanted.env]
        moment = capsule.moment if wanted.is_now else to_mark(wanted, self.kernel.histories())
        await self.kernel.upkeep.mark(moment, text)
        return moment

    async def gc(self, count: Counted = nobody_counts) -> GcReport:
        """Remove what no environment reaches: orphans, and sealed versions of no generation."""
        return await self.kernel.collect(count)

    async def cost(self) -> Cost:
        """Memory of the shared runtimes (PSS) and each environment's private bytes on disk."""
        private = {env.name: await env.private_bytes() for env in self.environments()}
        processes = {
            name: resource.process_ids()
            for name, resource in self.kernel.resources.items()
            if isinstance(resource, Resident)
        }
        return await anyio.to_thread.run_sync(_cost, processes, private)


def _check_all(doing: str, results: Sequence[BulkResult]) -> list[Moment]:
    """The moments of all. Raises PartialFailure when one has none."""
    failed = {result.env: result.error for result in results if result.error is not None}
    if failed:
        raise PartialFailure(doing, [result.env for result in results if result.error is None], failed)
    return [result.moment for result in results if result.moment is not None]


def _cost(processes: Mapping[str, Sequence[int]], private: dict[str, dict[str, int]]) -> Cost:
    return Cost(
        runtimes=tuple(
            ProcessCost(resource=name, processes=len(pids), pss_bytes=sum(process_pss(pid) for pid in pids))
            for name, pids in processes.items()
        ),
        engine_pss_bytes=process_pss(os.getpid()),
        private_bytes=private,
    )


def with_slots(settings: Settings, slots: int | None) -> Settings:
    """The settings with this many slots of every kind. Raises ContractError for a number below 1."""
    if slots is None:
        return settings
    if slots < 1:
        raise ContractError(
            f"{slots} slots are too few: one is needed to act", hint="Leave it out for no limit", key="slots"
        )
    return msgspec.structs.replace(settings, max_slots={**settings.max_slots, EVERY_KIND: slots})


@asynccontextmanager
async def open_engine(
    contract: str | Path,
    *,
    state: str | Path = "./state",
    slots: int | None = None,
    settings: Settings | None = None,
    journal: str | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[Engine]:
    """Open a state directory for a contract (a path, or the name of a packaged world) and serve it.

    Bases are built and runtimes started as needed; what a crash left behind is settled first (``engine.recovered``).
    Leaving parks every environment. ``slots``: how many are bound at once, all others being parked until they are used
    (``settings.max_slots`` says it by kind). ``journal``: the address of the journal where that is to be in a
    PostgreSQL database (``postgresql://user@host/database``) and not a file in the state directory; engines of several
    directories may share it. ``progress`` is called with a fraction and what is being done: building, starting,
    recovering. Raises ContractError, MissingDependency, StateLocked, JournalCorrupt, JournalUnavailable.
    """
    chosen = with_slots(settings or Settings(), slots)
    async with assemble(contract, state=Path(state), settings=chosen, progress=progress, journal=journal) as assembled:
        yield Engine(assembled)
