"""Derived trees behind the resource port (see engine.ports.Resource).

A generation holds one of three kinds of version, told by what stands in its handle as ``made``:

``rebuild``  nothing is kept: a tree is built from the inputs of the generation when a branch of it is bound
``built``    a tree as the program made it, for one set of inputs: used while they are the same, else as ``rebuild``
``copied``   a tree that the application wrote to: it belongs to the inputs that were sealed with it

Built trees are shared: every branch writes a layer (or a copy) of its own over them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import msgspec

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.derived.building import LOG_NAME, TREE_NAME, Builder, Inputs
from statefork.adapters.resources.derived.costs import Costs
from statefork.adapters.resources.derived.options import Options
from statefork.adapters.resources.files.overlay import release_mounts
from statefork.adapters.resources.files.resource import FilesResource
from statefork.adapters.resources.files.tree import scan
from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.engine.errors import ContractError, NotReady
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Identity, Sealed

REBUILD, BUILT, COPIED = "rebuild", "built", "copied"
_UNMADE = "no tree yet"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _made(sealed: Sealed) -> str:
    return str(sealed.data.get("made", COPIED))


class DerivedResource(FilesResource):
    """One derived tree of one contract."""

    adapter = "derived"

    def __init__(self, name: str, options: Options, services: Services) -> None:
        super().__init__(name, options, services)
        self._making = options
        self._builder = Builder(name, options, services)
        self._costs = Costs(self._ledger.root)
        self._building: dict[str, anyio.Lock] = {}  # by inputs: one builds, the others wait for it
        self._bound: set[str] = set()  # branches that were bound: somebody may have written to their trees
        self._new: set[str] = set()  # versions under which trees were built here: what generations name has other names

    def strategy(self) -> Strategy:
        """What becomes of a tree that was written to, with the numbers; and how branches are made."""
        trees = super().strategy()
        if trees.name == "none":
            return trees
        kind, why = self._costs.choice(self._making.how) if self._making.inputs else ("copy", "it has no inputs")
        return Strategy(
            name=f"{kind} over {trees.name}", reason=f"{kind}: {why}. {trees.name}: {trees.reason}", faster=trees.faster
        )

    async def stop(self) -> None:
        """Take every tree out of reach. What was built and is in no generation goes."""
        await in_thread(self._forget_new)
        await super().stop()

    def _forget_new(self) -> None:
        for version in self._new:
            self._ledger.drop_sealed(version)
        self._new.clear()

    # -- versions ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """With inputs: a version that says *to be built*. Without: the tree itself, built once."""
        if self._making.inputs:
            return await in_thread(self._provision)
        return (await self._built(self._key(Needs()), {})).handle

    def _provision(self) -> Sealed:
        with failures_told(self.name, "recording the base"):
            return self._record_rebuild()

    def _record_rebuild(self) -> Sealed:
        version = f"{REBUILD}-{self._ledger.base_version(self._making.recipe())}"
        found = self._ledger.find_sealed(version)
        if found is None:
            handle = msgspec.structs.replace(self._sealed_handle(version), data={"made": REBUILD})
            self._ledger.put_sealed(SealedRecord(handle=handle, layers=()))
            return handle
        return found.handle

    def _key(self, needs: Needs) -> str:
        """Names a set of inputs. Raises ContractError for one that the resource does not depend on."""
        for name in self._making.inputs:
            if name not in needs.versions or name not in needs.bindings:
                key = f"resources.{self.name}.inputs"
                raise ContractError(f"{key}: {name!r} is not among depends_on", hint="Add it there", key=key)
        versions = [(name, needs.versions[name].version) for name in sorted(self._making.inputs)]
        return hashlib.sha256(msgspec.json.encode((self._making.recipe(), versions))).hexdigest()

    # -- building ---------------------------------------------------------------------------------------------

    async def _built(self, key: str, inputs: Inputs) -> SealedRecord:
        """The tree of a set of inputs: found, or built now. Raises ResourceFailed."""
        lock = self._building.setdefault(key, anyio.Lock())
        try:
            async with lock:
                return await in_thread(self._find, key) or await self._build(key, inputs)
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._building.pop(key, None)

    def _find(self, key: str) -> SealedRecord | None:
        """What was built for these inputs, also what only a generation of somebody names."""
        found = self._ledger.find_sealed(self._built_handle(key).version)
        if found is None:
            for handle in self._ledger.handles():
                if isinstance(handle, Sealed) and handle.data.get("inputs") == key:
                    return self._record_built(key, self._ledger.sealed(handle).layers)
        return found

    def _built_handle(self, key: str, env: str = "") -> Sealed:
        """Each environment's generations have a name of their own for what they share: no version has two authors."""
        whose = f"-{hashlib.sha256(env.encode()).hexdigest()[:12]}" if env else ""
        handle = self._sealed_handle(f"{BUILT}-{self._ledger.base_version(key)}{whose}")
        return msgspec.structs.replace(handle, data={"made": BUILT, "inputs": key})

    def _record_built(self, key: str, layers: tuple[str, ...]) -> SealedRecord:
        record = SealedRecord(handle=self._built_handle(key), layers=layers)
        self._ledger.put_sealed(record)
        if self._making.inputs:
            self._new.add(record.name)
        return record

    async def _build(self, key: str, inputs: Inputs) -> SealedRecord:
        began = perf_counter()
        making = self._ledger.new_layer(BUILT)

        def settle() -> SealedRecord:
            self._index(layer, place)
            making.__exit__(None, None, None)  # the layer is in its place
            record = self._record_built(key, (layer,))
            self._costs.note("rebuild", perf_counter() - began)
            return record

        layer, place = await self._told(making.__enter__)
        try:
            await self._builder.build(place, inputs)
            return await self._told(settle)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._told(making.__exit__, *sys.exc_info())
            raise

    async def _told(self, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        def told() -> T:
            with failures_told(self.name, "building the tree"):
                return work(*arguments)

        return await in_thread(told)

    def _index(self, layer: str, place: Path) -> None:
        (place / LOG_NAME).unlink()
        index = scan(place / TREE_NAME, pulse=pulse)
        self._check_size(sum(entry.size for entry in index.entries.values()))
        self._layers.write_index(layer, index, place)
        self._force()

    # -- branches ---------------------------------------------------------------------------------------------

    def _branch(self, sealed: Sealed, owner: Owner) -> Branch:
        if not self._making.inputs or _made(sealed) == COPIED:
            return super()._branch(sealed, owner)
        layers = self._ledger.sealed(sealed).layers
        branch_id = self._ledger.new_id(f"{owner.env}-e{owner.epoch}")
        handle = Branch(
            journal=sealed.journal,
            resource=self.name,
            adapter=self.adapter,
            id=branch_id,
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
            data={"path": self._ledger.relative(self._trees().tree(branch_id))},
        )
        with failures_told(self.name, "opening a branch", env=owner.env):
            self._ledger.put_branch(BranchRecord(handle=handle, over=sealed, layers=layers, mark=_UNMADE))
        return handle

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address is the tree's absolute path; the tree is built first where there is none for these inputs.

        Bound again, a tree that was written to meanwhile is replaced by an untouched one.
        """
        if self._making.inputs:
            await in_thread(self._lay, branch, await self._wanted(branch, needs))
        return await super().bind(branch, identity, needs)

    async def _wanted(self, branch: Branch, needs: Needs) -> SealedRecord:
        """What the branch's tree is to be opened over."""
        record = await in_thread(self._ledger.branch, branch)
        over, key = record.over, self._key(needs)
        if _made(over) == COPIED or over.data.get("inputs") == key:
            return SealedRecord(handle=over, layers=record.layers)
        built = await self._built(key, {name: needs.bindings[name].address for name in self._making.inputs})
        return SealedRecord(handle=self._built_handle(key, branch.env), layers=built.layers)

    def _lay(self, branch: Branch, wanted: SealedRecord) -> None:
        """Open the branch's tree, unless it is open and untouched."""
        trees = self._trees()
        with failures_told(self.name, "opening a tree", env=branch.env):
            record = self._ledger.branch(branch)
            there = record.mark != _UNMADE and record.over == wanted.handle
            if there and (branch.id not in self._bound or trees.mark(record) == record.mark):
                self._bound.add(branch.id)
                return
            trees.close(branch.id)
            release_mounts(self._ledger.workplace(branch.id))
            remove_tree(self._ledger.workplace(branch.id))
            fresh = msgspec.structs.replace(
                record,
                over=wanted.handle,
                layers=wanted.layers,
                upper=trees.upper_for(branch.id),
                mark=_UNMADE,
            )
            with self._ledger.pinned(wanted.layers):
                self._ledger.put_branch(fresh)
                self._ledger.note_mark(branch, trees.open(fresh))
            self._bound.add(branch.id)
            self._ledger.collect([record.upper])

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """Refuse stragglers until thaw. Raises ResourceBusy, naming a writer."""
        if await in_thread(self._is_there, branch):
            await super().quiesce(branch)

    async def thaw(self, branch: Branch) -> None:
        """Undo quiesce."""
        if await in_thread(self._is_there, branch):
            await super().thaw(branch)

    async def write_mark(self, branch: Branch) -> str:
        """Made of what the kernel keeps of each file; one value until there is a tree."""
        return await super().write_mark(branch) if await in_thread(self._is_there, branch) else _UNMADE

    def _is_there(self, branch: Branch) -> bool:
        return self._ledger.branch(branch).mark != _UNMADE

    def _seal(self, record: BranchRecord) -> Sealed:
        """An untouched tree is what it was opened over. One that was written to is kept, or will be built again."""
        if record.mark == _UNMADE:
            return self._ledger.kept(record)
        kind = self._costs.choice(self._making.how)[0] if self._making.inputs else "copy"
        if kind == "rebuild" and self._trees().mark(record) != record.mark:
            return self._record_rebuild()
        began = perf_counter()
        sealed = super()._seal(record)
        if sealed != record.over:
            self._costs.note("copy", perf_counter() - began)
        return sealed

    def _drop_branch(self, branch: str) -> None:
        self._bound.discard(branch)
        super()._drop_branch(branch)

    # -- looking ----------------------------------------------------------------------------------------------

    async def probe(self, binding: Binding) -> None:
        """List the directory, as a user would."""
        record = await in_thread(self._ledger.find_branch, binding.branch)
        if record is not None and record.mark == _UNMADE:
            raise NotReady(f"{self.name}: the tree of {binding.identity} is not built", resource=self.name)
        await super().probe(binding)

    def _pack(self, sealed: Sealed, directory: Path) -> None:
        if _made(sealed) != REBUILD:  # what says *to be built* is said by the contract, too
            super()._pack(sealed, directory)

    def _unpack(self, directory: Path) -> Sealed:
        if any(directory.iterdir()) or not self._making.inputs:
            return super()._unpack(directory)
        return self._provision()

    def _content_digest(self, record: SealedRecord) -> str:
        if _made(record.handle) == REBUILD:
            return hashlib.sha256(f"{REBUILD} {self._making.recipe()}".encode()).hexdigest()
        return super()._content_digest(record)

    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """Files, links and directories; of what is not kept, no more than that."""
        kinds = _made(before.handle), _made(after.handle)
        if REBUILD not in kinds:
            yield from super()._changes(before, after)
        elif before.handle != after.handle:
            yield Change(kind="changed", name=".", before=kinds[0], after=kinds[1])

    def _usage(self, handle: Sealed | Branch) -> Usage:
        """Nothing for what is not kept, or not built yet."""
        if isinstance(handle, Sealed):
            empty = not self._ledger.sealed(handle).layers
        else:
            empty = self._ledger.branch(handle).mark == _UNMADE
        return Usage(private_bytes=0) if empty else super()._usage(handle)
