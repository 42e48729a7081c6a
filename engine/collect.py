"""Orphans: what exists in the world and the journal does not reach (I11).

Reached are the sealed versions of every published generation that was not pruned, also of retired environments (their
history can still be forked), the bases, and whatever a live context holds. Everything else in the inventories is
removed. Only handles that bear this journal's id, or this place's where several share it, are ever looked at: a foreign
one is somebody else's.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from statefork.engine.contract import Contract
from statefork.engine.ledger import Ledger
from statefork.engine.ports import Resource
from statefork.journal.errors import StateforkError
from statefork.journal.events import OrphanCollected
from statefork.journal.values import Binding, Branch, Handle, Sealed, Value

_logger = logging.getLogger(__name__)

Counted = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


def nobody_counts(_done: int, _of: int) -> None:
    """For whoever does not want to know."""


class Orphan(Value, frozen=True, kw_only=True):
    """Something that was removed, or could not be."""

    resource: str
    kind: str  # binding | branch | sealed
    name: str
    error: str = ""

    @property
    def named(self) -> tuple[str, str, str]:
        """Kind, name and resource, as a sentence has them."""
        return self.kind, self.name, self.resource


class GcReport(Value, frozen=True, kw_only=True):
    """What a collection found. ``foreign``: handles of other journals and places, which were left alone."""

    collected: tuple[Orphan, ...] = ()
    failed: tuple[Orphan, ...] = ()
    kept: int = 0
    foreign: int = 0


class Sharing:
    """Transitions share the world; a collection has it alone, so that it never meets what is half made."""

    def __init__(self) -> None:
        self._sharers = 0
        self._alone = anyio.Lock()
        self._left = anyio.Event()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """With others, but not beside a collection."""
        async with self._alone:
            self._sharers += 1
        try:
            yield
        finally:
            self._sharers -= 1
            if not self._sharers:
                self._left.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """When the sharers of this moment have left, and before any new one."""
        async with self._alone:
            while self._sharers:
                self._left = anyio.Event()
                await self._left.wait()
            yield


def kind_of(handle: Handle) -> str:
    """What people call it."""
    return type(handle).__name__.lower()


def name_of(handle: Handle) -> str:
    """The handle's own name within its resource."""
    match handle:
        case Sealed():
            return handle.version
        case Branch():
            return handle.id
        case Binding():
            return f"{handle.branch} for {handle.identity}"


async def collect(
    ledger: Ledger,
    contract: Contract,
    resources: Mapping[str, Resource],
    live: Iterable[Handle],
    *,
    parallel_max: int = 1,
    count: Counted = nobody_counts,
) -> GcReport:
    """Remove every orphan: bindings first, then branches, then sealed versions. Call it while nothing is being staged.

    ``parallel_max``: how many are removed at once. ``count`` is called with how many were, of those found so far. What
    can't be listed or removed is reported in ``failed``, and tried again by the next collection. Raises
    JournalUnavailable while it is not known what the journal holds.
    """
    await ledger.settle_engine()  # a base that was made may be journaled, and not known
    held = {(kind_of(handle), handle.resource, name_of(handle)) for handle in live}
    collected: list[Orphan] = []
    failed: list[Orphan] = []
    kept = foreign = 0
    for name in reversed(contract.order):
        try:
            found = await _look_through(ledger, resources[name], name, held)
        except Exception as error:
            _logger.exception("the inventory of %s can't be read", name)
            failed.append(Orphan(resource=name, kind="inventory", name=name, error=str(error)))
            continue
        kept += found.kept
        foreign += found.foreign
        orphans = sorted(found.orphans, key=lambda handle: (kind_of(handle) == "sealed", kind_of(handle)))
        before = len(collected) + len(failed)
        removed, left = await remove(ledger, resources, orphans, parallel_max=parallel_max, count=_after(before, count))
        collected += removed
        failed += left
    return GcReport(collected=tuple(collected), failed=tuple(failed), kept=kept, foreign=foreign)


def _after(before: int, count: Counted) -> Counted:
    """The same for what comes after so many."""
    return lambda done, of: count(before + done, before + of)


async def remove(
    ledger: Ledger,
    resources: Mapping[str, Resource],
    orphans: Sequence[Handle],
    *,
    parallel_max: int,
    count: Counted = nobody_counts,
) -> tuple[list[Orphan], list[Orphan]]:
    """Remove these, each with an event; what was removed, and what could not be.

    In this order, where resource or kind differ: what follows each other and is of one kind goes at once. A server
    that writes down all it has for each database that goes (PostgreSQL) does so once for those that go together.
    """
    removed: dict[int, Orphan] = {}
    limiter = anyio.CapacityLimiter(parallel_max)

    async def one(place: int, handle: Handle) -> None:
        async with limiter:
            removed[place] = await _removed(ledger, resources, handle)
        count(len(removed), len(orphans))

    if orphans:
        count(0, len(orphans))
    numbered = enumerate(orphans)
    for _, alike in itertools.groupby(numbered, key=lambda pair: (pair[1].resource, kind_of(pair[1]))):
        async with anyio.create_task_group() as tasks:
            for place, handle in alike:
                tasks.start_soon(one, place, handle)
    told = [removed[place] for place in sorted(removed)]
    return [one for one in told if not one.error], [one for one in told if one.error]


async def _removed(ledger: Ledger, resources: Mapping[str, Resource], handle: Handle) -> Orphan:
    orphan = Orphan(resource=handle.resource, kind=kind_of(handle), name=name_of(handle))
    try:
        await resources[handle.resource].discard(handle)
    except Exception as error:
        unknown = None if isinstance(error, StateforkError) else error  # ours say it all in a line
        _logger.error("%s %s of %s can't be removed: %s", *orphan.named, error, exc_info=unknown)
        return replace(orphan, error=str(error) or type(error).__name__)
    ledger.ride_engine(
        OrphanCollected(at=ledger.clock.now(), resource=orphan.resource, kind=orphan.kind, name=orphan.name)
    )
    return orphan


class _Found(NamedTuple):
    orphans: list[Handle]
    kept: int
    foreign: int


async def _look_through(ledger: Ledger, resource: Resource, name: str, held: set[tuple[str, str, str]]) -> _Found:
    """One inventory, a handle at a time; of what is sealed only the names are kept, and looked up all together."""
    orphans: list[Handle] = []
    sealed: set[tuple[str, str]] = set()
    kept = foreign = 0
    async for handle in resource.inventory():
        if handle.journal != ledger.owner or handle.resource != name:
            foreign += 1
        elif isinstance(handle, Sealed):
            sealed.add((name, handle.version))
        elif (kind_of(handle), name, name_of(handle)) in held:
            kept += 1
        else:
            orphans.append(handle)
    unreached = ledger.world.unreached(sealed)
    if unreached:  # there are few, and seldom any
        orphans += [
            handle
            async for handle in resource.inventory()
            if isinstance(handle, Sealed)
            and handle.journal == ledger.owner
            and (handle.resource, handle.version) in unreached
        ]
    return _Found(orphans, kept + len(sealed) - len(unreached), foreign)
