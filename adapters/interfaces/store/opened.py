"""The store of a running engine: mounted for it, watched, grown, and unmounted at its end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from statefork.adapters.interfaces.store.errors import StoreFull, StoreLost, StoreUnavailable
from statefork.adapters.interfaces.store.growth import follow, free_bytes, grow_if_needed, growing
from statefork.adapters.interfaces.store.kinds import superblock
from statefork.adapters.interfaces.store.making import finish
from statefork.adapters.interfaces.store.mounting import Mounted, mount_store
from statefork.adapters.interfaces.store.place import Mark, Place, has_store, read_mark, read_record, write_mark
from statefork.adapters.interfaces.store.sizes import MIB
from statefork.journal.errors import StateForeign

WATCH_EVERY_S = 0.25
_UNFINISHED_BYTES_MIN = 32 * MIB  # file systems are whole groups of blocks, and a little smaller than their image
_logger = logging.getLogger(__name__)


class Store:
    """A mounted store of a journal."""

    def __init__(self, mounted: Mounted) -> None:
        self.mounted = mounted
        self.lost: StoreLost | None = None

    async def keep(self) -> None:
        """Return when all that was written in it outlives the engine. Raises StoreLost.

        The blocks of an image that was set aside are there; those of a sparse one may not be, and then the kernel
        would find that out after the fact.
        """
        await anyio.to_thread.run_sync(self._keep)

    def _keep(self) -> None:
        self._check()
        if self.mounted.record.sparse:
            try:
                self.mounted.sync()
            except StoreLost as lost:
                self.lost = lost  # for good: what could not be written is dropped, and the next try would succeed
                raise

    def _check(self) -> None:
        if self.lost is None:
            self.mounted.check()
        else:
            raise self.lost

    def look(self) -> None:
        """What the watch does each time. Raises StoreLost."""
        self._check()
        try:
            grown = grow_if_needed(self.mounted)
        except (StoreFull, StoreUnavailable) as error:
            _logger.warning("the store is nearly full and could not be grown: %s", error)
        else:
            if grown:
                _logger.info("the store was grown by %d MiB", grown // MIB)

    @property
    def free_bytes(self) -> int:
        """What may still be written in it, before it grows."""
        return free_bytes(self.mounted.place.mounted)


@asynccontextmanager
async def open_store(state: Path, journal: str) -> AsyncIterator[Store | None]:
    """Mount the store of a state directory, if it has one, for as long as the body runs. Call under its lock.

    When it is lost the body is cancelled and StoreLost is raised. Raises StoreUnavailable, StoreForeign, StateForeign.
    """
    await anyio.to_thread.run_sync(finish, state)
    if not has_store(state):
        yield None
        return
    store = Store(await anyio.to_thread.run_sync(_mount, state, journal))
    try:
        async with _watched(store):
            yield store
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(store.mounted.close)


@asynccontextmanager
async def _watched(store: Store) -> AsyncIterator[None]:
    failure: Exception | None = None

    async def watch() -> None:
        while True:
            await anyio.sleep(WATCH_EVERY_S)
            try:
                await anyio.to_thread.run_sync(store.look)
            except StoreLost as lost:
                store.lost = lost
                break
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, name="watch the store")
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            failure = error
        tasks.cancel_scope.cancel()
    if store.lost is not None:
        raise store.lost from failure
    if failure is not None:
        raise failure


def _mount(state: Path, journal: str) -> Mounted:
    place = Place.of(state)
    mounted = mount_store(place, read_record(place))
    try:
        _own(place, journal)
        found = superblock(place.image) if mounted.ours else None
        if found is not None and place.image.stat().st_size - found.bytes >= _UNFINISHED_BYTES_MIN:
            with growing(place):
                follow(place, mounted.record)
    except BaseException:
        mounted.close()
        raise
    return mounted


def _own(place: Place, journal: str) -> None:
    """The first journal that opens a store owns it."""
    mark = read_mark(place)
    if mark.journal == journal:
        return
    if mark.journal:
        raise StateForeign(
            f"the store of {place.state} is of journal {mark.journal}, and the journal here is {journal}",
            hint="Put the image or the journal back that belongs here; nothing was changed",
            path=str(place.image),
        )
    write_mark(place, Mark(id=mark.id, journal=journal))
