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
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.views import Cost, ProcessCost
from statefork.adapters.interfaces.worlds import Progress
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.collect import GcReport
from statefork.engine.errors import ContractError, ForeignHandle, PartialFailure, PartialFork
from statefork.engine.kernel import BulkResult, DrainPolicy, Kernel, Settings
from statefork.engine.memory import process_pss
from statefork.engine.ports import Blobs, Change, Resident
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import Ref, as_ref, resolve
from statefork.engine.slots import EVERY_KIND
from statefork.journal.log import Journal
from statefork.journal.values import Moment
from statefork.replay.rollout import RolloutResult, rollout

__all__ = ["Engine", "Environment", "open_engine"]

DIFF_CHANGES_MAX = 1_000
"""Changes that ``diff`` lists per resource unless told otherwise."""


class Engine:
    """One open state directory: environments are made, found, forked and replayed through it."""

    def __init__(self, assembled: Assembled) -> None:
        self._assembled = assembled
        self.kernel: Kernel = assembled.kernel
        self.blobs: Blobs = assembled.blobs
        self.journal: Journal = assembled.journal
        self.state: Path = assembled.state

    # --- environments -------------------------------------------------------------------------------------------

    @property
    def capsules(self) -> Mapping[str, Capsule]:
        """The control state of every environment, retired ones included."""
        return self.kernel.environments

    @property
    def recovered(self) -> RecoveryReport:
        """What opening this state directory found and repaired."""
        return self.kernel.recovered

    def environments(self) -> list[Environment]:
        """Every environment that is not retired, in the order of their names."""
        alive = (name for name, capsule in sorted(self.capsules.items()) if capsule.phase is not Phase.RETIRED)
        return [Environment(self.kernel, self.blobs, name) for name in alive]

    def environment(self, name: str) -> Environment:
        """The environment of that name. Raises UnknownEnvironment."""
        self.kernel.world.capsule(name)
        return Environment(self.kernel, self.blobs, name)

    async def create(self, name: str, *, key: str | None = None) -> Environment:
        """A new environment over the contract's base: generation 1, bound and probed.

        ``key``, here and below: a text of the caller's choice. Who gives the same command again with the same key gets
        the answer of the first time, and nothing happens twice: also after a crash, and for ever. Raises KeyReused
        where it was given with another command.

        Raises EnvironmentExists, TransitionAborted (naming the component that failed).
        """
        await self.kernel.create(name, key=key)
        return self.environment(name)

    async def create_many(self, names: Sequence[str], *, key: str | None = None) -> list[Environment]:
        """Several at once; as many are bound as there are slots, the others when they are used.

        Each succeeds or fails on its own: PartialFailure carries the names of those that are there, and the others'
        errors. Raises LimitReached.
        """
        results = await self.kernel.create_each(names, key=key)
        _check_all("create", results)
        return [self.environment(result.env) for result in results]

    async def reset_many(
        self, names: Sequence[str], *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> list[Moment]:
        """Several back to their origins at once; each succeeds or fails on its own (PartialFailure)."""
        results = await self.kernel.reset_each(names, drain=drain, key=key)
        return _check_all("reset", results)

    async def fork(
        self, ref: str | Ref | Moment, *, n: int = 1, names: Sequence[str] | None = None, key: str | None = None
    ) -> list[Environment]:
        """``n`` children that continue from a moment: the present (one snapshot for all), or a published generation.

        Children are called ``<parent>-f1`` and so on unless ``names`` says otherwise; as many are bound as there are
        slots, the others when they are used. Each succeeds or fails on its own: PartialFork carries the survivors'
        names and the others' errors. A repetition with the same ``key`` returns the same children, and makes those
        that had failed, of the same moment. Raises UnknownRef, LimitReached.
        """
        ref = as_ref(ref)
        self.kernel.world.capsule(ref.env)
        source = ref.env if ref.is_now else resolve(ref, self.kernel.histories())
        results = await self.kernel.fork(source, n if names is None else tuple(names), key=key)
        failed = {result.env: result.error for result in results if result.error is not None}
        born = [self.environment(result.env) for result in results if result.error is None]
        if failed and len(results) == 1:
            raise next(iter(failed.values()))
        if failed:
            raise PartialFork(str(ref), [child.name for child in born], failed)
        return born

    async def clone(self, ref: str | Ref | Moment, name: str, *, key: str | None = None) -> Environment:
        """A new environment whose origin (generation 1) is that moment. Raises UnknownRef, EnvironmentExists."""
        ref = as_ref(ref)
        self.kernel.world.capsule(ref.env)
        source = ref.env if ref.is_now else resolve(ref, self.kernel.histories())
        await self.kernel.clone(source, name, key=key)
        return self.environment(name)

    def moment(self, ref: str | Ref | Moment) -> Moment:
        """The published generation a ref names. Raises UnknownRef with the nearest one."""
        return resolve(as_ref(ref), self.kernel.histories())

    # --- the past -----------------------------------------------------------------------------------------------

    async def replay(self, name: str, *, keep: bool = False) -> RolloutResult:
        """Re-execute the environment's trajectory on a fresh fork of its origin and compare every observation.

        The fork is retired afterwards unless ``keep``. Raises UnknownEnvironment, TransitionAborted.
        """
        return await rollout(self.kernel, self.journal, self.blobs, name, keep=keep)

    async def diff(
        self, before: str | Ref | Moment, after: str | Ref | Moment, *, limit: int = DIFF_CHANGES_MAX
    ) -> dict[str, list[Change]]:
        """What differs between two published generations, by resource, at most ``limit`` changes each."""
        old = self.kernel.world.generation(self.moment(before)).manifest
        new = self.kernel.world.generation(self.moment(after)).manifest
        changes: dict[str, list[Change]] = {}
        for name in self.kernel.contract.order:
            if name not in old or name not in new:
                raise ForeignHandle(f"{before} and {after} are not of one contract: only one of them has {name!r}")
            if old[name].sealed.version == new[name].sealed.version:
                continue
            found: list[Change] = []
            async for change in self.kernel.resources[name].diff(old[name].sealed, new[name].sealed):
                found.append(change)
                if len(found) >= limit:
                    break
            if found:
                changes[name] = found
        return changes

    # --- cost and upkeep ----------------------------------------------------------------------------------------

    async def gc(self) -> GcReport:
        """Remove what no environment reaches: orphans, and sealed versions of no generation."""
        return await self.kernel.collect()

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
    progress: Progress | None = None,
) -> AsyncIterator[Engine]:
    """Open a state directory for a contract (a path, or the name of a packaged world) and serve it.

    Bases are built and runtimes started as needed; what a crash left behind is settled first (``engine.recovered``).
    Leaving parks every environment. ``slots``: how many are bound at once, all others being parked until they are used
    (``settings.max_slots`` says it by kind). ``progress`` is called with a fraction and a sentence while bases are
    built. Raises ContractError, MissingDependency, StateLocked, JournalCorrupt.
    """
    chosen = with_slots(settings or Settings(), slots)
    async with assemble(contract, state=Path(state), settings=chosen, progress=progress) as assembled:
        yield Engine(assembled)
