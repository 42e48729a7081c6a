"""Where a store lies in its state directory, and the note about it.

::

    <state>/resources              a link to store/mounted/resources: it leads nowhere while the store is not mounted,
                                   so that nothing can be written beside it by mistake
    <state>/store/image            the file that holds the file system
    <state>/store/store.json       what is in it, and how far it may grow
    <state>/store/mounted/         where it is mounted; .statefork-store.json in it says whose it is
    <state>/store/replacing        while a new store takes the place of a directory: which one
    <state>/store.partial/         a store that is being made
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from statefork.adapters.interfaces.store.errors import StoreForeign
from statefork.journal.lock import sync_folder

FOLDER = "store"
PARTIAL = "store.partial"
_MARK = ".statefork-store.json"
_LINK = f"{FOLDER}/mounted/resources"

KindName = Literal["xfs", "btrfs"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """``store.json``. ``limit_bytes``: how far it grows by itself; 0: as far as the disk below has room."""

    id: str
    kind: KindName
    uuid: str
    sparse: bool = False
    limit_bytes: int = 0


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """In the store itself: which store it is, and whose. ``journal`` is empty until an engine opens it."""

    id: str
    journal: str = ""


Note = TypeVar("Note", Record, Mark)


class Place(NamedTuple):
    """The paths of one store."""

    state: Path
    folder: Path

    @classmethod
    def of(cls, state: Path, folder: str = FOLDER) -> Place:
        """Of a state directory; ``folder`` is another name while it is made."""
        state = state.absolute()
        return cls(state, state / folder)

    @property
    def image(self) -> Path:
        """The file that holds the file system."""
        return self.folder / "image"

    @property
    def record(self) -> Path:
        """The note about it."""
        return self.folder / "store.json"

    @property
    def mounted(self) -> Path:
        """Where it is mounted."""
        return self.folder / "mounted"

    @property
    def resources(self) -> Path:
        """The directory in it that the link leads to."""
        return self.mounted / "resources"

    @property
    def mark(self) -> Path:
        """The note in it."""
        return self.mounted / _MARK

    @property
    def replacing(self) -> Path:
        """Which directory it replaces, while it does."""
        return self.folder / "replacing"

    @property
    def replaced(self) -> Path:
        """Where that directory goes, to be removed."""
        return self.folder / "replaced"

    @property
    def link(self) -> Path:
        """What everything else calls the directory of the resources."""
        return self.state / "resources"


def has_store(state: Path) -> bool:
    """Whether the resources of a state directory are (or are about to be) in a store."""
    return is_linked(state) or (state / FOLDER / "store.json").exists()


def is_linked(state: Path) -> bool:
    """Whether ``resources`` is the link into the store."""
    link = state / "resources"
    return link.is_symlink() and os.readlink(link) == _LINK  # noqa: PTH115 - a Path would lose what is not normal


def make_link(at: Path) -> None:
    """The link, under whatever name."""
    at.unlink(missing_ok=True)
    at.symlink_to(_LINK)


def read_record(place: Place) -> Record:
    """The note about a store. Raises StoreForeign where it can't be read."""
    return _read(place.record, Record)


def write_record(place: Place, record: Record) -> None:
    """Write it, on disk."""
    _write(place.record, msgspec.json.format(msgspec.json.encode(record)))


def read_mark(place: Place) -> Mark:
    """The note in a mounted store. Raises StoreForeign where there is none."""
    return _read(place.mark, Mark)


def write_mark(place: Place, mark: Mark) -> None:
    """Write it, on disk."""
    _write(place.mark, msgspec.json.encode(mark))


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing, on disk: a name that is there before its bytes are is what a crash leaves of a file."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def _read(path: Path, kind: type[Note]) -> Note:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreForeign(
            f"{path} does not say what store this is: {error}",
            hint="Restore it from a copy of the state directory; nothing was changed",
            path=str(path),
        ) from error
