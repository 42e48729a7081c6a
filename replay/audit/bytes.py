"""I6 in bytes: a sealed version is, to the last bit, what was sealed.

Two kinds of evidence are on disk. The stores of databases and file trees write down, once a layer is sealed, the
SHA-256 of each of its files (``layers/<id>/sums.json``); whatever is changed, missing or new there is named, with a
generation that needs it. The version of a profile begins with the digest of its content.

Of a version that is a database on a server only a token lies here, and how many of these were not looked at is told.
Sums are made in the background: of what was sealed in the last moments before an engine ended there may be none, and
that is told. They find what was damaged or written by accident, not who forges both the bytes and their sums.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.places import place_at
from statefork.replay.audit.records import check_there, keeps_records, sealed_record
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.spill import open_spill
from statefork.replay.audit.versions import Version, described

SUMS = "sums.json"
_TOKEN = "database"  # holds the name of a database, and stands for it
_CHUNK_BYTES = 1 << 20
_PROFILE = b'{"profile":'
_PROFILE_DIGITS = 32
_SCHEMA = "create table layer (resource text, layer text, primary key (resource, layer)) without rowid;"


class Bytes(Checker):
    """Reads all that the journal's sealed versions are made of, each layer once."""

    invariant = "I6"
    rule = "sealed bytes are what was sealed"

    def __init__(self, state: Path, heads: Heads) -> None:
        super().__init__(heads)
        self._state = state
        self._spill = open_spill(_SCHEMA)
        self._place = place_at(state)
        self._without = 0
        self._elsewhere: set[str] = set()
        self._on_servers: dict[str, int] = {}

    def close(self) -> None:
        self._spill.close()

    def finish(self) -> Iterator[str]:
        for version in self.heads.versions.of(self.heads.owner(self._place)):
            check_there(self._state)
            folder = self._state / "resources" / version.resource
            if keeps_records(folder):
                yield from self._recorded(folder, version)
            elif version.path:
                yield from self._profile(version)
            else:
                self._elsewhere.add(version.resource)

    def notes(self) -> Iterator[str]:
        if self._without:
            yield f"{self._without} sealed layers have no sums (or not yet): their bytes were not compared"
        for resource in sorted(self._elsewhere):
            yield f"versions of {resource} are not on disk: nothing was compared"
        for resource, count in sorted(self._on_servers.items()):
            yield (
                f"{count} {'version' if count == 1 else 'versions'} of {resource} on a database server: that they are "
                "on record was looked at, what these databases contain was not"
            )

    def _recorded(self, folder: Path, version: Version) -> Iterator[str]:
        record = sealed_record(self._state, version.resource, version.version)
        if record is None:
            return  # a finding of I5
        if described(record.handle) != version.described:
            yield f"{version}, is on record as something else than in the journal"
        if any((folder / "layers" / layer / _TOKEN).is_file() for layer in record.layers):
            self._on_servers[version.resource] = self._on_servers.get(version.resource, 0) + 1
        for layer in record.layers:
            made = self._spill.execute("insert or ignore into layer values (?, ?)", (version.resource, layer))
            if made.rowcount:
                yield from self._layer(folder / "layers" / layer, version)

    def _layer(self, place: Path, version: Version) -> Iterator[str]:
        try:
            data = (place / SUMS).read_bytes()
            if not data.strip(b"\0"):  # its name outlived a crash of the machine, and its bytes did not
                self._without += 1
                return
            told = json.loads(data)
        except FileNotFoundError:
            self._without += place.is_dir()  # a layer that is gone is a finding of I6 itself
            return
        except (OSError, ValueError) as error:
            raise Unreadable(f"{place / SUMS} can't be read: {error}") from None
        sums: dict[str, str] = told if isinstance(told, dict) else {}
        self.looked_at += not (place / _TOKEN).is_file()
        there = dict(_files(place))
        where = place.relative_to(self._state)
        for name in sorted(sums.keys() | there.keys()):
            if name not in there:
                yield f"{version}, lacks {where / name}"
            elif name not in sums:
                yield f"{version}, has got {where / name}, which was not sealed with it"
            elif sums[name] and _sum(place / name, there[name]) != sums[name]:
                yield f"{version}, was changed: {where / name} is not what was sealed"

    def _profile(self, version: Version) -> Iterator[str]:
        path = self._state / version.path
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return  # a finding of I5
        except OSError as error:
            raise Unreadable(f"{version}, can't be read: {error.strerror}") from None
        self.looked_at += 1
        content = _profile_of(data)
        if (
            content is None
            or hashlib.sha256(content).hexdigest()[:_PROFILE_DIGITS] != version.version[:_PROFILE_DIGITS]
        ):
            yield f"{version}, was changed: {version.path} is not what was sealed"


def _files(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file and link of a layer, by its path within."""
    pending = [""]
    while pending:
        within = pending.pop()
        try:
            entries = list(os.scandir(place / within))
        except OSError as error:
            raise Unreadable(f"{place / within} can't be listed: {error.strerror}") from None
        for entry in entries:
            name = f"{within}/{entry.name}" if within else entry.name
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                pending.append(name)
            elif name != SUMS and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                yield name, status


def _sum(path: Path, status: os.stat_result) -> str:
    digest = hashlib.sha256()
    try:
        if stat.S_ISLNK(status.st_mode):
            return "link " + hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise Unreadable(f"{path} can't be read: {error.strerror}") from None
    return digest.hexdigest()


def _profile_of(data: bytes) -> bytes | None:
    """The bytes of the profile within the file of a sealed version; None where the file is no such file."""
    if not data.startswith(_PROFILE):
        return None
    text = data[len(_PROFILE) :].decode(errors="surrogateescape")
    try:
        json.loads(data)
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    found: Any = text[:end].encode(errors="surrogateescape")
    return bytes(found)
