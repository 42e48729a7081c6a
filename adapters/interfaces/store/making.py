"""Making a store: beside everything, then put in its place by one rename; what was interrupted is finished or undone.

Resources that are there already are copied into it when that is asked for. The directory they were in stays as it is
until the store is whole, on disk, and bears its name; then one exchange of names decides, and only then it is removed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from statefork.adapters.interfaces.store import loop
from statefork.adapters.interfaces.store.errors import StoreExists, StoreForeign, StoreFull, StoreUnavailable
from statefork.adapters.interfaces.store.growth import HOST_FREE_MIN, extend, free_bytes
from statefork.adapters.interfaces.store.kinds import KINDS, Kind, install, run, tool
from statefork.adapters.interfaces.store.mounting import mount_store, mounts_at, unmount
from statefork.adapters.interfaces.store.place import (
    FOLDER,
    PARTIAL,
    KindName,
    Place,
    Record,
    has_store,
    is_linked,
    make_link,
    write_record,
)
from statefork.adapters.interfaces.store.sizes import GIB, MIB, show_size
from statefork.adapters.resources.files.mounts import mounted_below
from statefork.adapters.resources.ledger import remove_tree, sync_file_system, write_whole
from statefork.journal.lock import StateLock, sync_folder
from statefork.journal.store import check_ours

DEFAULT_BYTES = 8 * GIB
_SLACK = 1.5  # room for moved resources, over their own bytes
_NEW = 0  # in ``replacing``: there was no directory
_COPY_LOOK_S = 0.1
_AT_FDCWD = -100
_EXCHANGE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)

Progress = Callable[[float, str], None]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What store is wanted. ``size_bytes`` 0: chosen by the room on the disk."""

    kind: KindName = "xfs"
    size_bytes: int = 0
    limit_bytes: int = 0
    sparse: bool = False
    migrate: bool = False


def fault(kind: Kind) -> str:
    """Why no store of a kind can be made or mounted by this user on this machine; empty where it can."""
    if os.geteuid() != 0:
        return "only root can mount one"
    if why := loop.fault():
        return why
    try:
        tool(kind, kind.make(Path(), ""))
    except StoreUnavailable as error:
        return error.message
    return ""


def init(state: Path, wish: Wish, progress: Progress) -> Record:
    """Make a store for a state directory, which is made where it is missing; it is not mounted afterwards.

    All or nothing. Raises StoreExists, StoreUnavailable, StoreFull, StateLocked, StateForeign.
    """
    state = state.absolute()
    kind = KINDS[wish.kind]
    if why := fault(kind):
        hint = "Run as root" if os.geteuid() != 0 else install(kind)
        raise StoreUnavailable(f"no store can be made here: {why}", hint=f"{hint}. Everything works by copying, too")
    check_ours(state)
    with StateLock(state):
        finish(state)
        _check_none(state, migrate=wish.migrate)
        place = Place.of(state, PARTIAL)
        try:
            record = _build(place, wish, progress)
            place.folder.rename(state / FOLDER)
        except BaseException:
            discard_partial(state)
            raise
        progress(0.98, "putting it in its place")
        sync_folder(state)
        finish(state)
    return record


def _check_none(state: Path, *, migrate: bool) -> None:
    if has_store(state):
        raise StoreExists(
            f"{state} has a store", hint="See `statefork store status`; `statefork store resize` makes it larger"
        )
    link = Place.of(state).link
    if link.is_symlink() or (link.exists() and not link.is_dir()):
        raise StoreForeign(f"{link} is no directory of ours", hint="Move it away", path=str(link))
    if not link.is_dir():
        return
    if below := mounted_below(link):
        raise StoreExists(
            f"something is mounted in {link}: {below[0]}",
            hint="If a killed engine left it: `statefork release`. A disk of its own there needs no store",
            path=str(below[0]),
        )
    if any(link.iterdir()) and not migrate:
        raise StoreExists(
            f"{state} has resources already, and they are not in a store",
            hint="`statefork store init --migrate` copies them into it, whole or not at all; or choose another --state",
            path=str(link),
        )


