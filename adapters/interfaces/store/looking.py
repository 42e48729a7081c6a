"""What there is to say of a store, or of having none: for ``store status`` and ``doctor``. Changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from statefork.adapters.interfaces.control.client import held
from statefork.adapters.interfaces.store import loop
from statefork.adapters.interfaces.store.errors import StoreForeign
from statefork.adapters.interfaces.store.growth import GROWTH_BYTES_MIN, free_bytes, next_size
from statefork.adapters.interfaces.store.kinds import KINDS, install, superblock
from statefork.adapters.interfaces.store.making import fault
from statefork.adapters.interfaces.store.mounting import mounts_at
from statefork.adapters.interfaces.store.place import (
    PARTIAL,
    Mark,
    Place,
    Record,
    has_store,
    is_linked,
    read_mark,
    read_record,
)
from statefork.adapters.interfaces.store.sizes import GIB, MIB, show_size
from statefork.adapters.resources.reflink import probe_reflink

_NEARLY_FULL_BYTES = 64 * MIB
_TRIAL_BYTES = 32 * MIB

Grade = Literal["ok", "slower", "missing", "info"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a state directory's store is now. Sizes are bytes; of a store that is not mounted ``free`` is unknown."""

    store: bool
    state: str
    kind: str = ""
    sparse: bool = False
    image: str = ""
    size_bytes: int = 0
    free_bytes: int | None = None
    disk_bytes: int = 0  # what the image takes on the disk below
    disk_free_bytes: int = 0
    limit_bytes: int = 0  # how far it grows by itself; 0: as far as the disk has room
    mounted: bool = False
    devices: tuple[str, ...] = ()
    engine: bool = False
    journal: str = ""
    problems: tuple[str, ...] = ()  # what is not as it should be
    notes: tuple[str, ...] = ()


def look(state: Path) -> Status:
    """The store of a state directory, as far as this user may look. Never raises for what it finds."""
    state = state.absolute()
    problems = []
    if os.path.lexists(state / PARTIAL):
        problems.append("a store was being made and was not finished: `statefork store gc` removes what is left")
    if not has_store(state):
        return Status(store=False, state=str(state), problems=tuple(problems))
    place = Place.of(state)
    if not is_linked(state) or place.replacing.exists():
        problems.append("it was made, but is not in its place yet: the next `statefork up` or `store gc` finishes that")
    try:
        record = read_record(place)
    except StoreForeign as error:
        return Status(store=True, state=str(state), problems=(*problems, str(error)))
    return _look(place, record, problems)


