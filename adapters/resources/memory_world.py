"""What exists in the world of the ``memory`` adapter, and how tests steer it."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import anyio
import msgspec

from statefork.journal.values import Binding, Branch, Identity, Json, Sealed


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One moment in one call of a resource's method."""

    resource: str
    method: str
    when: str  # before | after
    env: str = ""  # of the branch; empty where there is none


Hook = Callable[[Call], Awaitable[None]]


@dataclass(kw_only=True)
class Namespace:
    """One writable branch."""

    handle: Branch
    content: dict[str, Json]
    writes: int = 0
    sealed: str = ""  # the version that equals the present content
    quiesced: bool = False
    background: set[str] = field(default_factory=set)


@dataclass
class MemoryWorld:
    """All that exists, for any number of resources and engines."""

    branches: dict[str, Namespace] = field(default_factory=dict)
    versions: dict[str, Sealed] = field(default_factory=dict)
    contents: dict[str, dict[str, Json]] = field(default_factory=dict)  # by version
    bindings: dict[tuple[str, Identity], Binding] = field(default_factory=dict)
    unjoinable: set[str] = field(default_factory=set)  # background work that `terminate` can't end
    hook: Hook | None = None
    made: int = 0
    _signals: dict[str, anyio.Event] = field(default_factory=dict)
    _finished: anyio.Event | None = None

    def survivors(self) -> MemoryWorld:
        """What a crash of the engine leaves at this moment: a copy, without the hook and without those who wait."""
        return MemoryWorld(
            branches={
                name: replace(one, content=copy.deepcopy(one.content), background=set(one.background))
                for name, one in self.branches.items()
            },
            versions=dict(self.versions),
            contents=dict(self.contents),  # nobody writes into a version
            bindings=dict(self.bindings),
            made=self.made,
        )

    def number(self) -> int:
        """A number that was never given before in this world."""
        self.made += 1
        return self.made

    def write(self, branch: str, key: str, value: Json) -> None:
        """What a raw client does: no engine is asked."""
        namespace = self.branches[branch]
        namespace.content[key] = value
        namespace.writes += 1
        namespace.sealed = ""

    def read(self, branch: str) -> dict[str, Json]:
        """What a raw client sees."""
        return dict(self.branches[branch].content)

    def signal(self, key: str) -> None:
        """Let those go on who ``wait`` for this key, now or later."""
        self._signals.setdefault(key, anyio.Event()).set()

    async def signalled(self, key: str) -> None:
        """Return when ``signal`` was called with this key."""
        await self._signals.setdefault(key, anyio.Event()).wait()

    def finish(self, work: str) -> None:
        """End background work of this name, wherever it runs."""
        for namespace in self.branches.values():
            namespace.background.discard(work)
        if self._finished is not None:
            self._finished.set()
            self._finished = None

    async def finished(self) -> None:
        """Return at the next ``finish``."""
        if self._finished is None:
            self._finished = anyio.Event()
        await self._finished.wait()
