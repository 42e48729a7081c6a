"""A house for engine tests: one contract, one journal and one world, which outlive the engines opened on them.

Every engine that closes in good order is checked from outside: the audit is clean, the fold equals the live state, and
nothing exists in the world that the journal does not reach.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import sniffio

from statefork.adapters.resources.memory import Call, MemoryResource, MemoryWorld, Options
from statefork.engine.contract import Contract, parse_contract
from statefork.engine.kernel import ActResult, DrainPolicy, Kernel, Settings, open_kernel
from statefork.engine.lifecycle import Tell, nobody_listens
from statefork.engine.ports import AdmissionRequest, Clock
from statefork.engine.settings import SystemClock
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.events import Event
from statefork.journal.log import Journal, Recorded
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.values import Json
from statefork.replay.audit import audit_recorded
from statefork.replay.rebuild import differences, rebuild

CONTRACT = """
[contract]
name = "notes"

[resources.db]
adapter = "memory"
initial = { greeting = "hello" }

[resources.media]
adapter = "memory"

[resources.app]
adapter = "memory"
durability = "derived"
depends_on = ["db", "media"]

[resources.page]
adapter = "memory"
depends_on = ["app"]
visits = "visits"
"""
"""Two stores, a server over them, and a page that writes into the stores whenever it is loaded."""

SMALL = """
[contract]
name = "notes"

[resources.db]
adapter = "memory"
initial = { greeting = "hello" }

[resources.app]
adapter = "memory"
durability = "derived"
depends_on = ["db"]

[resources.page]
adapter = "memory"
depends_on = ["app"]
visits = "visits"
"""
"""The same with one store: for tests that go through every moment of an operation."""

STORES = ("db", "media")
QUICK = DrainPolicy(deadline_s=0.05, then="abort", join_s=0.05)
REVOKE = DrainPolicy(deadline_s=0.05, then="revoke", join_s=0.05)
SETTINGS = Settings(drain_at_end=REVOKE, staging_requests_s=0.05, discard_s=5.0, settle_s=0.05)

Hook = Callable[[], Awaitable[None]]
Meddle = Callable[[Call], Awaitable[None]]


class House:
    """Opens engines. ``path`` None: the journal is in memory; otherwise it is a SQLite file."""

    def __init__(self, path: Path | None = None, *, contract: str = CONTRACT) -> None:
        self.contract: Contract = parse_contract(contract, "notes.toml")
        self.world = MemoryWorld()
        self.disk = MemoryDisk()
        self.path = path
        self.journal: Journal | None = None

    def _journal(self, before: Hook | None, after: Hook | None) -> AbstractAsyncContextManager[Journal]:
        if self.path is None:
            return open_memory_journal(self.disk, before_commit=before, after_commit=after)
        return open_sqlite_journal(self.path)

    @asynccontextmanager
    async def open(
        self,
        *,
        settings: Settings = SETTINGS,
        before_commit: Hook | None = None,
        after_commit: Hook | None = None,
        hook: Meddle | None = None,
        clock: Clock | None = None,
        keep: Hook | None = None,
        tell: Tell = nobody_listens,
        check: bool = True,
        audited: bool = True,
    ) -> AsyncIterator[Kernel]:
        """An engine; when its body ends well, it is closed and everything is checked.

        ``audited`` False: but for the audit, where the next engine's check reads the whole of this journal, too.
        """
        self.world.hook = hook
        async with self._journal(before_commit, after_commit) as journal:
            self.journal = journal
            async with open_kernel(
                journal=journal,
                contract=self.contract,
                resources={name: self.resource(name, journal.id) for name in self.contract.order},
                blobs=MemoryBlobs(),
                settings=settings,
                clock=clock or SystemClock(),
                keep=keep,
                tell=tell,
            ) as kernel:
                yield kernel
            self.world.hook = None
            if check:
                await self.check(kernel, audited=audited)

    def resource(self, name: str, journal: str) -> MemoryResource:
        return MemoryResource(name, self.contract.convert(name, Options), self.world, journal)

    async def recorded(self) -> list[Recorded]:
        assert self.journal is not None
        await self.journal.flush()
        return [recorded async for recorded in self.journal.read()]

    async def events(self, kind: type[Event] | None = None) -> list[Event]:
        """What was journaled, of one kind if that is named."""
        return [one.event for one in await self.recorded() if kind is None or isinstance(one.event, kind)]

    async def check(self, kernel: Kernel, *, audited: bool = True) -> None:
        """The rules, looked at from outside."""
        assert self.journal is not None
        if audited:
            report = audit_recorded(await self.recorded())
            assert report.clean, report
        assert differences(kernel.world, await rebuild(self.journal)) == ()
        assert self.unreached(kernel) == []

    def unreached(self, kernel: Kernel) -> list[str]:
        """What exists in the world and neither the journal nor a serving environment knows."""
        known = {branch.id for env in kernel.environments for branch in kernel.branches(env).values()}
        versions = {version for _, version in kernel.world.reachable()}
        return [
            *(name for name in self.world.branches if name not in known),
            *(name for name, _ in self.world.bindings if name not in known),
            *(name for name in self.world.versions if name not in versions),
        ]

    def content(self, kernel: Kernel, env: str, resource: str = "db") -> dict[str, Json]:
        """What a raw client reads from a serving environment's store."""
        return self.world.read(kernel.branches(env)[resource].id)

    def sealed(self, kernel: Kernel, env: str, generation: int, resource: str = "db") -> dict[str, Json]:
        """What a raw client reads from a published version."""
        component = kernel.environments[env].generations[generation].manifest[resource]
        return dict(self.world.contents[component.sealed.version])


