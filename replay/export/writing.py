"""Writing the file: beside its place, under another name, and in its place only once it is whole and on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from statefork.engine.errors import ResourceFailed
from statefork.replay.export.form import COMMENT, DIGEST_CHARS, MANIFEST, OBJECTS, Manifest, Member

_CHUNK_BYTES = 1 << 20
_LEVEL = 3
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same content gives the same file
_HINTS = {
    errno.ENOENT: "Make that directory first, or name another place",
    errno.EACCES: "Write where you may",
    errno.EROFS: "Write where that is possible",
}
_PACKED_ALREADY = (b"\x89PNG", b"\xff\xd8\xff", b"\x1f\x8b", b"PK\x03\x04", b"RIFF", b"\x28\xb5\x2f\xfd")


class Writer:
    """One archive in the making. Its methods block."""

    def __init__(self, archive: zipfile.ZipFile, scratch: Path) -> None:
        self._archive = archive
        self.scratch = scratch  # an empty directory for what has to lie on the disk in between
        self.members: dict[str, Member] = {}

    def put_bytes(self, data: bytes) -> str:
        """Store bytes, once; their SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        if f"{OBJECTS}{digest}" not in self.members:
            with self._member(f"{OBJECTS}{digest}", data) as member:
                member.write(data)
            self.members[f"{OBJECTS}{digest}"] = Member(size=len(data), sha256=digest)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file's bytes, once; their SHA-256."""
        with path.open("rb", buffering=0) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if f"{OBJECTS}{digest}" not in self.members:
                file.seek(0)
                self._copy(f"{OBJECTS}{digest}", file, digest)
        return digest

    def put_named(self, name: str, path: Path) -> None:
        """Store a file under a name of its own."""
        with path.open("rb", buffering=0) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            self._copy(name, file, digest)

    def _copy(self, name: str, file: BinaryIO, digest: str) -> None:
        size = 0
        first = file.read(_CHUNK_BYTES)
        with self._member(name, first) as member:
            piece = first
            while piece:
                member.write(piece)
                size += len(piece)
                piece = file.read(_CHUNK_BYTES)
        self.members[name] = Member(size=size, sha256=digest)

    @contextmanager
    def _member(self, name: str, beginning: bytes) -> Iterator[BinaryIO]:
        entry = zipfile.ZipInfo(name, _LONG_AGO)
        entry.external_attr = 0o600 << 16
        packed = beginning.startswith(_PACKED_ALREADY)
        entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
        with self._archive.open(entry, "w", force_zip64=True) as member:
            yield member  # type: ignore[misc]  # what zipfile gives writes bytes

    def close(self, manifest: Manifest) -> None:
        """Store the manifest, which says what all the others are."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        with self._member(MANIFEST, b"") as member:
            member.write(data)
        self._archive.comment = COMMENT + b"0" * DIGEST_CHARS


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """Write an archive that is there, whole and on the disk, when the body has ended well, and not at all otherwise.

    Nobody else may read it. Raises ResourceFailed for what the disk does not take.
    """
    path = _free(path)
    beside = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    partial, scratch = beside.with_name(f"{beside.name}.partial"), beside.with_name(f"{beside.name}.scratch")
    try:
        scratch.mkdir(mode=0o700)
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w+b") as whole:
            with zipfile.ZipFile(whole, "w", compresslevel=_LEVEL) as archive:
                yield Writer(archive, scratch)
            _vouch(whole)
            whole.flush()
            os.fsync(whole.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ResourceFailed(
            f"{path} can't be written: {error.strerror or error}",
            hint=_HINTS.get(error.errno or 0, "Free space there, or name another place"),
            path=str(path),
        ) from error
    finally:
        partial.unlink(missing_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _vouch(whole: BinaryIO) -> None:
    """Put the digest of all that is before it at the end."""
    whole.flush()
    size = whole.seek(0, os.SEEK_END) - DIGEST_CHARS
    whole.seek(0)
    digest = hashlib.sha256()
    while size:
        piece = whole.read(min(_CHUNK_BYTES, size))
        digest.update(piece)
        size -= len(piece)
    whole.write(digest.hexdigest().encode())


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sum_of(path: Path) -> tuple[str, int]:
    """SHA-256 (hex) and size of a file."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _free(path: Path) -> Path:
    """Where the file will lie: behind links, and never in the place of what is no file. Raises ResourceFailed."""
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise ResourceFailed(f"{path} is no regular file", hint="Name another place", path=str(path))
    return place
