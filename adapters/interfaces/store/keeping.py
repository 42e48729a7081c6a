"""What is done to a store that exists: grown, tidied, mounted by hand. Beside a running engine where that can be."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from statefork.adapters.interfaces.store.errors import StoreMissing, StoreNotLarger, StoreUnavailable
from statefork.adapters.interfaces.store.growth import GROWTH_BYTES_MIN, extend, follow, growing
from statefork.adapters.interfaces.store.making import discard_partial, finish
from statefork.adapters.interfaces.store.mounting import is_mounted, mount_store, unmount
from statefork.adapters.interfaces.store.place import Place, Record, has_store, read_record, write_record
from statefork.adapters.interfaces.store.sizes import MIB, show_size
from statefork.journal.errors import StateforkError, StateLocked
from statefork.journal.lock import StateLock

_FITRIM = 0xC0185879
_RANGE = struct.Struct("=QQQ")

Progress = Callable[[float, str], None]


class Resized(msgspec.Struct, frozen=True, kw_only=True):
    """A growth."""

    before_bytes: int
    size_bytes: int
    limit_bytes: int


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What ``store gc`` did. ``given_back_bytes``: to the disk below, which only a sparse store does."""

    unfinished: bool = False
    unmounted: bool = False
    given_back_bytes: int = 0


def place_of(state: Path) -> Place:
    """The store's place. Raises StoreMissing."""
    if not has_store(state):
        raise StoreMissing(f"{state} has no store", hint="Make one: statefork store init", path=str(state))
    return Place.of(state)


@contextmanager
def reachable(state: Path) -> Iterator[tuple[Place, Record]]:
    """A store that is mounted: as an engine has it, or else for the body.

    Raises StoreMissing, StoreUnavailable, StoreForeign, StateLocked (an engine is opening or closing it).
    """
    place = place_of(state)
    if os.geteuid() != 0:
        raise StoreUnavailable("only root can do this to a store", hint="Run as root", path=str(place.folder))
    if is_mounted(place):
        yield place, read_record(place)
        return
    with StateLock(state):
        finish(state)
        mounted = mount_store(place, read_record(place))
        try:
            yield place, mounted.record
        finally:
            mounted.close()


def resize(state: Path, size: int | None, limit: int | None, progress: Progress) -> Resized:
    """Make a store ``size`` bytes large (None: leave its size), also under a running engine, and set how far it grows.

    Raises StoreFull, StoreNotLarger, and what ``reachable`` raises.
    """
    with reachable(state) as (place, record), growing(place):
        before = place.image.stat().st_size
        size = None if size is None else size // MIB * MIB
        if size is not None and size - before < GROWTH_BYTES_MIN:
            raise StoreNotLarger(
                f"the store of {state} has {show_size(before)}, and stores only grow, by {show_size(GROWTH_BYTES_MIN)} "
                f"or more: {show_size(size)} was asked for",
                hint="Ask for more; for a smaller one, make one for another state directory, and copy the resources",
                path=str(place.image),
            )
        new_limit = record.limit_bytes if limit is None else limit
        if size is not None:
            if new_limit:
                new_limit = max(size, new_limit)
            progress(0.2, f"setting {show_size(size - before)} aside")
            extend(place.image, size, sparse=record.sparse)
        progress(0.7, "growing the file system")
        follow(place, record)
        if new_limit != record.limit_bytes:
            write_record(place, msgspec.structs.replace(record, limit_bytes=new_limit))
        return Resized(before_bytes=before, size_bytes=max(size or 0, before), limit_bytes=new_limit)


def collect(state: Path, progress: Progress) -> Collected:
    """Remove what a killed `init` or engine left of stores, and give free blocks of a sparse one back to the disk."""
    unfinished = unmounted = False
    place = Place.of(state)
    with _alone(state) as alone:
        if alone:
            unfinished = discard_partial(state)
            finish(state)
            if has_store(state) and is_mounted(place):
                unmounted = unmount(place)
    if not has_store(state):
        if unfinished:
            return Collected(unfinished=True)
        place_of(state)  # says that there is none
    given_back = 0
    if read_record(place).sparse:
        with reachable(state) as (place, _):
            progress(0.3, "giving free blocks back to the disk")
            before = place.image.stat().st_blocks
            _trim(place.mounted)
            given_back = max(before - place.image.stat().st_blocks, 0) * 512
    return Collected(unfinished=unfinished, unmounted=unmounted, given_back_bytes=given_back)


@contextmanager
def _alone(state: Path) -> Iterator[bool]:
    """Whether no engine has the directory; if so none gets it during the body."""
    with ExitStack() as stack:
        alone = True
        try:
            stack.enter_context(StateLock(state))
        except StateLocked:
            alone = False
        yield alone


def _trim(mounted: Path) -> None:
    directory = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(directory, _FITRIM, _RANGE.pack(0, 2**64 - 1, 0))
    except OSError as error:
        raise StoreUnavailable(f"free blocks can't be given back: {error.strerror}", path=str(mounted)) from error
    finally:
        os.close(directory)


def mount_by_hand(state: Path) -> Path:
    """Mount a store and leave it so, for whoever wants to look, or runs the engine without being root."""
    place = place_of(state)
    with StateLock(state):
        finish(state)
        mount_store(place, read_record(place)).forget()
    return place.mounted


@contextmanager
def visible(state: Path) -> Iterator[None]:
    """Mount a store for whoever reads during the body, where it is not mounted and this user may; else do nothing."""
    with ExitStack() as stack:
        if has_store(state) and os.geteuid() == 0 and not is_mounted(Place.of(state)):
            with suppress(StateforkError):  # whoever reads says that he can't
                stack.enter_context(reachable(state))
        yield