def _build(place: Place, wish: Wish, progress: Progress) -> Record:
    """Everything of the store, in ``store.partial``: when this returns it is on disk."""
    link = Place.of(place.state).link
    moved = _bytes_in(link) if link.is_dir() else 0
    size = _size(place, wish, moved)
    kind = KINDS[wish.kind]
    record = Record(
        id=secrets.token_hex(8),
        kind=wish.kind,
        uuid=str(uuid.uuid4()),
        sparse=wish.sparse,
        limit_bytes=wish.limit_bytes,
    )
    progress(0.02, f"making a store of {show_size(size)} ({kind.name})")
    place.folder.mkdir(mode=0o755)
    os.close(os.open(place.image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    extend(place.image, size, sparse=True)
    run(kind, kind.make(place.image, record.uuid))
    extend(place.image, size, sparse=wish.sparse)
    write_record(place, record)
    mounted = mount_store(place, record, new=True)
    try:
        if link.is_dir():
            _copy(link, place.resources, moved, progress)
        else:
            place.resources.mkdir(mode=0o755)
        progress(0.95, "forcing it to the disk")
        mounted.sync()
    finally:
        mounted.close()
    write_whole(place.replacing, f"{link.stat().st_ino if link.is_dir() else _NEW}\n".encode())
    sync_file_system(place.folder)
    return record


def _size(place: Place, wish: Wish, moved: int) -> int:
    kind = KINDS[wish.kind]
    free = free_bytes(place.state)
    size = wish.size_bytes
    if not size:
        size = free if wish.sparse else min(DEFAULT_BYTES, free // 4)
        size = max(size, kind.bytes_min, int(moved * _SLACK) + kind.bytes_min) // MIB * MIB
    if size < kind.bytes_min:
        raise StoreFull(
            f"{show_size(size)} are too few: a store of {kind.name} has at least {show_size(kind.bytes_min)}",
            hint="Ask for more (--size)",
        )
    needed = moved if wish.sparse else size
    if free < needed + (0 if wish.size_bytes else min(HOST_FREE_MIN, needed)):
        raise StoreFull(
            f"the disk of {place.state} has {show_size(free)} left, and the store takes {show_size(needed)}",
            hint="Make room, ask for less (--size), or let it take room as it needs it (--sparse)",
            wanted_bytes=needed,
        )
    return size


def _bytes_in(directory: Path) -> int:
    """What the files in a directory take on disk."""
    total = 0
    for folder, _, files in os.walk(directory):
        total += sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in files)  # noqa: PTH118 - in a loop
    return total


def _copy(source: Path, target: Path, total: int, progress: Progress) -> None:
    """The directory with everything of it: owners, attributes, links, devices, holes. Raises StoreFull."""
    process = subprocess.Popen(
        ["cp", "-a", "--", str(source), str(target)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    ended = threading.Event()

    def tell() -> None:
        before = free_bytes(target.parent)
        while not ended.wait(_COPY_LOOK_S):
            done = min((before - free_bytes(target.parent)) / max(total, 1), 1.0)
            progress(0.05 + 0.9 * done, "copying the resources")

    progress(0.05, "copying the resources")
    teller = threading.Thread(target=tell, name="progress of a copy", daemon=True)
    teller.start()
    try:
        _, said = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        ended.set()
        teller.join()
    if process.returncode:
        first = (said.splitlines() or ["cp failed"])[0]
        raise StoreFull(
            f"the resources could not be copied into the store: {first}",
            hint="Ask for a larger one (--size) if it was full; the resources are as they were",
        )


def finish(state: Path) -> None:
    """Finish a store that was made but is not in its place yet, and remove one that was not made to its end.

    Call under the state directory's lock. Raises StoreForeign where the resources are not those it was to replace.
    """
    discard_partial(state)
    place = Place.of(state)
    if not place.record.exists():
        if is_linked(state):
            raise StoreForeign(
                f"{place.link} leads into a store, and there is none in {place.folder}",
                hint="Put the directory back: databases and files are in it; nothing was changed",
                path=str(place.folder),
            )
        return
    if not is_linked(state):
        _replace(place)
    if place.replacing.exists():
        remove_tree(place.replaced)
        place.replacing.unlink()


def _replace(place: Place) -> None:
    """Put the link where the directory of the resources is; the directory is then ``store/replaced``."""
    intended = int(place.replacing.read_text()) if place.replacing.exists() else None
    there = place.link.lstat().st_ino if os.path.lexists(place.link) else _NEW
    if intended is None or there not in (intended, _NEW):
        raise StoreForeign(
            f"{place.link} does not lead into the store of {place.state}, and is not what the store replaced",
            hint=f"Move it away, and make it a link to {FOLDER}/mounted/resources again; nothing was changed",
            path=str(place.link),
        )
    make_link(place.replaced)
    if there == _NEW:
        place.replaced.rename(place.link)
    else:
        _exchange(place.replaced, place.link)
    sync_folder(place.state)


def _exchange(one: Path, other: Path) -> None:
    if _LIBC.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise StoreUnavailable(
            f"the file system of {one.parent} can't exchange two names: {os.strerror(number)}",
            hint="Make the store for a state directory without resources; nothing was changed",
            path=str(one),
        )


def discard_partial(state: Path) -> bool:
    """Remove a store that was being made; whether there was one."""
    place = Place.of(state, PARTIAL)
    if not os.path.lexists(place.folder):
        return False
    unmount(place)
    if mounts_at(place.mounted):
        return True
    remove_tree(place.folder)
    return True
