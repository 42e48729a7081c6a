"""The note in a state directory whose journal is not a file beside it, but in a database."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import msgspec

from statefork.journal.errors import JournalUnavailable, StateForeign
from statefork.journal.lock import sync_folder

MARKER_NAME = "journal.json"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Which journal a state directory belongs to.

    ``journal``: its identity, empty until it was opened for the first time. ``place``: this directory's own name in it,
    which its engine claims and all that it has bears. ``shown``: where it is, for people.
    """

    journal: str
    place: str
    shown: str


def new_marker(shown: str) -> Marker:
    """For a directory that has none yet."""
    return Marker(journal="", place=secrets.token_hex(8), shown=shown)


def read_marker(state: Path) -> Marker | None:
    """The directory's note, if its journal is in a database. Raises JournalUnavailable where it can't be read."""
    path = state / MARKER_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Marker)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalUnavailable(
            f"{path} can't be read: {error}",
            hint="It says which journal this state directory belongs to: restore it from a copy",
            path=str(path),
        ) from error


def write_marker(state: Path, marker: Marker) -> None:
    """Leave the note, on disk. Raises JournalUnavailable."""
    path = state / MARKER_NAME
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(marker)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(state)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise JournalUnavailable(
            f"{path} can't be written: {error.strerror or error}",
            hint="Free space, or give write permission",
            path=str(path),
        ) from error


def check_not_elsewhere(state: Path) -> None:
    """Raise JournalUnavailable where the directory's journal is in a database, and nobody said which."""
    marker = read_marker(state)
    if marker is not None:
        raise JournalUnavailable(
            f"The journal of {state} is not in it, but at {marker.shown}",
            hint="Name it: STATEFORK_JOURNAL=postgresql://…; `statefork up` takes --journal, too, and Python journal=…",
            path=str(state),
        )


def check_belongs(state: Path, marker: Marker, journal: str, shown: str) -> None:
    """Raise StateForeign, unless the journal that was opened is this directory's, or it had none and joins this one."""
    if marker.journal in ("", journal):
        return
    raise StateForeign(
        f"The journal at {shown} is {journal}, and that of {state} is {marker.journal}, at {marker.shown}",
        hint="What a journal tells of lies in its own state directory: name that one, or another schema (?schema=…)",
        path=str(state),
    )