def chosen(among: Iterable[int], choice: int) -> int:
    """One of several, by a number that was drawn before anything was opened."""
    ordered = sorted(among)
    return ordered[choice % len(ordered)]


async def put(kernel: Kernel, env: str, key: str, value: Json, *, where: str = "db") -> ActResult:
    """An agent writes."""
    result = await kernel.act(env, {"type": "put", "in": where, "key": key, "value": value})
    assert result.outcome == "ok", result
    return result


def request(kernel: Kernel, env: str, url: str = "http://notes.example/", **more: object) -> AdmissionRequest:
    """A request through the door of the environment's present activation."""
    identity = next(iter(kernel.bindings(env).values())).identity
    fields = {"identity": identity, "env": env, "method": "GET", "url": url, "kind": "request"} | more
    return AdmissionRequest(**fields)  # type: ignore[arg-type]  # the fields that a test overrides are its own matter


async def until(condition: Callable[[], bool]) -> None:
    """Let the others run until something is so."""
    with anyio.fail_after(5):
        while not condition():
            await anyio.lowlevel.checkpoint()


def points() -> Iterator[int]:
    """The numbers of the moments to try: all on trio, every fifth on asyncio, which differs only below anyio."""
    return itertools.count(1, 1 if sniffio.current_async_library() == "trio" else 5)


class Later:
    """Work for a task of its own, outside any lease of the test: done when it is told to, and waited for."""

    def __init__(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        self._work = work
        self._args = args
        self._go = anyio.Event()
        self._done = anyio.Event()

    async def __call__(self) -> None:
        await self._go.wait()
        await self._work(*self._args)
        self._done.set()

    def go(self) -> None:
        self._go.set()

    async def done(self) -> None:
        with anyio.fail_after(5):
            await self._done.wait()


class Pause:
    """A hook that holds one call until it is told to go on; tests do what they want meanwhile."""

    def __init__(self, resource: str, method: str, when: str = "before") -> None:
        self._where = (resource, method, when)
        self.reached = anyio.Event()
        self.go_on = anyio.Event()

    async def __call__(self, call: Call) -> None:
        if (call.resource, call.method, call.when) == self._where and not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()
