"""A kept fold: what somebody made of a journal up to a position, so that opening need not read everything again.

A checkpoint is a cache and never truth. It lies beside the journal in a file of its own, is replaced whole, and says
which journal and which event it belongs to; one that is missing, torn, damaged or of another history is as good as
none. Deleting it costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from pathlib import Path

import msgspec

from statefork.journal.errors import JournalUnavailable
from statefork.journal.limits import Limits, check_limit
from statefork.journal.lock import sync_folder

_FOLD = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_FORMAT = 1
_logger = logging.getLogger(__name__)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """``data`` is what ``fold`` (its name with its version: ``world-1``) gives after the event at ``position``."""

    fold: str
    position: int
    data: bytes


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint and what ties it to its journal: the journal's id and the hash of the event at its position."""

    checkpoint: Checkpoint
    journal: str
    hash: str


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    format: int


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of the file; the data are all that follows."""

    format: int
    journal: str
    fold: str
    position: int
    hash: str
    digest: str


def check_checkpoint(checkpoint: Checkpoint, limits: Limits) -> None:
    """Raise ValueError or LimitExceeded, unless it may be saved."""
    check_fold(checkpoint.fold)
    if checkpoint.position < 1:
        raise ValueError("a checkpoint stands behind an event: its position is 1 or more")
    what, hint = f"Bytes of the checkpoint {checkpoint.fold!r}", "Keep less in it; without it opening reads everything"
    check_limit("checkpoint_bytes_max", len(checkpoint.data), limits.checkpoint_bytes_max, what, hint)


def check_fold(fold: str) -> None:
    """Raise ValueError, unless it may name a fold."""
    if not _FOLD.fullmatch(fold):
        raise ValueError(f"a fold's name is small letters, digits, dots and dashes, 64 at most, not {fold!r}")


def not_there(position: int, head: int) -> ValueError:
    """The error for a checkpoint that stands behind an event that the journal does not have."""
    return ValueError(f"a checkpoint at position {position} needs that event, but the journal ends at {head}")


def save(journal: Path, stored: Stored) -> None:
    """Put the checkpoint beside the journal, on disk, in place of the last one of its fold.

    Raises JournalUnavailable; the last one is still there then.
    """
    path = _path(journal, stored.checkpoint.fold)
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(first_line(stored) + b"\n")
            file.write(stored.checkpoint.data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise JournalUnavailable(
            f"The checkpoint {path} can't be stored: {error.strerror or error}",
            hint="Free space or repair the disk; the journal itself is whole, and opening reads all of it meanwhile",
            path=str(path),
        ) from error


def load(journal: Path, fold: str) -> Stored | None:
    """The checkpoint beside the journal, if it is whole. That it belongs to the journal is for the caller to check."""
    check_fold(fold)
    path = _path(journal, fold)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            unused(path.name, "it is no file")
            return None
        first, _, data = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        unused(path.name, f"it can't be read: {error.strerror or error}")
        return None
    return unpack(path.name, fold, first, data)


def first_line(stored: Stored) -> bytes:
    """What stands before a checkpoint's data, and proves them."""
    return msgspec.json.encode(_header(stored))


def unpack(name: str, fold: str, first: bytes, data: bytes) -> Stored | None:
    """A checkpoint out of its first line and its data, if it is whole; ``name`` is what it is called in a warning."""
    try:
        written = msgspec.json.decode(first, type=_Version)
        if written.format != _FORMAT:
            unused(name, f"it has format {written.format}; this statefork knows {_FORMAT}")
            return None
        header = msgspec.json.decode(first, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        unused(name, "it is damaged: its first line can't be read")
        return None
    checkpoint = Checkpoint(fold=header.fold, position=header.position, data=data)
    stored = Stored(checkpoint=checkpoint, journal=header.journal, hash=header.hash)
    if fold != header.fold or header != _header(stored):
        unused(name, "it is damaged: its bytes do not give its digest")
        return None
    return stored


def unused(name: str, why: str) -> None:
    """Say that there is a checkpoint and why it is as good as none."""
    _logger.warning("The checkpoint %s is not used, and the journal is read from its beginning: %s", name, why)


def foreign(stored: Stored, journal: str, digest: str | None) -> str:
    """Why a checkpoint does not belong to a journal whose event at its position has this hash; empty if it does."""
    if stored.journal != journal:
        return f"it is of another journal ({stored.journal}, not {journal})"
    if stored.hash != digest:
        return (
            f"the journal holds {'no' if digest is None else 'another'} event at position {stored.checkpoint.position}"
        )
    return ""


def _header(stored: Stored) -> _Header:
    kept = stored.checkpoint
    digest = hashlib.sha256(f"{stored.journal}\n{kept.fold}\n{kept.position}\n{stored.hash}\n".encode())
    digest.update(kept.data)
    return _Header(
        format=_FORMAT,
        journal=stored.journal,
        fold=kept.fold,
        position=kept.position,
        hash=stored.hash,
        digest=digest.hexdigest(),
    )


def _path(journal: Path, fold: str) -> Path:
    return journal.with_name(f"{journal.name}.{fold}.checkpoint")
