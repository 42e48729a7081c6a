"""SQLite behind the resource port (see engine.ports.Resource)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import msgspec

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.ledger import Ledger, sync_file
from statefork.adapters.resources.onefile import OneFileResource
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.adapters.resources.reflink import ReflinkProbe, copy_bytes, probe_reflink, shared_bytes
from statefork.adapters.resources.sqlite.content import changes, content_digest
from statefork.adapters.resources.sqlite.hold import Hold
from statefork.adapters.resources.stored import BLOCK_BYTES
from statefork.engine.errors import NotReady, ResourceFailed
from statefork.engine.masks import Column
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Identity, Sealed

ADAPTER = "sqlite"
FILE_NAME = "db.sqlite3"
_SIDECARS = ("-wal", "-journal")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a contract may say of a ``sqlite`` resource."""

    base: str  # the database file, relative to the contract
    survives: Literal["process", "os"] = (
        "process"  # the crash that a sealed version outlives; "os" forces it to the disk
    )


class SqliteResource(OneFileResource):
    """One database of one contract."""

    adapter = ADAPTER
    file_name = FILE_NAME

    def __init__(self, name: str, options: Options, services: Services) -> None:
        super().__init__(
            name, Ledger(services.state, name, ADAPTER, services.journal), services.base_dir / options.base
        )
        self.options = options
        self._holds: dict[str, Hold] = {}
        self._lock = threading.Lock()
        self._probed: ReflinkProbe | None = None

    # -- strategy ---------------------------------------------------------------------------------------------

    def strategy(self) -> Strategy:
        """Reflink or copy, by trial in the state directory at first use."""
        if self._reflink().works:
            return Strategy(name="reflink", reason=f"{self._reflink().reason}: a branch costs the same at any size")
        return Strategy(
            name="copy",
            reason=f"{self._reflink().reason}; a branch or a seal copies the file",
            faster="a store (statefork store init) or a state directory on XFS or btrfs, for databases from some tens "
            "of megabytes",
        )

    def _reflink(self) -> ReflinkProbe:
        if self._probed is None:
            try:
                self._probed = probe_reflink(self._ledger.root)
            except OSError as error:
                self._probed = ReflinkProbe(False, f"the state directory can't be written ({error.strerror})")
        return self._probed

    async def start(self) -> None:
        """Probe the file system. Idempotent."""
        await in_thread(self._reflink)

    async def stop(self) -> None:
        """Let go of the branches that are still open. Idempotent."""
        await in_thread(self._close_holds)
        await in_thread(self._sums.stop)

    def _close_holds(self) -> None:
        with self._lock:
            holds, self._holds = self._holds, {}
        for hold in holds.values():
            hold.close()

    # -- the base ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """A private copy of the base in WAL mode, named by its content. Raises ContractError when there is no base."""
        return await in_thread(self._provision)

    def _provision(self) -> Sealed:
        fingerprint = self._fingerprint()
        known = self._ledger.by_fingerprint(fingerprint)
        if known is not None:
            return known.handle
        with failures_told(self.name, "copying the base"), self._ledger.new_layer("base") as (layer, place):
            self._copy_base(place / FILE_NAME)
            digest = self._normalise(place / FILE_NAME)
            (place / FILE_NAME).chmod(0o444)
            self._force(place)
        version = self._ledger.base_version(digest)
        same = self._ledger.find_sealed(version)
        if same is not None:  # other bytes, the same rows
            self._ledger.collect([layer])
            return self._ledger.put_sealed(msgspec.structs.replace(same, fingerprint=fingerprint))
        return self._ledger.put_sealed(self._record(version, layer, digest=digest, fingerprint=fingerprint))

    def _fingerprint(self) -> str:
        if not self._base.is_file():
            raise self._bad_base("there is no file")
        seen = []
        for suffix in ("", *_SIDECARS):
            path = self._base.with_name(self._base.name + suffix)
            if path.exists():
                status = path.stat()
                seen.append([suffix, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        return msgspec.json.encode([str(self._base), seen]).decode()

    def _copy_base(self, target: Path) -> None:
        for suffix in ("", *_SIDECARS):
            source = self._base.with_name(self._base.name + suffix)
            if source.exists():
                self._copy(source, target.with_name(target.name + suffix))

    def _normalise(self, path: Path) -> str:
        """Take in what a WAL or a hot journal beside the base held, switch to WAL mode; return the content's digest."""
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.close()
            return content_digest(path)
        except sqlite3.DatabaseError as error:
            raise self._bad_base(f"SQLite can't use it ({error}): the file") from error

    # -- branches ---------------------------------------------------------------------------------------------

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A clone of the version's file, at a path of its own."""
        return await in_thread(self._branch, sealed, owner)

    def _branch(self, sealed: Sealed, owner: Owner) -> Branch:
        layers = self._ledger.sealed(sealed).layers
        branch_id = self._ledger.new_id(f"{owner.env}-e{owner.epoch}")
        path = self._ledger.workplace(branch_id) / FILE_NAME
        handle = Branch(
            journal=sealed.journal,
            resource=self.name,
            adapter=ADAPTER,
            id=branch_id,
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
            data={"path": self._ledger.relative(path)},
        )
        record = BranchRecord(handle=handle, over=sealed, layers=layers)
        with failures_told(self.name, "opening a branch", env=owner.env), self._ledger.pinned(layers):
            try:
                self._ledger.put_branch(record)
                path.parent.mkdir(parents=True)
                self._copy(self._ledger.layer(layers[0]) / FILE_NAME, path)
                path.chmod(0o644)
                self._ledger.note_mark(handle, self._hold(handle).mark())
            except BaseException:
                self._drop_branch(branch_id)
                raise
        return handle

    def _hold(self, branch: Branch) -> Hold:
        with self._lock:
            hold = self._holds.get(branch.id)
            if hold is None:
                self._ledger.branch(branch)
                hold = Hold(self._ledger.workplace(branch.id) / FILE_NAME, self.name)
                self._holds[branch.id] = hold
        return hold

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address is the file's absolute path."""
        self._ledger.check(branch)
        path = self._ledger.workplace(branch.id) / FILE_NAME
        return Binding(
            journal=branch.journal,
            resource=self.name,
            adapter=ADAPTER,
            branch=branch.id,
            identity=identity,
            address={"path": str(path)},
        )

    async def probe(self, binding: Binding) -> None:
        """Read through a connection of its own, as a user would: the header and the WAL, not the rows."""
        await in_thread(self._probe, binding)

    def _probe(self, binding: Binding) -> None:
        record = self._ledger.find_branch(binding.branch)
        try:
            if record is None:
                raise FileNotFoundError(f"branch {binding.branch!r} was discarded")
            self._hold(record.handle).mark()
            connection = sqlite3.connect(f"{Path(str(binding.address['path'])).as_uri()}?mode=rw", uri=True)
            try:
                connection.execute("PRAGMA schema_version").fetchone()
            finally:
                connection.close()
        except (OSError, sqlite3.Error, ResourceFailed) as error:
            raise NotReady(
                f"{self.name}: the database of {binding.identity} can't be read: {error}", resource=self.name
            ) from error

    async def unbind(self, binding: Binding) -> None:
        """Nothing of ours serves the file; whoever had it open is ended by the adapter that let them."""

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """Prove that no transaction is open. Raises ResourceBusy, naming the processes that hold one."""
        await in_thread(self._quiesce, branch)

    def _quiesce(self, branch: Branch) -> None:
        with failures_told(self.name, "quiescing", env=branch.env), self._hold(branch).settled():
            pass

    async def thaw(self, branch: Branch) -> None:
        """Nothing was stopped."""

    async def write_mark(self, branch: Branch) -> str:
        """SQLite's own count of commits."""
        return await in_thread(self._mark, branch)

    def _mark(self, branch: Branch) -> str:
        with failures_told(self.name, "reading the write counter", env=branch.env):
            return self._hold(branch).mark()

    async def seal(self, branch: Branch) -> Sealed:
        """Checkpoint, then clone under SQLite's write lock. Raises ResourceBusy."""
        return await in_thread(self._seal, branch)

    def _seal(self, branch: Branch) -> Sealed:
        record = self._ledger.branch(branch)
        if self._mark(branch) == record.mark:
            return self._ledger.kept(record)
        hold = self._hold(branch)
        with failures_told(self.name, "sealing", env=branch.env), hold.settled() as file:
            mark = hold.mark()
            with self._ledger.new_layer(f"{branch.env}-e{branch.epoch}") as (layer, place):
                target = place / FILE_NAME
                with target.open("xb") as writing:
                    copy_bytes(file, writing.fileno(), reflink=self._reflink().works, pulse=pulse)
                target.chmod(0o444)
                self._force(place)
            sealed_record = self._record(layer, layer)
            # First the branch: should recording the version fail, the next seal records it (see ``Ledger.kept``).
            self._ledger.put_branch(
                msgspec.structs.replace(record, over=sealed_record.handle, layers=(layer,), mark=mark)
            )
            self._ledger.put_sealed(sealed_record)
        self._ledger.collect(record.layers)  # a version that was discarded, which only this branch still named
        return sealed_record.handle

    def _unpacked(self, layer: str, place: Path) -> SealedRecord:
        (place / FILE_NAME).chmod(0o444)
        try:
            digest = content_digest(place / FILE_NAME, pulse)
        except sqlite3.DatabaseError as error:
            raise ResourceFailed(f"{self.name}: SQLite can't read it: {error}", resource=self.name) from error
        self._force(place)
        return self._record(layer, layer, digest=digest)

    def _record(self, version: str, layer: str, *, digest: str = "", fingerprint: str = "") -> SealedRecord:
        path = self._ledger.relative(self._ledger.layer(layer) / FILE_NAME)
        handle = Sealed(
            journal=self._ledger.journal,
            resource=self.name,
            adapter=ADAPTER,
            version=version,
            data={"path": path},
        )
        return SealedRecord(handle=handle, layers=(layer,), digest=digest, fingerprint=fingerprint)

    def _copy(self, source: Path, target: Path) -> None:
        with source.open("rb") as reading, target.open("xb") as writing:
            copy_bytes(reading.fileno(), writing.fileno(), reflink=self._reflink().works, pulse=pulse)

    def _force(self, place: Path) -> None:
        if self.options.survives == "os":
            for path in (place / FILE_NAME, place, self._ledger.root / "layers"):
                sync_file(path)

    # -- the end, and looking ---------------------------------------------------------------------------------

    def _drop_branch(self, branch: str) -> None:
        with self._lock:
            hold = self._holds.pop(branch, None)
        self._ledger.drop_branch(branch)  # before letting go, so that SQLite has no WAL to write back
        if hold is not None:
            hold.close()

    def _content_digest(self, record: SealedRecord) -> str:
        """Of the schema and all rows in key order, whatever the pages look like."""
        return content_digest(self._file_of(record), pulse)

    async def digest_without(self, sealed: Sealed, columns: tuple[Column, ...]) -> str:
        """Of the same without what stands in some columns (see engine.masks.Columned)."""
        path, gone = self._file_of(self._ledger.sealed(sealed)), frozenset(columns)
        with failures_told(self.name, "reading a version"):
            return await in_thread(lambda: content_digest(path, pulse, gone))

    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """Tables, then rows by key: columns that differ, with old and new values."""
        return changes(self._file_of(before), self._file_of(after))

    def _file_of(self, record: SealedRecord) -> Path:
        return self._ledger.layer(record.layers[0]) / FILE_NAME

    def _usage(self, handle: Sealed | Branch) -> Usage:
        """Bytes in extents that other files share are told apart where the file system can tell."""
        if isinstance(handle, Branch):
            self._ledger.branch(handle)
            directory = self._ledger.workplace(handle.id)
            shared = self._hold(handle).shared_bytes() if self._reflink().works else 0
        else:
            directory = self._ledger.layer(self._ledger.sealed(handle).layers[0])
            shared = shared_bytes(directory / FILE_NAME) if self._reflink().works else 0
        allocated = sum(path.stat().st_blocks * BLOCK_BYTES for path in directory.glob(f"{FILE_NAME}*"))
        return Usage(private_bytes=max(0, allocated - shared), shared_bytes=shared)
