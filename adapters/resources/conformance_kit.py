"""How the conformance suite makes, drives and touches the resource under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from statefork.engine.ports import Needs, Owner, Resource, Services
from statefork.journal.blobs import BlobStore
from statefork.journal.values import Binding, Branch, Handle, Identity, Sealed

JOURNAL = "journal-one"
OTHER_JOURNAL = "journal-two"


class Bench(msgspec.Struct, kw_only=True):
    """How the suite makes and touches the resource under test.

    ``make(services)`` gives a new resource object over the state directory of ``services``; two of them over one
    directory must see the same world. ``write`` and ``read`` reach a branch through its binding's address, as a user
    would, with no code of the adapter: ``write(binding, key, value)`` makes ``value`` the content of ``key``;
    ``read(binding, key)`` gives it back, None where there is none. Both are plain functions; they are called in a
    worker thread. So is ``settle(resource)``, which returns when nothing goes on in the background any more: the suite
    calls it before it counts what lies on the disk.
    """

    make: Callable[[Services], Resource]
    write: Callable[[Binding, str, str], None]
    read: Callable[[Binding, str], str | None]
    state: Path
    base_dir: Path
    settle: Callable[[Any], None] = lambda _: None

    def services(self, journal: str = JOURNAL) -> Services:
        """What the resource is given."""
        self.state.mkdir(parents=True, exist_ok=True)
        return Services(
            state=self.state, journal=journal, blobs=BlobStore(self.state / "blobs"), base_dir=self.base_dir
        )


class Driver:
    """Drives one resource as the engine does, in the order that the ports promise."""

    def __init__(self, bench: Bench, journal: str = JOURNAL) -> None:
        self.bench = bench
        self.resource = bench.make(bench.services(journal))
        self._activation = 0

    async def base(self) -> Sealed:
        """Start and provision."""
        await self.resource.start()
        return await self.resource.provision()

    async def open(self, sealed: Sealed, env: str = "one", epoch: int = 1) -> tuple[Branch, Binding]:
        """A branch, bound and probed."""
        branch = await self.resource.branch(sealed, Owner(env=env, epoch=epoch))
        return branch, await self.bind(branch)

    async def bind(self, branch: Branch) -> Binding:
        """A binding of the branch, probed."""
        self._activation += 1
        identity = Identity(env=branch.env, epoch=branch.epoch, activation=self._activation)
        binding = await self.resource.bind(branch, identity, Needs())
        await self.resource.probe(binding)
        return binding

    async def write(self, binding: Binding, key: str, value: str) -> None:
        """Through the user's door."""
        await anyio.to_thread.run_sync(self.bench.write, binding, key, value)

    async def settle(self) -> None:
        """Nothing goes on in the background."""
        await anyio.to_thread.run_sync(self.bench.settle, self.resource)

    async def read(self, binding: Binding, key: str) -> str | None:
        """Through the user's door."""
        return await anyio.to_thread.run_sync(self.bench.read, binding, key)

    async def cut(self, branch: Branch) -> Sealed:
        """What a continuing snapshot does to a store; the marks on both sides of the seal must be equal."""
        resource = self.resource
        await resource.quiesce(branch)
        try:
            before = await resource.write_mark(branch)
            sealed = await resource.seal(branch)
            assert await resource.write_mark(branch) == before, "sealing changed the write mark"
        finally:
            await resource.thaw(branch)
        return sealed

    async def seen(self, sealed: Sealed, key: str) -> str | None:
        """What a version holds, read through a branch of its own."""
        branch, binding = await self.open(sealed, env="reader")
        try:
            return await self.read(binding, key)
        finally:
            await self.close(branch, binding)

    async def close(self, branch: Branch, binding: Binding) -> None:
        """Park."""
        await self.resource.unbind(binding)
        await self.resource.discard(branch)

    async def handles(self) -> list[Handle]:
        """The versions and branches of the inventory, sorted; a resource may report bindings too."""
        found = [handle async for handle in self.resource.inventory()]
        return sorted([handle for handle in found if not isinstance(handle, Binding)], key=repr)

    async def changes(self, before: Sealed, after: Sealed) -> list[str]:
        """``kind name`` of every difference."""
        return [f"{change.kind} {change.name}" async for change in self.resource.diff(before, after)]
