"""Reading the file, which comes from anywhere: everything is verified before anything is made of it.

In this order: it is a regular file with our mark at its end; its digest fits; the archive has the members that it may
have, each once, and the manifest says their sizes; the disk has room for all of that; each member is what the manifest
says; the events continue each other; and the manifest speaks of the history that the events tell.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

import msgspec

from statefork.engine.errors import UnknownRef
from statefork.journal.codec import GENESIS, Codec, digest_of_heads, link
from statefork.journal.errors import StateforkError
from statefork.journal.events import ActionBegun
from statefork.journal.log import Recorded
from statefork.replay.export.errors import ExportUnreadable, unreadable
from statefork.replay.export.form import (
    BLOB_BYTES_MAX,
    COMMENT,
    DIGEST_CHARS,
    EVENTS,
    EVENTS_BYTES_MAX,
    FILE_NAME,
    FORMAT,
    KIND,
    LINE_BYTES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    MEMBERS_MAX,
    OBJECT,
    OBJECTS,
    ComponentForm,
    Line,
    Manifest,
    Member,
    Progress,
    nobody_watches,
)
from statefork.replay.export.slice import Way, blobs_of, way_to

T = TypeVar("T")
_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20  # of the disk that is left alone
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
"""What reading an archive raises that is damaged, or was made to do harm."""

_VERIFYING_SHARE = 0.5  # of all that is to be done, as the progress is told


class Opened:
    """A file that was verified. Its methods block."""

    def __init__(self, path: Path, sha256: str, archive: zipfile.ZipFile, manifest: Manifest, way: Way) -> None:
        self.path = path
        self.sha256 = sha256
        self.manifest = manifest
        self.way = way
        self._archive = archive

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def component(self, resource: str, version: str) -> ComponentForm:
        """What the manifest says of a component; it has all that the generations name."""
        return next(one for one in self.manifest.components if (one.resource, one.version) == (resource, version))

    def bytes_of(self, digest: str) -> bytes:
        """An object, once more proved to be what it is called."""
        with _told(self.path, f"{OBJECTS}{digest}"), self._archive.open(f"{OBJECTS}{digest}") as member:
            data = member.read(self.manifest.members[f"{OBJECTS}{digest}"].size + 1)
        if hashlib.sha256(data).hexdigest() != digest:
            raise unreadable(self.path, f"{OBJECTS}{digest}", "it was changed while it was read")
        return data

    def extract(self, digest: str, target: Path) -> None:
        """Write an object to a new file; nobody else may read it. Raises OSError for what the disk does not take."""
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as writing:
            for piece in self._again(digest):
                writing.write(piece)

    def _again(self, digest: str) -> Iterator[bytes]:
        """An object in pieces, read for the second time."""
        name = f"{OBJECTS}{digest}"
        left, summed = self.manifest.members[name].size, hashlib.sha256()
        with ExitStack() as stack:
            with _told(self.path, name):
                member = stack.enter_context(self._archive.open(name))
            while left:
                with _told(self.path, name):
                    piece = member.read(min(_CHUNK_BYTES, left))
                if not piece:
                    break
                summed.update(piece)
                left -= len(piece)
                yield piece
        if summed.hexdigest() != digest:
            raise unreadable(self.path, name, "it was changed while it was read")


@contextmanager
def reading(path: Path, room: Path, progress: Progress = nobody_watches) -> Iterator[Opened]:
    """A file, verified from end to end. ``room``: where what is in it will lie. Raises ExportUnreadable."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(path, "", error.strerror or str(error), "Check the path and its permissions") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise unreadable(path, "", "it is no file", "Name the file that an export wrote")
    with os.fdopen(file, "rb") as whole:
        with _told(path, "the file"):
            sha256 = _vouched(path, whole, progress)
        try:
            archive = zipfile.ZipFile(whole)
        except _BROKEN as error:
            raise unreadable(path, "the archive's directory", str(error)) from error
        with archive:
            with _told(path, "the archive's directory"):
                entries = _entries(path, archive)
                manifest = _manifest(path, archive, entries)
            _check_members(path, manifest, entries)
            _check_room(path, manifest, room)
            _verify(path, archive, manifest, progress)
            with _told(path, EVENTS):
                way = _history(path, archive, manifest)
            yield Opened(path, sha256, archive, manifest, way)


@contextmanager
def _told(path: Path, place: str) -> Iterator[None]:
    try:
        yield
    except ExportUnreadable:
        raise
    except _BROKEN as error:
        raise unreadable(path, place, str(error) or type(error).__name__) from error


