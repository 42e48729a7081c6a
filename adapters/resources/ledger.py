"""What exists on disk of one resource: sealed versions, branches, and the layers that both are built on.

::

    resources/<name>/
      layers/<id>/…          bytes of a version or of an open branch; a sealed layer is never written, and gets sums
      sealed/<version>.json  a sealed version: its handle, and the layers that it is made of, top first
      branches/<id>.json     a branch: its handle, and the layers under it
      branches/<id>/…        its working files
      tmp/…                  half-made things; removed when the ledger is next opened, as are TRIALS

A layer lives as long as any version or branch names it, so versions may be discarded in any order. A record is written
before what it names where that must be found again after a crash (branches), and after it where it must be whole
(versions). One process writes a ledger; several threads may. Nobody but the engine's user enters it: what lies here is
the environments', and a command of one of them may be another user of the same machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from statefork.adapters.resources.records import BranchRecord, R, Records, SealedRecord
from statefork.engine.errors import ForeignHandle, ResourceFailed
from statefork.journal.values import Branch, Handle, Sealed

ID_LENGTH_MAX = 120
TRIALS = (".reflink-", ".ticks-")
"""Beginnings of the names of files by which adapters try a file system; a killed engine leaves them behind."""

CLOSED, PASSAGE = 0o700, 0o711
"""Rights of a directory: the engine's user alone; and whoever knows what lies in it may go through."""

_FOLDERS = ("", "layers", "sealed", "branches", "tmp")
_NONCE_BYTES = 6

_LIBC = ctypes.CDLL(None, use_errno=True)


