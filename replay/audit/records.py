"""What the stores keep on disk, read with nothing but the file system and JSON.

The stores of databases and file trees keep, under ``resources/<name>/``, a record of each sealed version
(``sealed/<version>.json``: its handle, and the layers it is made of, which lie in ``layers/<id>/``) and of each open
branch (``branches/<id>.json``: its handle, the layers below it, and ``upper``, the one it writes, where it has one).
Profiles of browsers are single files: ``resources/<name>/<journal>/<version>.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from statefork.replay.audit.report import Unreadable


class Stored(NamedTuple):
    """One record. Every field that a damaged file lacks is empty."""

    resource: str
    name: str  # of a version or a branch, as the file is called
    handle: dict[str, Any]
    layers: tuple[str, ...]
    upper: str  # the layer that a branch writes
    path: str  # where the handle says that it lies, relative to the state directory

    @property
    def journal(self) -> str:
        """Whose it is."""
        return str(self.handle.get("journal", ""))


def check_there(state: Path) -> None:
    """Raise Unreadable where the resources are in a store (a link leads into it) that is not mounted."""
    folder = state / "resources"
    if folder.is_symlink() and not folder.is_dir():
        raise Unreadable(f"the store that {folder} leads into is not mounted: `statefork store mount` does it")


def listed(folder: Path, suffix: str = "") -> list[Path]:
    """What lies in a folder, sorted; nothing where there is none. Raises OSError where it can't be seen."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
    except (FileNotFoundError, NotADirectoryError):
        return []


def resource_folders(state: Path) -> list[Path]:
    """``resources/<name>`` of every resource that has anything on disk. Raises Unreadable, OSError."""
    check_there(state)
    return [folder for folder in listed(state / "resources") if folder.is_dir()]


def keeps_records(folder: Path) -> bool:
    """Whether a resource keeps records of versions and branches."""
    return (folder / "sealed").is_dir()


def sealed_records(state: Path) -> Iterator[Stored]:
    """Every sealed version that is on record."""
    return _of_all(state, "sealed")


def branch_records(state: Path) -> Iterator[Stored]:
    """Every open branch that is on record."""
    return _of_all(state, "branches")


def sealed_record(state: Path, resource: str, version: str) -> Stored | None:
    """The record of one version, if there is one."""
    return _read(resource, state / "resources" / resource / "sealed" / f"{version}.json")


def profiles(folder: Path, journal: str) -> Iterator[str]:
    """The versions that a resource keeps as single files."""
    for path in listed(folder / journal, ".json") if journal else ():
        yield path.stem


def _of_all(state: Path, kind: str) -> Iterator[Stored]:
    for folder in resource_folders(state):
        for path in listed(folder / kind, ".json"):
            found = _read(folder.name, path)
            if found is not None:
                yield found


def _read(resource: str, path: Path) -> Stored | None:
    """None for what is not there, or vanishes meanwhile: an engine may be running."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(f"{path} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Unreadable(f"{path} is no record")
    handle = record.get("handle")
    handle = handle if isinstance(handle, dict) else {}
    data = handle.get("data")
    place = data.get("path") if isinstance(data, dict) else None
    layers = record.get("layers")
    upper = record.get("upper")
    return Stored(
        resource=resource,
        name=path.stem,
        handle=handle,
        layers=tuple(str(layer) for layer in layers) if isinstance(layers, list) else (),
        upper=upper if isinstance(upper, str) else "",
        path=place if isinstance(place, str) else "",
    )