def _look(place: Place, record: Record, problems: list[str]) -> Status:
    size = disk = 0
    try:
        status = place.image.stat()
        disk = status.st_blocks * 512
        size = status.st_size
        found = superblock(place.image)
        if found is None or found.uuid != record.uuid:
            problems.append(f"{place.image} holds another file system than the store's")
    except PermissionError:
        pass  # only root may look into it
    except OSError as error:
        problems.append(f"{place.image} can't be read: {error.strerror}")
    there = mounts_at(place.mounted)
    devices = tuple(loop.devices_of(place.image))
    mounted = bool(there) and there[-1].source in devices
    if there and not mounted:
        problems.append(f"{there[-1].source} is mounted in its place, and is not the store")
    holder = held(place.state)
    mark, free = None, None
    if mounted:
        mark, free = _look_inside(place, record, problems)
    if free is not None and free < _NEARLY_FULL_BYTES and (why := _stuck(place, record, size, free)):
        problems.append(f"it is full: {show_size(free)} are free, and it does not grow by itself: {why}")
    notes = []
    if holder is not None and not mounted:
        if holder.takes_commands:
            problems.append("an engine runs, and the store is not mounted: it was unmounted under it")
        else:
            notes.append(f"not mounted (yet, or any more), and {holder}")
    elif holder is not None and not holder.takes_commands:
        notes.append(str(holder))
    if mounted and holder is None:
        notes.append(
            "no engine runs: a killed one, or `store mount`, left it mounted (`statefork release` unmounts it)"
        )
    if devices and not mounted:
        notes.append(f"{', '.join(devices)} holds it, for somebody who still has a file of it open")
    return Status(
        store=True,
        state=str(place.state),
        kind=record.kind,
        sparse=record.sparse,
        image=str(place.image),
        size_bytes=size,
        free_bytes=free,
        disk_bytes=disk,
        disk_free_bytes=free_bytes(place.state),
        limit_bytes=record.limit_bytes,
        mounted=mounted,
        devices=devices,
        engine=holder is not None,
        journal=mark.journal if mark else "",
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _stuck(place: Place, record: Record, size: int, free: int) -> str:
    """Why a store that is nearly full does not grow by itself, and what to do; empty where it does."""
    below = free_bytes(place.folder)
    if next_size(size, free, below, record.limit_bytes):
        return ""
    if record.limit_bytes and record.limit_bytes - size < GROWTH_BYTES_MIN:
        return f"its limit is {show_size(record.limit_bytes)} (`statefork store resize --max SIZE`, or `statefork gc`)"
    return f"only {show_size(below)} are free on the disk below (make room there, or `statefork gc`)"


def _look_inside(place: Place, record: Record, problems: list[str]) -> tuple[Mark | None, int | None]:
    try:
        mark = read_mark(place)
        if mark.id != record.id:
            problems.append(f"what is mounted is store {mark.id}, not {record.id}")
        found = os.statvfs(place.mounted)
        if found.f_flag & os.ST_RDONLY:
            problems.append("its file system can only be read any more: see `dmesg`")
        return mark, found.f_bavail * found.f_frsize
    except StoreForeign as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"its file system has shut down ({error.strerror}): see `dmesg`; opening it again recovers it")
    return None, None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What ``doctor`` says of the place where databases and files are kept."""

    grade: Grade
    found: str
    advice: str = ""


def advise(state: Path, existing: Path, file_system: str) -> Advice:
    """``existing``: the state directory, or the directory above it that exists, which may be written."""
    if has_store(state):
        return _of_store(look(state))
    here = state / "resources" if (state / "resources").is_dir() else existing
    if not os.access(here, os.W_OK | os.X_OK):
        return Advice(grade="info", found="none; whether one is needed can't be tried without write permission")
    probe = probe_reflink(here)
    if probe.works:
        return Advice(
            grade="ok", found=f"none is needed: {file_system} has reflinks, and a branch of any size is instant"
        )
    cost = f"{file_system} has no reflinks: a branch of a database or a version of it costs a copy, {_copy_cost(here)}"
    kind = KINDS["xfs"]
    why = fault(kind)
    if not why:
        return Advice(grade="slower", found=f"none; {cost}", advice="faster: statefork store init")
    return Advice(
        grade="slower",
        found=f"none; {cost}",
        advice=f"faster: a store, which can't be made here: {why}. As root, with {kind.package} installed "
        f"({install(kind)}): statefork store init. Or put --state on btrfs or XFS",
    )


def _of_store(status: Status) -> Advice:
    what = f"{status.kind}, {show_size(status.size_bytes)} in {status.image}"
    if status.problems:
        return Advice(grade="missing", found=f"{what}: {'; '.join(status.problems)}", advice="statefork store status")
    where = "mounted" if status.mounted else "mounted when an engine runs"
    if os.geteuid() != 0 and not status.mounted:
        return Advice(
            grade="missing", found=what, advice="only root can mount it: run as root, or statefork store mount"
        )
    return Advice(grade="ok", found=f"{what}, {where}")


def _copy_cost(directory: Path) -> str:
    """What copying a gibibyte takes here, from a smaller trial now."""
    source, target = (directory / f".reflink-cost-{os.getpid()}-{which}" for which in "ab")
    try:
        source.write_bytes(os.urandom(MIB) * (_TRIAL_BYTES // MIB))
        began = time.perf_counter()
        with source.open("rb") as reading, target.open("wb") as writing:
            while data := reading.read(MIB):
                writing.write(data)
            os.fsync(writing.fileno())
        took_s = time.perf_counter() - began
    except OSError as error:
        return f"which could not be tried ({error.strerror})"
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
    return f"about {took_s * GIB / _TRIAL_BYTES:.1f} s for each GiB here"