def readable(text: str) -> str:
    """A file name that a person recognises, for any environment name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)[:ID_LENGTH_MAX]


class Ledger:
    """The records of one resource of one journal. All methods block: call them from a worker thread."""

    def __init__(self, state: Path, resource: str, adapter: str, journal: str) -> None:
        self.state = state
        self.root = state / "resources" / resource
        self.resource = resource
        self.adapter = adapter
        self.journal = journal
        self.rights = dict.fromkeys(_FOLDERS, CLOSED)  # of each folder, when the ledger is opened
        self._lock = threading.RLock()
        self._loaded = False
        self._uses: Counter[str] = Counter()  # of layers, by this journal's records
        self._sealed = Records(SealedRecord, self._uses)
        self._branches = Records(BranchRecord, self._uses)
        self._torn: set[str] = set()  # versions whose record has a name and no bytes: of a crash of the machine
        self._foreign_layers: set[str] = set()  # what other journals' records name: kept, never shown
        self._foreign_branches: set[str] = set()
        self._pins: dict[str, int] = {}  # layers in use by work under way
        self.on_sealed: Callable[[Sequence[str]], None] | None = None  # told the layers of each version on record

    # -- places -----------------------------------------------------------------------------------------------

    def layer(self, layer: str) -> Path:
        """The directory of a layer."""
        return self.root / "layers" / layer

    def workplace(self, branch: str) -> Path:
        """The directory of a branch's working files."""
        return self.root / "branches" / branch

    def relative(self, path: Path) -> str:
        """A path as handles hold it: relative to the state directory."""
        return path.relative_to(self.state).as_posix()

    def base_version(self, digest: str) -> str:
        """The version of a base with this content: the same in every run of one journal, another in another's."""
        return f"base-{digest[:24]}-{hashlib.sha256(self.journal.encode()).hexdigest()[:8]}"

    def new_id(self, prefix: str) -> str:
        """A name that was never used before."""
        return f"{readable(prefix)}-{secrets.token_hex(_NONCE_BYTES)}"

    # -- records ----------------------------------------------------------------------------------------------

    def sealed(self, handle: Sealed) -> SealedRecord:
        """The record of a version. Raises ForeignHandle, ResourceFailed when it is gone."""
        self.check(handle)
        if handle.adapter != self.adapter:
            raise ResourceFailed(
                f"{self.resource}: version {handle.version!r} is one of adapter {handle.adapter!r}, and not of "
                f"{self.adapter!r}, which the resource has here",
                hint=f"Install what {handle.adapter!r} needs (statefork doctor), or go on in another state directory",
                resource=self.resource,
                version=handle.version,
            )
        with self._opened():
            record = self._sealed.get(handle.version)
        if record is None:
            torn = handle.version in self._torn
            raise ResourceFailed(
                f"{self.resource}: version {handle.version!r} {'lost its record' if torn else 'does not exist here'}",
                hint='The machine crashed before it was on disk: survives = "os" outlives that'
                if torn
                else "It was collected, or the state directory is not the one it was sealed in",
                resource=self.resource,
                version=handle.version,
            )
        return record

    def branch(self, handle: Branch) -> BranchRecord:
        """The record of a branch. Raises ForeignHandle, ResourceFailed when it is gone."""
        self.check(handle)
        with self._opened():
            record = self._branches.get(handle.id)
        if record is None:
            raise ResourceFailed(
                f"{self.resource}: branch {handle.id!r} does not exist here",
                hint="It was discarded",
                resource=self.resource,
                env=handle.env,
                branch=handle.id,
            )
        return record

    def find_branch(self, branch: str) -> BranchRecord | None:
        """The record of a branch, if there is one."""
        with self._opened():
            return self._branches.get(branch)

    def find_sealed(self, version: str) -> SealedRecord | None:
        """The record of a version, if there is one."""
        with self._opened():
            return self._sealed.get(version)

    def by_fingerprint(self, fingerprint: str) -> SealedRecord | None:
        """The provisioned base with this fingerprint."""
        with self._opened():
            return next((r for r in self._sealed if r.fingerprint == fingerprint), None)

    def put_sealed(self, record: SealedRecord) -> Sealed:
        """Write a version's record; the same version again replaces it."""
        with self._opened():
            self._write("sealed", record.handle.version, record)
            self._sealed.put(record)
        if self.on_sealed is not None:
            self.on_sealed(record.layers)
        return record.handle

    def put_branch(self, record: BranchRecord) -> None:
        """Write a branch's record; the same branch again replaces it. It holds here even where writing it fails."""
        with self._opened():
            self._branches.put(record)
            self._write("branches", record.handle.id, record)

    def note_mark(self, handle: Branch, mark: str) -> None:
        """Remember what a branch just opened looks like. Not on disk: whoever finds it later takes it as changed."""
        with self._opened():
            self._branches.put(msgspec.structs.replace(self.branch(handle), mark=mark))

    def kept(self, record: BranchRecord) -> Sealed:
        """The version that an unchanged branch equals; recorded anew where it was discarded meanwhile."""
        with self._opened():
            if record.over.version not in self._sealed:
                self.put_sealed(SealedRecord(handle=record.over, layers=record.layers))
        return record.over

    def drop_sealed(self, version: str) -> None:
        """Forget a version and remove the layers that nothing else names. Idempotent."""
        with self._opened():
            self._torn.discard(version)
            record = self._sealed.pop(version)
            self._record_path("sealed", version).unlink(missing_ok=True)
            self._collect(record.layers if record else ())

    def drop_branch(self, branch: str) -> None:
        """Forget a branch, its working files and the layers that nothing else names. Idempotent."""
        with self._opened():
            remove_tree(self.workplace(branch))
            record = self._branches.pop(branch)
            self._record_path("branches", branch).unlink(missing_ok=True)
            self._collect(record.named if record else ())

    def handles(self) -> Iterator[Handle]:
        """Everything of this journal that exists now."""
        with self._opened():
            torn = [
                Sealed(journal=self.journal, resource=self.resource, adapter=self.adapter, version=version)
                for version in sorted(self._torn)
            ]
            return itertools.chain(
                torn,
                (record.handle for record in iter(self._sealed)),
                (record.handle for record in iter(self._branches)),
            )

    def branches(self) -> list[BranchRecord]:
        """The records of all branches of this journal."""
        with self._opened():
            return list(self._branches)

    def check(self, handle: Handle) -> None:
        """Raise ForeignHandle or ResourceFailed unless the handle is of this journal and resource."""
        if handle.journal != self.journal:
            raise ForeignHandle(
                f"{self.resource}: a handle of journal {handle.journal!r} was given to journal {self.journal!r}",
                resource=self.resource,
                journal=self.journal,
            )
        if handle.resource != self.resource:
            raise ResourceFailed(
                f"{self.resource}: a handle of resource {handle.resource!r} was given to {self.resource!r}",
                resource=self.resource,
            )

    # -- layers -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pinned(self, layers: Sequence[str]) -> Iterator[None]:
        """Keep layers while something is made from them."""
        with self._opened():
            for layer in layers:
                self._pins[layer] = self._pins.get(layer, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                for layer in layers:
                    self._pins[layer] -= 1
                    if not self._pins[layer]:
                        del self._pins[layer]
                self._collect(layers)

    @contextlib.contextmanager
    def new_layer(self, prefix: str, suffix: str = "") -> Iterator[tuple[str, Path]]:
        """A new layer's id and a temporary directory to fill; it becomes the layer when the body ends well."""
        layer = self.new_id(prefix) + suffix
        with self._opened():
            place = self.root / "tmp" / layer
            place.mkdir(parents=True)
        try:
            yield layer, place
            target = self.layer(layer)
            target.parent.mkdir(exist_ok=True)
            place.rename(target)
        except BaseException:
            remove_tree(place)
            raise

    def collect(self, layers: Sequence[str]) -> None:
        """Remove those of these layers that nothing names."""
        with self._opened():
            self._collect(layers)

    def _collect(self, layers: Sequence[str]) -> None:
        for layer in layers:
            if layer and not self._is_needed(layer):
                remove_tree(self.layer(layer))

    def _is_needed(self, layer: str) -> bool:
        return bool(self._torn) or layer in self._uses or layer in self._pins or layer in self._foreign_layers

    # -- disk -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        with self._lock:
            if not self._loaded:
                self._load()
                self._loaded = True
            yield

    def _load(self) -> None:
        remove_tree(self.root / "tmp")
        for folder, rights in self.rights.items():
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):  # of a file system that keeps no rights
                (self.root / folder).chmod(rights)
        left = [self.root.glob(f"{prefix}*") for prefix in TRIALS]
        left += [(self.root / folder).glob("*.partial") for folder in ("sealed", "branches")]
        for path in itertools.chain(*left):
            path.unlink(missing_ok=True)
        self._read("sealed", SealedRecord, self._sealed.put)
        self._read("branches", BranchRecord, self._branches.put)
        self._sweep()

    def _read(self, folder: str, kind: type[R], keep: Callable[[R], None]) -> None:
        for path in sorted((self.root / folder).glob("*.json")):
            data = path.read_bytes()
            if not data.strip(b"\0"):
                self._read_torn(path)
                continue
            try:
                record = msgspec.json.decode(data, type=kind)
            except msgspec.MsgspecError as error:
                raise ResourceFailed(
                    f"{self.resource}: the record {self.relative(path)} can't be read: {error}",
                    hint="Restore the file from a copy, or remove it: what it names is then lost",
                    resource=self.resource,
                ) from error
            if record.handle.journal == self.journal:
                keep(record)
            else:
                self._foreign_layers.update(record.named)
                if isinstance(record, BranchRecord):
                    self._foreign_branches.add(record.name)

    def _read_torn(self, path: Path) -> None:
        """A branch is given up, as all are after a crash. What became of a version the journal knows: it is listed for
        the collector, and no layer is removed while it may be one of its own."""
        if path.parent.name == "branches":
            path.unlink()
        else:
            self._torn.add(path.stem)

    def _sweep(self) -> None:
        """Remove layers and workplaces without a record: a crash came between making and recording them."""
        for path in (self.root / "layers").iterdir():
            if not self._is_needed(path.name):
                remove_tree(path)
        for path in (self.root / "branches").iterdir():
            if path.is_dir() and path.name not in self._branches and path.name not in self._foreign_branches:
                remove_tree(path)

    def _write(self, folder: str, name: str, record: msgspec.Struct) -> None:
        # One that replaces a version's record must not lose both to a crash of the machine.
        replaces = folder == "sealed" and name in self._sealed
        write_whole(self._record_path(folder, name), msgspec.json.encode(record), force=replaces)

    def _record_path(self, folder: str, name: str) -> Path:
        return self.root / folder / f"{name}.json"


def write_whole(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file so that it is never seen half-written; with ``force`` not after a crash of the machine either."""
    target = str(path)
    partial = f"{target}.{secrets.token_hex(4)}.partial"
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            if force:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(partial, target)  # noqa: PTH105 - on the path of every seal, where Path objects cost as much
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def remove_tree(path: Path) -> None:
    """Remove a tree, also one with read-only directories. Idempotent."""

    def make_writable_and_retry(_function: object, name: str, _info: object) -> None:
        Path(name).parent.chmod(0o700)
        entry = Path(name)
        if entry.is_dir() and not entry.is_symlink():
            entry.chmod(0o700)
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)

    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path, onerror=make_writable_and_retry)


def sync_file(path: Path) -> None:
    """Force a file or directory to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_file_system(directory: Path) -> None:
    """Force everything written to a directory's file system to the disk. Raises OSError where some of it was lost."""
    file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(file) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(file)