def _vouched(path: Path, whole: BinaryIO, progress: Progress) -> str:
    """The digest of the file, whose end says what all before it must give."""
    size = whole.seek(0, os.SEEK_END)
    end = len(COMMENT) + DIGEST_CHARS
    whole.seek(max(size - end - 16, 0))
    tail = whole.read()
    newer = re.search(KIND + rb"(\d{1,9}) [0-9a-f]{64}\Z", tail)
    if newer is None:
        kind = "its end is not that of an export: it is something else, or cut off"
        raise unreadable(path, f"byte {size}", kind, "Name a file that `statefork export` wrote, and all of it")
    if int(newer[1]) != FORMAT:
        hint = "A newer statefork wrote it: upgrade"
        raise unreadable(path, f"byte {size}", f"its format is {int(newer[1])}; this statefork knows {FORMAT}", hint)
    whole.seek(0)
    summed, left = hashlib.sha256(), size - DIGEST_CHARS
    while left and (piece := whole.read(min(_CHUNK_BYTES, left))):
        summed.update(piece)
        left -= len(piece)
        progress(_VERIFYING_SHARE / 2 * (1 - left / size), "verifying the file")
    if summed.hexdigest().encode() != tail[-DIGEST_CHARS:]:
        raise unreadable(path, f"bytes 1 to {size - DIGEST_CHARS}", "they are not what was written: it is damaged")
    summed.update(tail[-DIGEST_CHARS:])
    return summed.hexdigest()


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    if len(archive.infolist()) > MEMBERS_MAX:
        raise unreadable(path, "the archive's directory", f"it has more than {MEMBERS_MAX} members")
    for entry in archive.infolist():
        name = entry.filename
        if name not in (EVENTS, MANIFEST) and not OBJECT.fullmatch(name):
            raise unreadable(path, repr(name), "an export has no such member")
        if name in entries:
            raise unreadable(path, name, "it is there twice")
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
            raise unreadable(path, name, "it is packed in a way that an export never is")
        entries[name] = entry
    return entries


def _manifest(path: Path, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]) -> Manifest:
    entry = entries.get(MANIFEST)
    if entry is None:
        raise unreadable(path, MANIFEST, "it is missing")
    if entry.file_size > MANIFEST_BYTES_MAX:
        raise unreadable(path, MANIFEST, f"it is longer than {MANIFEST_BYTES_MAX} bytes")
    with archive.open(entry) as member:
        data = _all(path, MANIFEST, member, entry.file_size)
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise unreadable(path, MANIFEST, str(error)) from error


def _all(path: Path, name: str, member: IO[bytes], size: int) -> bytes:
    """All of a member that has this size, and not a byte more, however it was packed."""
    data = member.read(size + 1)
    if len(data) != size:
        raise unreadable(path, name, f"it has not the {size} bytes that it should have")
    return data


def _check_members(path: Path, manifest: Manifest, entries: Mapping[str, zipfile.ZipInfo]) -> None:
    if manifest.format != FORMAT:
        raise unreadable(path, MANIFEST, f"it is of format {manifest.format}, and the file of {FORMAT}")
    for name in sorted(entries.keys() - {MANIFEST} | manifest.members.keys()):
        told, entry = manifest.members.get(name), entries.get(name)
        if told is None or entry is None:
            raise unreadable(path, name, "it is missing" if entry is None else "the manifest does not know it")
        if told.size != entry.file_size:
            raise unreadable(path, name, f"it has {entry.file_size} bytes; the manifest says {told.size}")
        found = OBJECT.fullmatch(name)
        if found is not None and found[1] != told.sha256:
            raise unreadable(path, name, "the manifest says another digest than its name")
    if EVENTS not in manifest.members or manifest.members[EVENTS].size > EVENTS_BYTES_MAX:
        raise unreadable(path, EVENTS, f"it is missing, or longer than {EVENTS_BYTES_MAX} bytes")


def _check_room(path: Path, manifest: Manifest, room: Path) -> None:
    needed = sum(member.size for member in manifest.members.values()) + _SPARE_BYTES
    free = shutil.disk_usage(room).free
    if needed > free:
        hint = f"Free space on the disk of {room}, if you trust the file: it may have been made to fill disks"
        raise unreadable(path, MANIFEST, f"unpacked it takes {needed} bytes, and {free} are free", hint)


def _verify(path: Path, archive: zipfile.ZipFile, manifest: Manifest, progress: Progress) -> None:
    """Every member has the size and the digest that the manifest says."""
    whole = sum(member.size for member in manifest.members.values()) or 1
    done = 0
    for name, told in manifest.members.items():
        with _told(path, name), archive.open(name) as member:
            for piece in _pieces(path, name, member, told):
                done += len(piece)
                progress(_VERIFYING_SHARE / 2 * (1 + done / whole), "verifying what is in it")


def _pieces(path: Path, name: str, member: IO[bytes], told: Member) -> Iterator[bytes]:
    summed, left = hashlib.sha256(), told.size
    while piece := member.read(min(_CHUNK_BYTES, left + 1)):
        left -= len(piece)
        if left < 0:
            break
        summed.update(piece)
        yield piece
    if left or summed.hexdigest() != told.sha256:
        raise unreadable(path, name, "it is not what the manifest says: it is damaged, or was changed")


