"""A world that lies: calls fail, stall, succeed and report failure; inventories are wrong; a journal can't be read.

What exists is in a :class:`LyingWorld`, which outlives the engines that are opened on it, as files and a disk would.
The resources hold real mutable state; every write passes through ``write``, which tells the truth of it at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint

from statefork.adapters.resources.memory import MemoryResource, MemoryWorld, Options
from statefork.engine.ports import Needs
from statefork.journal.codec import Codec
from statefork.journal.events import Event, TransitionAborted
from statefork.journal.log import Recorded
from statefork.journal.memory import MemoryDisk, MemoryJournal
from statefork.journal.values import Binding, Branch, Handle, Identity, Json, Observation, Sealed

STUBBORN = "stubborn"
"""The key of an action that takes no notice of its being cancelled, as one in a thread would."""

NEIGHBOUR = "neighbour"
"""The id of another journal, whose things lie in the same world and must be left alone."""


@dataclass
class LyingWorld(MemoryWorld):
    """All that exists, the disk included."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    identities: dict[str, Identity] = field(default_factory=dict)  # branch -> for whom it was bound last
    newest: dict[tuple[str, Identity], str] = field(default_factory=dict)  # (resource, identity) -> its present branch
    dead: set[tuple[str, Identity]] = field(default_factory=set)  # bindings that will never answer again
    on_write: Callable[[str, str, Json], None] | None = None

    def write(self, branch: str, key: str, value: Json) -> None:
        """What a raw client does, and an instant later it is known."""
        super().write(branch, key, value)
        if self.on_write is not None:
            self.on_write(branch, key, value)

    def neighbours(self, resources: tuple[str, ...]) -> dict[str, Sealed]:
        """Things of another journal, by version; made at the first call."""
        found = {
            f"{name}-neighbour": Sealed(journal=NEIGHBOUR, resource=name, adapter="memory", version=f"{name}-neighbour")
            for name in resources
        }
        for version, sealed in found.items():
            self.versions.setdefault(version, sealed)
            self.contents.setdefault(version, {"of": NEIGHBOUR})
        return found


class Liar(Protocol):
    """Who decides what goes wrong."""

    def lies(self) -> str:
        """What the next inventory does: nothing (empty), omit, repeat, invent or mistake."""
        ...

    def discarding(self, handle: Handle) -> None:
        """Something is about to be discarded."""
        ...

    def acting(self, identity: Identity, what: str, *, joinable: bool) -> AbstractContextManager[None]:
        """Around an action."""
        ...

    def seconds(self, most: float) -> float:
        """How long something takes."""
        ...

    def alive(self) -> None:
        """Raise unless the process lives that the engine runs in."""
        ...


class LyingResource(MemoryResource):
    """A resource of the ``memory`` adapter that lies as its liar tells. Mortal: its bindings may die."""

    world: LyingWorld

    def __init__(self, name: str, options: Options, world: LyingWorld, journal: str, liar: Liar) -> None:
        super().__init__(name, options, world, journal)
        self._liar = liar
        self._id = journal

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """As it should, and known."""
        self.world.identities[branch.id] = identity
        self.world.newest[self.name, identity] = branch.id
        return await super().bind(branch, identity, needs)

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """As it should, and known to the truth while it runs."""
        stubborn = action["key"] == STUBBORN
        with self._liar.acting(binding.identity, str(action["key"]), joinable=not stubborn):
            if not stubborn:
                return await super().act(binding, action)
            seen: list[Observation] = []
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self._liar.seconds(15))
                seen.append(await super().act(binding, action))
            return seen[0]

    async def seal(self, branch: Branch) -> Sealed:
        """Key by key, with time between them: who writes meanwhile tears it."""
        namespace = self._namespace(branch)
        if namespace.sealed in self.world.versions:
            return await super().seal(branch)
        async with self._call("seal", branch.env):
            taken: dict[str, Json] = {}
            for key in sorted(namespace.content):
                taken[key] = namespace.content.get(key)
                await anyio.sleep(self._liar.seconds(0.01))
            self._liar.alive()
            namespace.sealed = f"{self.name}-v{self.world.number()}"
            return self._keep(namespace.sealed, taken)

    async def discard(self, handle: Handle) -> None:
        """As it should, and looked at before."""
        self._liar.discarding(handle)
        await super().discard(handle)

    async def inventory(self) -> AsyncIterator[Handle]:
        """What exists, and what the liar makes of it."""
        found = [handle async for handle in super().inventory()]
        match self._liar.lies():
            case "omit":
                found = found[::2]
            case "repeat":
                found = [*found, *found]
            case "invent":
                found.append(self._nothing("never-made"))
            case "mistake":
                found += [one for one in self.world.versions.values() if one.journal == NEIGHBOUR]
        for handle in found:
            yield handle

    def _nothing(self, name: str) -> Sealed:
        return Sealed(journal=self._id, resource=self.name, adapter=self.adapter, version=name)

    def died(self, binding: Binding) -> str:
        """Why the binding will never answer again."""
        return "it was killed" if (binding.branch, binding.identity) in self.world.dead else ""


class LyingJournal:
    """A journal in memory that can't always be read, and tells at once what rides. All else is the journal's own."""

    def __init__(
        self, journal: MemoryJournal, *, fails: Callable[[], None], rides: Callable[[TransitionAborted], None]
    ) -> None:
        self._journal = journal
        self._fails = fails
        self._rides = rides

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def ride(self, stream: str, *events: Event) -> None:
        """As the journal does it."""
        self._journal.ride(stream, *events)
        for event in events:
            if isinstance(event, TransitionAborted):
                self._rides(event)

    async def read(
        self, *, after: int = 0, stream: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Recorded]:
        """As the journal does it (but faster: the audit looks at the chain), unless it can't be read now."""
        self._fails()
        codec, left = Codec(), limit if limit is not None else -1
        while left and (row := self._journal.row_after(after, stream)) is not None:
            after, left = row.position, left - 1
            event = codec.decode(row.event, position=row.position)
            yield Recorded(position=row.position, stream=row.stream, version=row.version, event=event, hash=row.hash)
        await checkpoint()
