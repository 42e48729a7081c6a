"""File trees behind the resource port (see engine.ports.Resource)."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.files.carrying import pack_tree, unpack_tree
from statefork.adapters.resources.files.difference import changes
from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.overlay import OverlayTrees, release_mounts
from statefork.adapters.resources.files.probe import Choice, choose
from statefork.adapters.resources.files.strategy import TreeStrategy
from statefork.adapters.resources.files.tree import Index, Node, scan, tree_digest, walk
from statefork.adapters.resources.ledger import Ledger, sync_file_system
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.adapters.resources.reflink import shared_bytes
from statefork.adapters.resources.stored import BLOCK_BYTES, StoredResource
from statefork.engine.errors import NotReady, ResourceFailed, StateforkError
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Identity, Sealed

ADAPTER = "files"

T = TypeVar("T")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a contract may say of a ``files`` resource."""

    base: str  # the directory, relative to the contract
    max_bytes: int = 0  # of all files of a version together; a seal of more fails; 0 = as much as the disk holds
    survives: Literal["process", "os"] = (
        "process"  # the crash that a sealed version outlives; "os" forces it to the disk
    )
    strategy: Choice = "auto"


class TreeOptions(Protocol):
    """What a resource of file trees has to be told."""

    @property
    def base(self) -> str: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def survives(self) -> Literal["process", "os"]: ...
    @property
    def strategy(self) -> Choice: ...