def _history(path: Path, archive: zipfile.ZipFile, manifest: Manifest) -> Way:
    """The way that the events tell, once they are proved to continue each other, and the manifest to speak of it."""
    control: dict[str, list[Recorded]] = {}
    acted: dict[str, list[Recorded]] = {}
    heads: dict[str, tuple[int, str]] = {}
    with archive.open(EVENTS) as member:
        for number, one in enumerate(_recorded(path, member, heads), 1):
            kind, _, env = one.stream.partition("/")
            if kind not in ("env", "act") or getattr(one.event, "env", "") != env:
                raise unreadable(path, f"{EVENTS}, line {number}", f"an event of {one.stream} is none of its own")
            (control if kind == "env" else acted).setdefault(env, []).append(one)
    if digest_of_heads((stream, *heads[stream]) for stream in sorted(heads)) != manifest.heads:
        raise unreadable(path, EVENTS, "its streams do not end as the manifest says")
    try:
        way = way_to(manifest.moment, control, acted)
    except UnknownRef as error:
        raise unreadable(path, EVENTS, error.message) from error
    moments = manifest.generations
    if moments != tuple(one for one in way.moments if one in set(moments)) or (
        moments[:1] != way.moments[:1] or moments[-1:] != way.moments[-1:]
    ):
        raise unreadable(path, MANIFEST, "its generations are not those of the history")
    _check_counted(path, manifest, way)
    way = way.only(moments)
    _check_named(path, manifest, way)
    return way


def _check_counted(path: Path, manifest: Manifest, way: Way) -> None:
    """Actions are counted from 1 without a hole, generations say how many led to them, and all are of one contract."""
    count = 0
    for stretch in way.stretches:
        for event in stretch.done:
            if isinstance(event, ActionBegun):
                count += 1
                if event.number != count:
                    raise unreadable(path, EVENTS, f"action {event.number} follows action {count - 1}")
        published = stretch.published
        if published.actions != count or published.contract != manifest.contract.digest:
            what = f"{published.env}@{published.generation}"
            raise unreadable(path, EVENTS, f"{what} is of another contract, or of another history than is told")


def _recorded(path: Path, member: IO[bytes], heads: dict[str, tuple[int, str]]) -> Iterator[Recorded]:
    codec, decoder = Codec(), msgspec.json.Decoder(Line)
    position = 0
    for number, text in enumerate(iter(lambda: member.readline(LINE_BYTES_MAX + 1), b""), 1):
        place = f"{EVENTS}, line {number}"
        if len(text) > LINE_BYTES_MAX:
            raise unreadable(path, place, f"it is longer than {LINE_BYTES_MAX} bytes")
        try:
            line = decoder.decode(text)
            data = bytes(line.event)
            event = codec.decode(data, position=line.position)
        except (msgspec.MsgspecError, StateforkError) as error:
            raise unreadable(path, place, str(error)) from error
        last, before = heads.get(line.stream, (0, GENESIS))
        if line.version != last + 1 or line.position <= position:
            raise unreadable(path, place, f"event {line.version} of {line.stream} follows event {last}")
        if not line.altered and link(before, line.stream, line.version, data) != line.hash:
            raise unreadable(path, place, f"event {line.version} of {line.stream} does not fit its hash")
        heads[line.stream] = (line.version, line.hash)
        position = line.position
        yield Recorded(position=line.position, stream=line.stream, version=line.version, event=event, hash=line.hash)


def _check_named(path: Path, manifest: Manifest, way: Way) -> None:
    """Everything that the history names is there, and nothing else is called what it may not be."""
    told = {(one.resource, one.version): one for one in manifest.components}
    if len(told) != len(manifest.components) or told.keys() != way.components.keys():
        raise unreadable(path, MANIFEST, "its components are not those of the history")
    for one in manifest.components:
        for name, digest in (one.files or {}).items():
            if not FILE_NAME.fullmatch(name):
                raise unreadable(path, MANIFEST, f"a file of {one.resource} may not be called {name!r}")
            if f"{OBJECTS}{digest}" not in manifest.members:
                raise unreadable(path, MANIFEST, f"{name} of {one.resource} is not in the file")
    blobs = {digest for event in way.activity for digest in blobs_of(event)}
    if blobs != set(manifest.blobs):
        raise unreadable(path, MANIFEST, "its blobs are not those that the history names")
    for digest in sorted(blobs):
        if f"{OBJECTS}{digest}" not in manifest.members:
            raise unreadable(path, MANIFEST, f"blob {digest[:80]} is not in the file")
        if manifest.members[f"{OBJECTS}{digest}"].size > BLOB_BYTES_MAX:
            raise unreadable(path, f"{OBJECTS}{digest}", f"a blob has at most {BLOB_BYTES_MAX} bytes")
