"""Key/value namespaces in memory: a verified fake, for tests, simulations and first steps.

It passes the conformance suite of resources like the real ones. What exists in the world is in a :class:`MemoryWorld`
outside the engine, and so survives a simulated crash, as files would. Tests steer it by ``world.hook``, which is
awaited before and after every call and may fail (raise), stall (wait) or meddle (write); and they read and write
contents directly, as raw clients of a real store would.

Actions: ``{"type": "put", "key": …, "value": …}``, ``get``, ``delete``, ``add`` (``key``, ``amount``), ``fail`` (the
world says no), ``wait`` (for ``world.signal(key)``), ``leave`` (work called ``key`` goes on in the background until
``world.finish(key)``); ``"in"`` names the resource where a contract has several.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from anyio.lowlevel import checkpoint

from statefork.adapters.resources.memory_world import Call, Hook, MemoryWorld, Namespace
from statefork.engine.errors import ActionFailed, ForeignHandle, InvalidAction, NotReady, ResourceFailed
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Handle, Identity, Json, Observation, Sealed

__all__ = ["ADAPTER", "Call", "Hook", "MemoryResource", "MemoryWorld", "Options", "make"]

ADAPTER = "memory"
_PACKED = "content.json"

_FIELDS: Mapping[str, frozenset[str]] = {
    "put": frozenset({"key", "value"}),
    "get": frozenset({"key"}),
    "delete": frozenset({"key"}),
    "add": frozenset({"key", "amount"}),
    "fail": frozenset({"key"}),
    "wait": frozenset({"key"}),
    "leave": frozenset({"key"}),
}


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``initial``: the base. ``visits``: binding adds one to this key of every store behind what it depends on, as a
    reloaded page does to the view counter of its application. ``slot``: the kind of slot that a binding takes."""

    initial: dict[str, Json] = msgspec.field(default_factory=dict)
    visits: str = ""
    slot: str = ""


