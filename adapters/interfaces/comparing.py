"""Comparing two moments, of whatever environments of one contract; what no generation stands at is made for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec
from anyio.to_thread import run_sync

from statefork.adapters.interfaces.environment import Standing
from statefork.adapters.interfaces.forking import Forks
from statefork.engine.capsule import Phase
from statefork.engine.errors import ForeignHandle
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs, Change
from statefork.engine.refs import Ref
from statefork.journal.log import Journal
from statefork.journal.values import Component, Moment, Observation
from statefork.replay.differing import (
    Difference,
    ResourceDifference,
    Sight,
    counted,
    page_difference,
    sight_of,
)
from statefork.replay.lineage import Act, Past
from statefork.replay.rebuild import pasts_of
from statefork.replay.way import Way

CHANGES_MAX = 1_000
"""Changes that are listed per resource unless told otherwise."""
RETIRE_TIMEOUT_S = 30.0
SERVERS = frozenset({"web"})
"""Adapters whose derived resources hold nothing: they are no caches."""

Manifest = Mapping[str, Component]


class Comparing:
    """Compares moments of one engine (see :meth:`statefork.adapters.interfaces.python.Engine.diff`)."""

    def __init__(self, kernel: Kernel, journal: Journal, blobs: Blobs, forks: Forks) -> None:
        self._kernel = kernel
        self._journal = journal
        self._blobs = blobs
        self._forks = forks

    async def diff(self, before: Ref, after: Ref, limit: int, *, look: bool = False) -> Difference:
        """See :meth:`statefork.adapters.interfaces.python.Engine.diff`."""
        async with self._both(before, after) as (old, new):
            known = await self.pasts(after, before)
            old_sight = await self._sight(before, old.moment, known, look=look)
            new_sight = await self._sight(after, new.moment, known, look=look)
            return Difference(
                before=str(before),
                after=str(after),
                before_at=old.moment,
                after_at=new.moment,
                made_before=old.made,
                made_after=new.made,
                resources=await self._resources(old.moment, new.moment, limit),
                page=await run_sync(page_difference, old_sight, new_sight, self._blobs.get),
            )

    # --- moments ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def standing(self, ref: Ref) -> AsyncIterator[Standing]:
        """A generation that holds what the moment held, as long as the body runs.

        The present is published where it was written to. Where none stands at a moment of the past, a child is made of
        it, and retired afterwards. Raises UnknownRef, Diverged.
        """
        if ref.is_now:
            await self._kernel.find(ref.env)
            yield Standing(moment=await self._present(ref.env))
            return
        async with self._forks.standing(ref) as standing:
            yield standing

    @asynccontextmanager
    async def _both(self, before: Ref, after: Ref) -> AsyncIterator[tuple[Standing, Standing]]:
        if before.is_now or after.is_now:
            async with self.standing(before) as old, self.standing(after) as new:
                yield old, new
            return
        async with self._forks.standing_both(before, after) as both:
            yield both

    async def _present(self, env: str) -> Moment:
        capsule = self._kernel.environments[env]
        if capsule.phase is Phase.RETIRED:
            return capsule.moment
        return await self._kernel.publish_changes(env)

    def child_name(self, env: str) -> AbstractAsyncContextManager[str]:
        """A free name for a child of an environment that helps. It is retired when the body ends."""
        return self._forks.child_name(env)

    # --- what is held -------------------------------------------------------------------------------------------

    def manifests(self, before: Moment, after: Moment) -> tuple[Manifest, Manifest]:
        """Of two generations. Raises ForeignHandle where one has what the other has not."""
        old = self._kernel.world.kept(before).manifest
        new = self._kernel.world.kept(after).manifest
        for name in self._kernel.contract.order:
            if name not in old or name not in new:
                raise ForeignHandle(f"{before} and {after} are not of one contract: only one of them has {name!r}")
        return old, new

    @asynccontextmanager
    async def read(self, before: Moment, after: Moment) -> AsyncIterator[tuple[Manifest, Manifest]]:
        """The same; what they name stays there as long as the body runs, in which no transition may be."""
        async with self._kernel.upkeep.reading():
            yield self.manifests(before, after)

    async def changes(self, name: str, old: Component, new: Component) -> AsyncGenerator[Change]:
        """What differs in one resource; nothing is read where both are one version. To be closed."""
        if old.sealed.version == new.sealed.version:
            return
        found = self._kernel.resources[name].diff(old.sealed, new.sealed)
        try:
            async for change in found:
                if not _made_when_bound(change):
                    yield change
        finally:
            if isinstance(found, AsyncGenerator):
                await found.aclose()

    async def _resources(self, before: Moment, after: Moment, limit: int) -> dict[str, ResourceDifference]:
        found: dict[str, ResourceDifference] = {}
        for name in self._kernel.contract.order:
            adapter = self._kernel.resources[name].adapter
            async with (
                self.read(before, after) as (old, new),
                aclosing(self.changes(name, old[name], new[name])) as changes,
            ):
                one = await counted(adapter, changes, limit)
            if new[name].durability == "derived" and adapter not in SERVERS:
                changed = tuple(needed for needed in self._inputs(name) if needed in found and found[needed].total)
                one = msgspec.structs.replace(one, cache="stale" if changed else "fresh", stale_by=changed)
            if one.total or one.cache:
                found[name] = one
        return found

    def _inputs(self, name: str) -> Iterator[str]:
        """What a resource is made from: its ``inputs`` where it names some, else all that it depends on."""
        spec = self._kernel.contract.resources[name]
        inputs = spec.options.get("inputs")
        yield from (str(one) for one in inputs) if isinstance(inputs, list) else spec.depends_on

    # --- what was seen ------------------------------------------------------------------------------------------

    async def pasts(self, *refs: Ref) -> dict[str, Past]:
        """What the journal holds of what led to the moments."""
        await self._journal.flush()
        known: dict[str, Past] = {}
        for ref in refs:
            if ref.env not in known:
                known.update(await pasts_of(self._journal, ref.env))
        return known

    async def _sight(self, ref: Ref, moment: Moment, known: Mapping[str, Past], *, look: bool) -> Sight | None:
        """What was seen last before a moment; None: nothing was, or nobody knows what an action did after it.

        With ``look`` it is looked at then, in a child of the generation that holds what the moment held.
        """
        number, seen = self._recorded(ref, known)
        if seen is None and look:
            async with self.child_name(moment.env) as name:
                (born,) = await self._kernel.fork(moment, (name,), helps=f"looking at {moment}")
                if born.error is not None:
                    raise born.error
                seen = await self._kernel.observe(name)
        return await run_sync(sight_of, number, seen, self._blobs.get) if seen is not None else None

    def _recorded(self, ref: Ref, known: Mapping[str, Past]) -> tuple[int, Observation | None]:
        """The number of the moment's last action that was seen, and what was seen then."""
        way = Way(ref, self._kernel.world, known)
        recording = way.recording(way.origin)
        for step, witnessed in zip(reversed(recording.steps), reversed(recording.witnessed), strict=True):
            if not isinstance(step, Act):
                continue
            if step.opaque or witnessed.outcome == "unknown":
                break
            if witnessed.observation is not None:
                return step.number, witnessed.observation
        return way.actions, None


def _made_when_bound(change: Change) -> bool:
    """Whether it only says that a tree is kept on one side and made from its inputs on the other."""
    kinds = ("rebuild", "built", "copied")
    return change.name == "." and change.before in kinds and change.after in kinds
