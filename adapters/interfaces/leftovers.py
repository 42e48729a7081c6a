"""Mounts and processes of a killed engine, which keep its directory from being removed: ended without an engine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from statefork.adapters.interfaces.store.mounting import unmount
from statefork.adapters.interfaces.store.place import FOLDER, PARTIAL, Place
from statefork.adapters.resources.files.mounts import detach, mounted_below
from statefork.adapters.resources.process.standing import end_leftovers
from statefork.engine.errors import ResourceFailed
from statefork.engine.runtimes import reap_leftovers
from statefork.journal.errors import JournalCorrupt, JournalUnavailable, StateMissing
from statefork.journal.lock import StateLock
from statefork.journal.marker import read_marker
from statefork.journal.store import open_state


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What was ended. ``mounts``: directories, relative to the state directory; ``runtimes``: names of processes."""

    mounts: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()


async def release(state: Path) -> Released:
    """Detach every mount below a state directory and end the processes that its engines started; change no file.

    Afterwards the directory can be moved or deleted as any other; an engine that opens it finds all that was kept.
    Also of one whose files were removed already, as far as the mounts allowed. Raises StateMissing, StateLocked (an
    engine runs there), ResourceFailed (it takes the user who mounted).
    """
    state = await anyio.to_thread.run_sync(state.resolve)
    journal = await _journal_of(state)
    return await anyio.to_thread.run_sync(_release, state, journal)


async def _journal_of(state: Path) -> str:
    """What the directory's processes bear; empty where that can't be read, so that nobody can tell which they are."""
    try:
        if (marker := read_marker(state)) is not None:  # the journal is elsewhere, and need not be reachable
            return marker.place
        async with open_state(state, write=False) as opened:
            return opened.journal.id
    except StateMissing:
        if _ours_below(state) or _workplaces(state):
            return ""
        raise
    except (JournalCorrupt, JournalUnavailable):
        return ""


def _release(state: Path, journal: str) -> Released:
    with StateLock(state):
        runtimes = reap_leftovers(state, journal) if journal else []
        for branches in state.glob("resources/*/branches"):
            runtimes += [f"{branches.parent.name} (private)"] * end_leftovers(branches)
        detached = []
        for place in _ours_below(state):
            try:
                _detach(place)
            except OSError as error:
                raise ResourceFailed(
                    f"{place} can't be unmounted: {error.strerror}",
                    hint="Do it as the user who ran the engine (mostly root)",
                    path=str(place),
                ) from error
            detached.append(str(place.relative_to(state)))
        _open_workplaces(state)
    return Released(mounts=tuple(detached), runtimes=tuple(runtimes))


def _detach(place: Path) -> None:
    """Take a mount away; of a store also its loop device, once nobody has a file of it open any more."""
    store = Place.of(place.parent.parent, place.parent.name)
    if place == store.mounted and place.parent.name in (FOLDER, PARTIAL):
        unmount(store)
        if place not in mounted_below(place):
            return
    detach(place)


def _open_workplaces(state: Path) -> None:
    """Let an ordinary user delete what overlayfs made for itself: folders that nobody may enter."""
    for place in _workplaces(state):
        with suppress(OSError):
            place.chmod(0o700)
            for folder, inner, _ in os.walk(place):  # top down: each is opened before it is entered
                for name in inner:
                    Path(folder, name).chmod(0o700)


def _workplaces(state: Path) -> list[Path]:
    work = "work"  # the name that overlayfs gives it, in the folder that it was given
    patterns = (f"layers/*/{work}/{work}", f".overlay-*/{work}*/{work}")
    return [place for pattern in patterns for place in (state / "resources").glob(f"*/{pattern}")]


def _ours_below(state: Path) -> list[Path]:
    return [place for place in mounted_below(state) if _is_ours(place.relative_to(state))]


def _is_ours(place: Path) -> bool:
    """Whether we mounted there: a store, a branch's tree, or a trial.

    The state directory may well lie on disks of its own.
    """
    match place.parts:
        case ("store" | "store.partial", "mounted"):
            return True
        case ("store", "mounted", *within) | within:
            return _is_a_tree(tuple(within))


def _is_a_tree(place: tuple[str, ...]) -> bool:
    match place:
        case ("resources", _, "branches", *_):
            return True
        case ("resources", _, trial, *_):
            return trial.startswith(".overlay-")
        case _:
            return False