class MemoryResource:
    """One contract entry over a world. Implements Resource, Portable, Drainable and Actor."""

    adapter = ADAPTER

    def __init__(self, name: str, options: Options, world: MemoryWorld, journal: str) -> None:
        self.name = name
        self.world = world
        self.slot = options.slot
        self._options = options
        self._journal = journal

    @asynccontextmanager
    async def _call(self, method: str, env: str = "") -> AsyncIterator[None]:
        await checkpoint()
        if self.world.hook is not None:
            await self.world.hook(Call(resource=self.name, method=method, when="before", env=env))
        yield
        if self.world.hook is not None:
            await self.world.hook(Call(resource=self.name, method=method, when="after", env=env))
        await checkpoint()

    def _own(self, handle: Handle) -> None:
        if handle.journal != self._journal or handle.resource != self.name:
            raise ForeignHandle(
                f"{self.name} was given a handle of {handle.resource} in journal {handle.journal}",
                resource=self.name,
                journal=handle.journal,
            )

    def _namespace(self, branch: Branch | str) -> Namespace:
        if isinstance(branch, Branch):
            self._own(branch)
            branch = branch.id
        found = self.world.branches.get(branch)
        if found is None:
            raise ResourceFailed(f"{self.name} has no branch {branch}", resource=self.name, branch=branch)
        return found

    def strategy(self) -> Strategy:
        """Plain copies: nothing here is big."""
        return Strategy(name="copy", reason="the content is a dictionary in memory")

    async def start(self) -> None:
        """There is no runtime."""
        async with self._call("start"):
            pass

    async def stop(self) -> None:
        """There is no runtime."""
        async with self._call("stop"):
            pass

    async def provision(self) -> Sealed:
        """The initial content; its version is named by the journal and the content."""
        async with self._call("provision"):
            version = f"{self.name}-base-{_digest({self._journal: self._options.initial})[:16]}"
            return self._keep(version, self._options.initial)

    def _keep(self, version: str, content: Mapping[str, Json]) -> Sealed:
        if version not in self.world.versions:
            self.world.versions[version] = Sealed(
                journal=self._journal, resource=self.name, adapter=self.adapter, version=version
            )
            self.world.contents[version] = copy.deepcopy(dict(content))
        return self.world.versions[version]

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A private copy. Raises ResourceFailed where the version is gone."""
        self._own(sealed)
        async with self._call("branch", owner.env):
            content = self._content(sealed)
            handle = Branch(
                journal=self._journal,
                resource=self.name,
                adapter=self.adapter,
                id=f"{self.name}-b{self.world.number()}",
                env=owner.env,
                epoch=owner.epoch,
                base=sealed.version,
            )
            self.world.branches[handle.id] = Namespace(
                handle=handle, content=copy.deepcopy(content), sealed=sealed.version
            )
        return handle

    def _content(self, sealed: Sealed) -> dict[str, Json]:
        self._own(sealed)
        if sealed.version not in self.world.contents:
            raise ResourceFailed(
                f"{self.name} has no version {sealed.version}", resource=self.name, version=sealed.version
            )
        return self.world.contents[sealed.version]

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address names the branch, and the branches of the stores behind it (itself, where it needs nothing)."""
        async with self._call("bind", branch.env):
            self._namespace(branch)
            stores: dict[str, Json] = {}
            for needed in needs.bindings.values():
                reached = needed.address["stores"]
                assert isinstance(reached, dict)
                stores |= reached
            binding = Binding(
                journal=self._journal,
                resource=self.name,
                adapter=self.adapter,
                branch=branch.id,
                identity=identity,
                address={"namespace": branch.id, "stores": stores or {self.name: branch.id}},
            )
            self.world.bindings[branch.id, identity] = binding
            for store in stores.values() if self._options.visits else ():
                visits = self.world.branches[str(store)].content.get(self._options.visits, 0)
                self.world.write(str(store), self._options.visits, visits + 1 if isinstance(visits, int) else 1)
        return binding

    async def probe(self, binding: Binding) -> None:
        """Raises NotReady unless the binding is the present one and its branch exists."""
        self._own(binding)
        async with self._call("probe", binding.identity.env):
            if self.world.bindings.get((binding.branch, binding.identity)) != binding:
                raise NotReady(f"{self.name} is not bound for {binding.identity}", resource=self.name)
            self._namespace(binding.branch)

    async def quiesce(self, branch: Branch) -> None:
        """Actions are refused until ``thaw``."""
        async with self._call("quiesce", branch.env):
            self._namespace(branch).quiesced = True

    async def thaw(self, branch: Branch) -> None:
        """Actions are accepted again."""
        async with self._call("thaw", branch.env):
            self._namespace(branch).quiesced = False

    async def write_mark(self, branch: Branch) -> str:
        """The number of writes."""
        async with self._call("write_mark", branch.env):
            return str(self._namespace(branch).writes)

    async def seal(self, branch: Branch) -> Sealed:
        """Keep the content as a version."""
        async with self._call("seal", branch.env):
            namespace = self._namespace(branch)
            if namespace.sealed not in self.world.versions:  # written since, or what was sealed has been discarded
                namespace.sealed = f"{self.name}-v{self.world.number()}"
            return self._keep(namespace.sealed, namespace.content)

    async def unbind(self, binding: Binding) -> None:
        """Forget the binding."""
        self._own(binding)
        async with self._call("unbind", binding.identity.env):
            self.world.bindings.pop((binding.branch, binding.identity), None)

    async def discard(self, handle: Handle) -> None:
        """Forget whatever it names. Nothing here is built on anything else."""
        self._own(handle)
        async with self._call("discard", handle.env if isinstance(handle, Branch) else ""):
            match handle:
                case Sealed():
                    self.world.versions.pop(handle.version, None)
                    self.world.contents.pop(handle.version, None)
                case Branch():
                    self.world.branches.pop(handle.id, None)
                case Binding():
                    self.world.bindings.pop((handle.branch, handle.identity), None)

    async def inventory(self) -> AsyncIterator[Handle]:
        """Bindings, branches and versions of this journal and resource."""
        async with self._call("inventory"):
            found: list[Handle] = [
                *self.world.bindings.values(),
                *(namespace.handle for namespace in self.world.branches.values()),
                *self.world.versions.values(),
            ]
        for handle in found:
            if handle.journal == self._journal and handle.resource == self.name:
                yield handle

    async def digest(self, sealed: Sealed) -> str:
        """SHA-256 of the content as JSON with sorted keys."""
        async with self._call("digest"):
            return _digest(self._content(sealed))

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """The content as JSON."""
        async with self._call("pack"):
            (directory / _PACKED).write_bytes(msgspec.json.encode(self._content(sealed), order="sorted"))

    async def unpack(self, directory: Path) -> Sealed:
        """A version of its own. Raises ResourceFailed."""
        async with self._call("unpack"):
            try:
                content = msgspec.json.decode((directory / _PACKED).read_bytes(), type=dict[str, Json])
            except (OSError, ValueError) as error:
                raise ResourceFailed(f"{self.name} can't be unpacked: {error}", resource=self.name) from error
            return self._keep(f"{self.name}-v{self.world.number()}", content)

    async def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        """Keys that were added, removed or changed."""
        async with self._call("diff"):
            old, new = self._content(before), self._content(after)
        for key in sorted(old.keys() | new.keys()):
            if key not in old:
                yield Change(kind="added", name=key, after=new[key])
            elif key not in new:
                yield Change(kind="removed", name=key, before=old[key])
            elif old[key] != new[key]:
                yield Change(kind="changed", name=key, before=old[key], after=new[key])

    async def usage(self, handle: Handle) -> Usage:
        """The length of the content as JSON, in bytes."""
        self._own(handle)
        async with self._call("usage"):
            match handle:
                case Sealed():
                    content = self.world.contents.get(handle.version, {})
                case Branch():
                    content = self._namespace(handle).content
                case Binding():
                    return Usage(private_bytes=0)
            return Usage(private_bytes=len(msgspec.json.encode(content)))

    # --- Drainable --------------------------------------------------------------------------------------------------

    async def pending(self, branch: Branch) -> tuple[str, ...]:
        """The names of what was left in the background."""
        async with self._call("pending", branch.env):
            return tuple(sorted(self._namespace(branch).background))

    async def drained(self, branch: Branch) -> None:
        """Return when nothing is left in the background."""
        async with self._call("drained", branch.env):
            while self._namespace(branch).background:
                await self.world.finished()

    async def terminate(self, branch: Branch) -> tuple[str, ...]:
        """End what can be ended."""
        async with self._call("terminate", branch.env):
            namespace = self._namespace(branch)
            namespace.background &= self.world.unjoinable
            return tuple(sorted(namespace.background))

    # --- Actor ------------------------------------------------------------------------------------------------------

    def check(self, action: Mapping[str, Json]) -> None:
        """Raises InvalidAction, naming the field."""
        fields = _FIELDS.get(str(action.get("type")))
        if fields is None:
            raise InvalidAction.unknown(action.get("type"), tuple(_FIELDS))
        if action.get("in", self.name) != self.name:
            raise InvalidAction(f"in: there is no resource {action.get('in')!r} to act on", field="in")
        for name in sorted((action.keys() - {"type", "in"}) ^ fields):
            raise InvalidAction(f"{name}: {action['type']} takes {', '.join(sorted(fields))}", field=name)

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """Carry out one action. Raises ActionFailed for ``fail``, and ResourceFailed on a quiesced branch."""
        self._own(binding)
        self.check(action)
        async with self._call("act", binding.identity.env):
            namespace = self._namespace(binding.branch)
            if namespace.quiesced:
                raise ResourceFailed(f"{self.name} is quiesced", resource=self.name)
            key = str(action["key"])
            match action["type"]:
                case "put":
                    self.world.write(binding.branch, key, action["value"])
                case "add":
                    before, amount = namespace.content.get(key, 0), action["amount"]
                    if not isinstance(before, int) or not isinstance(amount, int):
                        raise ActionFailed(f"{key} or the amount is no whole number", key=key)
                    self.world.write(binding.branch, key, before + amount)
                case "delete":
                    self.world.write(binding.branch, key, None)
                    del namespace.content[key]
                case "fail":
                    raise ActionFailed(f"the world says no to {key}", key=key)
                case "wait":
                    await self.world.signalled(key)
                case "leave":
                    namespace.background.add(key)
        return self._see(binding, namespace.content.get(key))

    async def observe(self, binding: Binding) -> Observation:
        """The digest of the content, and the content itself."""
        self._own(binding)
        async with self._call("observe", binding.identity.env):
            return self._see(binding, dict(self._namespace(binding.branch).content))

    def _see(self, binding: Binding, value: Json) -> Observation:
        return Observation(digest=_digest(self._namespace(binding.branch).content), value=copy.deepcopy(value))

    @asynccontextmanager
    async def raw(self, binding: Binding) -> AsyncIterator[dict[str, Json]]:
        """The content itself."""
        self._own(binding)
        async with self._call("raw", binding.identity.env):
            namespace = self._namespace(binding.branch)
            before = copy.deepcopy(namespace.content)
        try:
            yield namespace.content
        finally:
            if namespace.content != before:
                namespace.writes += 1
                namespace.sealed = ""


def _digest(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def make(name: str, options: Options, services: Services) -> MemoryResource:
    """A resource over a world of its own, which ends with the process.

    Its numbers begin anywhere: a journal that lives on has names of worlds before, and none may come again.
    """
    return MemoryResource(name, options, MemoryWorld(made=secrets.randbits(32)), services.journal)