class FilesResource(StoredResource):
    """One file tree of one contract. What is kept as trees but made in another way than by copying derives from it."""

    adapter = ADAPTER
    overlays = OverlayTrees

    def __init__(self, name: str, options: TreeOptions, services: Services) -> None:
        super().__init__(
            name, Ledger(services.state, name, self.adapter, services.journal), services.base_dir / options.base
        )
        self.options = options
        self._layers = Layers(self._ledger)
        self._lock = threading.Lock()
        self._chosen: TreeStrategy | None = None

    # -- strategy ---------------------------------------------------------------------------------------------

    def strategy(self) -> Strategy:
        """What the probe chose, and why; at first use it tries the state directory."""
        try:
            return self._trees().described()
        except StateforkError as error:
            return Strategy(name="none", reason=error.message, faster=error.hint)

    def _trees(self) -> TreeStrategy:
        with self._lock:
            if self._chosen is None:
                with failures_told(self.name, "trying the state directory"):
                    self._chosen = choose(self._layers, self.options.strategy, self.overlays)
            return self._chosen

    async def start(self) -> None:
        """Probe. Idempotent."""
        await in_thread(self._trees)

    async def stop(self) -> None:
        """Take every tree out of reach; their files stay. Idempotent."""
        if self._chosen is not None:  # else nothing was opened, and trying might fail
            await in_thread(self._chosen.shut)
        await in_thread(self._sums.stop)

    # -- the base ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """A private copy of the base, named by its content. Raises ContractError when there is no base."""
        return await in_thread(self._provision)

    def _provision(self) -> Sealed:
        if not self._base.is_dir():
            raise self._bad_base("there is no directory")
        with failures_told(self.name, "copying the base"):
            fingerprint = self._fingerprint()
            known = self._ledger.by_fingerprint(fingerprint)
            if known is not None:
                return known.handle
            index = self._scanned()
            self._check_size(sum(entry.size for entry in index.entries.values()))
            layer = self._layers.take(self._base, index, "base", reflink=self._reflink(), pulse=pulse)
            try:
                digest = tree_digest(self._layers.view([layer]), self._sha256)
                self._layers.write_index(layer, self._layers.index(layer))  # now with the files' digests
                self._force()
                return self._settle_base(layer, digest, fingerprint)
            finally:
                self._ledger.collect([layer])

    def _scanned(self) -> Index:
        return scan(self._base, pulse=pulse)

    def _settle_base(self, layer: str, digest: str, fingerprint: str) -> Sealed:
        version = self._ledger.base_version(digest)
        same = self._ledger.find_sealed(version)
        if same is not None:  # touched, but with the same content
            return self._ledger.put_sealed(msgspec.structs.replace(same, fingerprint=fingerprint))
        handle = self._sealed_handle(version)
        record = SealedRecord(handle=handle, layers=(layer,), digest=digest, fingerprint=fingerprint)
        return self._ledger.put_sealed(record)

    def _fingerprint(self) -> str:
        whole = hashlib.sha256(os.fsencode(self._base))
        for path, _, status in walk(self._base, pulse):
            stamps = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            whole.update(msgspec.msgpack.encode((os.fsencode(path), stamps)))
        return whole.hexdigest()

    def _check_size(self, size: int) -> None:
        if self.options.max_bytes and size > self.options.max_bytes:
            raise ResourceFailed(
                f"{self.name}: the tree holds {size} bytes, more than max_bytes = {self.options.max_bytes}",
                hint=f"Raise resources.{self.name}.max_bytes in the contract, or remove files",
                resource=self.name,
                bytes=size,
            )

    def _reflink(self) -> bool:
        return self._trees().described().name == "reflink"

    def _force(self) -> None:
        if self.options.survives == "os":
            sync_file_system(self._ledger.root)

    # -- elsewhere --------------------------------------------------------------------------------------------

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """The tree as plain files (see :mod:`carrying`). Raises ResourceFailed."""
        await in_thread(self._pack, sealed, directory)

    def _pack(self, sealed: Sealed, directory: Path) -> None:
        layers = self._ledger.sealed(sealed).layers
        with failures_told(self.name, "packing a version"), self._ledger.pinned(layers):
            pack_tree(self._layers, layers, directory, self._sha256, self.name, pulse)

    async def unpack(self, directory: Path) -> Sealed:
        """A version of its own. Raises ResourceFailed."""
        return await in_thread(self._unpack, directory)

    def _unpack(self, directory: Path) -> Sealed:
        with failures_told(self.name, "unpacking a version"):
            layer = unpack_tree(self._layers, directory, self.name, pulse)
            try:
                self._check_size(sum(entry.size for entry in self._layers.index(layer).entries.values()))
                self._force()
                return self._ledger.put_sealed(SealedRecord(handle=self._sealed_handle(layer), layers=(layer,)))
            finally:
                self._ledger.collect([layer])

    # -- branches ---------------------------------------------------------------------------------------------

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A private tree at a path of its own."""
        return await in_thread(self._branch, sealed, owner)

    def _branch(self, sealed: Sealed, owner: Owner) -> Branch:
        layers = self._ledger.sealed(sealed).layers
        branch_id = self._ledger.new_id(f"{owner.env}-e{owner.epoch}")
        trees = self._trees()
        handle = Branch(
            journal=sealed.journal,
            resource=self.name,
            adapter=self.adapter,
            id=branch_id,
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
            data={"path": self._ledger.relative(trees.tree(branch_id))},
        )
        record = BranchRecord(handle=handle, over=sealed, layers=layers, upper=trees.upper_for(branch_id))
        with failures_told(self.name, "opening a branch", env=owner.env), self._ledger.pinned(layers):
            try:
                self._ledger.put_branch(record)
                self._ledger.note_mark(handle, trees.open(record))
            except BaseException:
                self._drop_branch(branch_id)
                raise
        return handle

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address is the tree's absolute path."""
        path = await in_thread(self._ready, branch)
        return Binding(
            journal=branch.journal,
            resource=self.name,
            adapter=self.adapter,
            branch=branch.id,
            identity=identity,
            address={"path": str(path)},
        )

    def _ready(self, branch: Branch) -> Path:
        record = self._ledger.branch(branch)
        with failures_told(self.name, "opening a tree", env=branch.env):
            self._trees().ready(record)
        return self._trees().tree(branch.id)

    async def probe(self, binding: Binding) -> None:
        """List the directory, as a user would."""
        await in_thread(self._probe, binding)

    def _probe(self, binding: Binding) -> None:
        record = self._ledger.find_branch(binding.branch)
        try:
            if record is None:
                raise FileNotFoundError(f"branch {binding.branch!r} was discarded")
            self._trees().ready(record)
            with os.scandir(str(binding.address["path"])) as entries:
                next(entries, None)
        except OSError as error:
            raise NotReady(
                f"{self.name}: the tree of {binding.identity} can't be read: {error}", resource=self.name
            ) from error

    async def unbind(self, binding: Binding) -> None:
        """The tree stays until its branch is discarded; who serves it is ended by the adapter that let them."""

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """Refuse stragglers until thaw, as far as the strategy can. Raises ResourceBusy, naming a writer."""
        await in_thread(self._in_branch, "quiescing", branch, lambda record: self._trees().hold(record))

    async def thaw(self, branch: Branch) -> None:
        """Undo quiesce."""
        await in_thread(self._in_branch, "thawing", branch, lambda record: self._trees().release(record))

    async def write_mark(self, branch: Branch) -> str:
        """Made of what the kernel keeps of each file: inode, size, times."""
        return await in_thread(
            self._in_branch, "reading the tree's stamps", branch, lambda record: self._trees().mark(record)
        )

    async def seal(self, branch: Branch) -> Sealed:
        """Make a version of what changed. Raises ResourceBusy, ResourceFailed."""
        return await in_thread(self._in_branch, "sealing", branch, self._seal)

    def _in_branch(self, doing: str, branch: Branch, work: Callable[[BranchRecord], T]) -> T:
        with failures_told(self.name, doing, env=branch.env):
            return work(self._ledger.branch(branch))

    def _seal(self, record: BranchRecord) -> Sealed:
        if self._trees().mark(record) == record.mark:
            return self._ledger.kept(record)
        return self._seal_anew(record)

    def _seal_anew(self, record: BranchRecord) -> Sealed:
        trees = self._trees()
        if self.options.max_bytes:
            self._check_size(sum(status.st_size for _, _, status in walk(trees.tree(record.handle.id), pulse)))
        cut = trees.seal(record)
        handle = self._sealed_handle(self._ledger.new_id(f"{record.handle.env}-e{record.handle.epoch}"))
        below = cut.layers if cut.below is None else cut.below
        going_on = msgspec.structs.replace(record, layers=below, upper=cut.upper, over=handle, mark=cut.mark)
        try:
            self._force()
            self._ledger.put_branch(going_on)  # first: so that no record ever says that a version's layer is written
            self._ledger.put_sealed(SealedRecord(handle=handle, layers=cut.layers))
        except BaseException:  # the branch goes on over the new layers, of which no version was made
            self._ledger.put_branch(msgspec.structs.replace(going_on, over=record.over, mark=""))
            self._ledger.collect(cut.layers)
            raise
        self._ledger.collect([record.upper, *record.layers])
        return handle

    def _sealed_handle(self, version: str) -> Sealed:
        return Sealed(journal=self._ledger.journal, resource=self.name, adapter=self.adapter, version=version)

    # -- the end, and looking ---------------------------------------------------------------------------------

    def _drop_branch(self, branch: str) -> None:
        self._trees().close(branch)
        release_mounts(self._ledger.workplace(branch))  # of an engine that had another strategy
        self._ledger.drop_branch(branch)

    def _content_digest(self, record: SealedRecord) -> str:
        """Of paths, kinds, permission bits and bytes; not of times, owners or layers."""
        return tree_digest(self._layers.view(record.layers), self._sha256)

    def _sha256(self, node: Node) -> str:
        return self._layers.sha256(node, pulse)

    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """Files, links and directories, by path."""
        old, new = (self._layers.view(record.layers) for record in (before, after))
        yield from changes(old, new, self._sha256)

    def _usage(self, handle: Sealed | Branch) -> Usage:
        """Of what the handle has alone; its other layers are shared."""
        if isinstance(handle, Branch):
            record = self._ledger.branch(handle)
            own = self._layers.tree(record.upper) if record.upper else self._trees().tree(handle.id)
            shared = sum(self._bytes(self._layers.tree(layer)) for layer in record.layers) if record.upper else 0
            return self._split(own, shared)
        top, *below = self._ledger.sealed(handle).layers
        return self._split(self._layers.tree(top), sum(self._bytes(self._layers.tree(layer)) for layer in below))

    def _bytes(self, directory: Path) -> int:
        return sum(status.st_blocks * BLOCK_BYTES for _, _, status in walk(directory, pulse))

    def _split(self, own: Path, shared: int) -> Usage:
        allocated = self._bytes(own)
        cloned = 0
        if self._reflink():
            cloned = sum(shared_bytes(Path(p)) for _, p, status in walk(own, pulse) if stat.S_ISREG(status.st_mode))
        return Usage(private_bytes=max(0, allocated - cloned), shared_bytes=shared + cloned)
