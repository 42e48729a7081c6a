"""Content-addressed storage for what observations and inputs point at: screenshots, page texts, request bodies.

A blob is put in two steps, so that ``put`` is cheap and yet no durable event points at bytes that are not on disk:
``put`` writes a temporary file; ``sync``, which the journal's writer calls before each commit, forces it to the disk
and only then gives it its final name. So a file with a final name is always whole, and a crash leaves at most
temporary files that no event refers to; they are removed when the store is next opened for writing.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from statefork.journal.errors import BlobMissing, JournalUnavailable

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = "tmp"


def digest_of(data: bytes) -> str:
    """The name of a blob: SHA-256 of its bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


class BlobReader:
    """The blobs that are on disk. Any number of processes may read."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, digest: str) -> bytes:
        """The bytes, proved to give the digest. Raises BlobMissing."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError as error:
            raise _missing(digest, "is not in the store") from error
        except OSError as error:
            raise _missing(digest, f"can't be read ({error.strerror})") from error
        if digest_of(data) != digest:
            raise _missing(digest, "is damaged: its bytes give another digest")
        return data

    def __contains__(self, digest: str) -> bool:
        return self._path(digest).exists()

    def digests(self) -> Iterator[str]:
        """The names of all blobs on disk, sorted."""
        for shard in sorted(self._root.glob("[0-9a-f][0-9a-f]")):
            yield from sorted(shard.name + path.name for path in shard.iterdir() if len(path.name) == 62)

    def path(self, digest: str) -> Path:
        """The file of a blob that is on disk, to be shown to a person. Raises BlobMissing."""
        path = self._path(digest)
        if not path.exists():
            raise _missing(digest, "is not in the store")
        return path

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise _missing(digest, "is not a digest (64 hex digits)")
        return self._root / digest[:2] / digest[2:]


class BlobStore(BlobReader):
    """The blobs of a state directory that is open for writing. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._pending: dict[str, Path] = {}  # temporary files that wait for their final name
        self._unsynced = {root, root.parent}  # directories with names that may not be on disk
        self._synced: set[Path] = set()  # directories whose older names are, or will be with the next sync
        self._doubtful: set[Path] = set()  # temporary files whose fsync failed once
        self._numbers = itertools.count()
        self._temporary = root / _TEMPORARY
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            for left_over in self._temporary.iterdir():
                left_over.unlink()
        except OSError as error:
            raise _unavailable("The blob store can't be opened", error) from error

    def put(self, data: bytes) -> str:
        """Store and return the digest. Storing the same bytes again costs no more than hashing them.

        The bytes are readable at once through this store, and on disk before any event that is appended later.
        Raises JournalUnavailable if the disk is full; nothing is kept then.
        """
        digest = digest_of(data)
        with self._lock:
            if digest in self._pending:
                return digest
            path = self._path(digest)
            if path.exists():
                self._distrust(path.parent)
                return digest
            try:
                self._pending[digest] = self._write(data)
            except OSError as error:
                raise _unavailable("A blob can't be stored", error) from error
        return digest

    def get(self, digest: str) -> bytes:
        with self._lock:  # held while reading, or sync might rename the file in between
            pending = self._pending.get(digest)
            if pending is not None:
                return pending.read_bytes()
        return super().get(digest)

    def __contains__(self, digest: str) -> bool:
        return digest in self._pending or super().__contains__(digest)

    def wait(self) -> bool:
        """Whether ``sync`` would have something to force to the disk."""
        return bool(self._pending or self._unsynced)

    def sync(self) -> None:
        """Return when everything put before is on disk under its final name. Raises OSError; may be repeated."""
        with self._syncing:
            with self._lock:
                batch = list(self._pending.items())
            for digest, path in batch:
                self._force(digest, path)
            with self._lock:
                for digest, _ in batch:
                    self._name(digest)
                folders = list(self._unsynced)
            for folder in folders:
                _sync_path(folder)
            with self._lock:
                self._unsynced.difference_update(folders)

    def discard(self, digest: str) -> int:
        """Remove a blob that nothing refers to any more; return the bytes that it took. Idempotent."""
        with self._syncing, self._lock:
            path = self._pending.pop(digest, None) or self._path(digest)
            try:
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return 0
            return size

    def _write(self, data: bytes) -> Path:
        path = self._temporary / f"{os.getpid()}-{next(self._numbers)}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(file)
        return path

    def _force(self, digest: str, path: Path) -> None:
        """Force a temporary file to the disk. After a failed fsync the kernel forgets what it could not write, so the
        next attempt must write the bytes anew."""
        if path in self._doubtful:
            data = path.read_bytes()
            if digest_of(data) != digest:
                raise OSError(f"blob {digest} was lost by the disk before it was stored")
            fresh = self._write(data)
            with self._lock:
                self._pending[digest] = fresh
            self._doubtful.discard(path)
            path.unlink()
            path = fresh
        try:
            _sync_path(path)
        except OSError:
            self._doubtful.add(path)
            raise

    def _name(self, digest: str) -> None:
        final = self._path(digest)
        if not final.parent.exists():
            final.parent.mkdir()
            self._unsynced.add(self._root)
        self._pending[digest].rename(final)
        del self._pending[digest]
        self._unsynced.add(final.parent)

    def _distrust(self, shard: Path) -> None:
        """The first time that an old blob is met here: whoever stored it may have died before it synced the folder."""
        if shard not in self._synced:
            self._synced.add(shard)
            self._unsynced |= {shard, self._root}


class MemoryBlobs:
    """Blobs in memory, with the same two steps: ``crash`` loses what was put and not synced."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._pending: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """Store and return the digest."""
        digest = digest_of(data)
        if digest not in self._kept:
            self._pending[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes; raises BlobMissing."""
        for blobs in (self._pending, self._kept):
            if digest in blobs:
                return blobs[digest]
        raise _missing(digest, "is not in the store")

    def __contains__(self, digest: str) -> bool:
        return digest in self._kept or digest in self._pending

    def digests(self) -> Iterator[str]:
        """The names of all blobs that would survive a crash, sorted."""
        yield from sorted(self._kept)

    def sync(self) -> None:
        """Everything put before survives a crash."""
        self._kept |= self._pending
        self._pending.clear()

    def discard(self, digest: str) -> int:
        """Remove a blob; return the bytes that it took."""
        kept, pending = self._kept.pop(digest, b""), self._pending.pop(digest, b"")
        return len(kept or pending)

    def crash(self) -> None:
        """Lose what was not synced."""
        self._pending.clear()


def _sync_path(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _missing(digest: str, why: str) -> BlobMissing:
    return BlobMissing(
        f"Blob {digest[:80]} {why}",
        hint="Copy the missing file back into the state directory's blobs folder, or treat what it shows as lost",
        digest=digest[:80],
    )


def _unavailable(what: str, error: OSError) -> JournalUnavailable:
    return JournalUnavailable(
        f"{what}: {error.strerror or error}",
        hint="Free space or repair the disk, then try again",
        errno=error.errno,
    )
