"""The browser resource (see engine.ports.Resource and Actor): profiles as sealed versions, contexts as their bindings.

A version is a file (:mod:`files`). A branch is a promise: its content lives in the context that ``bind`` makes of it.
An unbound branch has the content of its last seal, or of the version that it was opened over.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from anyio import CancelScope, to_thread
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.actions import parse_action
from statefork.adapters.resources.browser.apart import ComparedProfiles
from statefork.adapters.resources.browser.bridge import AsyncioThread
from statefork.adapters.resources.browser.carrying import CarriedProfiles
from statefork.adapters.resources.browser.chromium import find_chromium, is_headless_shell
from statefork.adapters.resources.browser.files import ProfileFiles
from statefork.adapters.resources.browser.host import BrowserHost
from statefork.adapters.resources.browser.observed import observed
from statefork.adapters.resources.browser.options import Options, context_options, routes_of, routes_outside
from statefork.adapters.resources.browser.perform import Look
from statefork.adapters.resources.browser.raw import Loan, Proxy
from statefork.adapters.resources.browser.ready import Ready, open_door
from statefork.adapters.resources.browser.session import DIED, Session
from statefork.adapters.resources.browser.state import Profile, Stored, changes, digest_of, told_while_restoring
from statefork.engine.errors import ForeignHandle, MissingDependency, NotReady, ResourceFailed, RuntimeDied
from statefork.engine.ports import Change, Needs, Owner, Route, Services, Strategy, Usage
from statefork.engine.runtimes import marks
from statefork.journal.values import Binding, Branch, Conditions, Handle, Identity, Json, Observation, Sealed

T = TypeVar("T")


SCRATCH_PATH_MAX = 60


class _Open(msgspec.Struct, kw_only=True):
    """A branch of this process."""

    branch: Branch
    current: str  # the version whose content the branch had when it was last bound or sealed
    digest: str  # of that content
    binding: Binding | None = None
    routes: tuple[Route, ...] = ()
    session: Session | None = None
    ready: Ready | None = None  # what the session will be made of
    door: Any = None  # engine.ports.Listener


class BrowserResource(CarriedProfiles, ComparedProfiles):
    """One Chromium for all environments."""

    adapter = "browser"
    slot = "browser"

    def __init__(self, name: str, options: Options, services: Services) -> None:
        self.name = name
        self.options = options
        self._services = services
        self._files = ProfileFiles(services.state, services.journal, name, self.adapter)
        self._thread = AsyncioThread(f"statefork-{name}")
        self._host: BrowserHost | None = None
        self._open: dict[str, _Open] = {}
        self._binding = 0

    def strategy(self) -> Strategy:
        """Which Chromium is used."""
        try:
            executable = find_chromium(self.options.executable)
        except MissingDependency as missing:
            return Strategy(name="none", reason=missing.message, faster=missing.hint)
        if is_headless_shell(executable):
            return Strategy(name="headless shell", reason=f"one process for all environments: {executable}")
        return Strategy(
            name="full Chromium",
            reason=f"one process for all environments: {executable}",
            faster="the headless shell needs 43% less memory (apt-get install chromium-headless-shell)",
        )

    async def start(self) -> None:
        """Launch Chromium. Idempotent. Raises MissingDependency, RuntimeDied, ContractError (a wrong selector)."""
        if self._host is not None:
            return
        executable = find_chromium(self.options.executable)
        scratch: Path | None = self._services.state / "runtimes" / f"{self.name}.tmp"
        # Full Chromium makes a socket there, whose path may have 107 bytes; beyond that the system's folder has to do.
        if not is_headless_shell(executable) and len(str(scratch)) > SCRATCH_PATH_MAX:
            scratch = None
        host = BrowserHost(executable, scratch, lambda: self._thread.children, self._services.selectors)
        environment = marks(self._services.state, self._services.journal, self.name)
        if scratch is not None:
            environment["TMPDIR"] = str(scratch)
        await self._thread.start(environment)
        try:
            await self._thread.call(host.start)
        except BaseException:
            with CancelScope(shield=True):
                await self._thread.call(host.stop)
                await self._thread.stop()
            raise
        self._host = host

    async def stop(self) -> None:
        """Close every context, Chromium, the driver and the thread. Idempotent."""
        host, self._host = self._host, None
        if host is None:
            return
        with CancelScope(shield=True):
            for entry in self._open.values():
                await self._close(entry)
            await self._thread.call(host.stop)
            await self._thread.stop()

    @property
    def launches(self) -> int:
        """How often Chromium was launched: 1, and one more for each time it died."""
        return self._host.launches if self._host is not None else 0

    def process_ids(self) -> tuple[int, ...]:
        """The processes of the runtime, all environments together: Playwright's driver and Chromium's tree."""
        return self._host.process_ids() if self._host is not None else ()

    def _running(self) -> BrowserHost:
        if self._host is None:
            raise RuntimeDied(f"the browser of {self.name!r} is not running", resource=self.name)
        return self._host

    # -- versions ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """An empty profile that opens the start page when it is first bound."""
        return await to_thread.run_sync(self._files.provision, Profile(start=self.options.start))

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A continuation of a version. Raises ResourceFailed when its file is missing or damaged."""
        self._mine(sealed)
        stored = await to_thread.run_sync(self._files.read, sealed.version)
        branch = Branch(
            journal=self._services.journal,
            resource=self.name,
            adapter=self.adapter,
            id=f"{owner.env}-e{owner.epoch}-{secrets.token_hex(4)}",
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
        )
        self._open[branch.id] = _Open(branch=branch, current=sealed.version, digest=digest_of(stored.profile))
        return branch

    async def seal(self, branch: Branch) -> Sealed:
        """Put the context's content on disk; unchanged content is the version that it was. See ``write_mark``."""
        entry = self._entry(branch)
        session = entry.session
        if session is None:
            return self._files.handle(entry.current)
        stored = await self._thread.call(session.content)
        if not session.is_baseline(stored) or not self._files.path(entry.current).exists():
            sealed = await to_thread.run_sync(self._files.seal, stored)
            entry.current, entry.digest = sealed.version, session.rebase(stored)
        return self._files.handle(entry.current)

    async def write_mark(self, branch: Branch) -> str:
        """The digest of what is captured now: cookies, storage, tabs, views.

        Between ``quiesce`` and ``thaw`` the pages stand still, so only what can still change is looked at again: the
        cookies. A context that has not changed since it was bound has the mark of the version it was made from.
        """
        entry = self._entry(branch)
        session = entry.session
        if session is None:
            return entry.digest
        mark = await self._thread.call(session.mark)
        return entry.digest if mark == session.baseline else mark

    async def digest(self, sealed: Sealed) -> str:
        """SHA-256 of the content."""
        self._mine(sealed)
        return digest_of((await to_thread.run_sync(self._files.read, sealed.version)).profile)

    async def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        """Cookies, stored keys and records, tabs, form fields, scroll and focus that differ."""
        self._mine(before)
        self._mine(after)
        old = await to_thread.run_sync(self._files.read, before.version)
        new = await to_thread.run_sync(self._files.read, after.version)
        for change in changes(old.profile, new.profile):
            yield change

    async def flags(self, sealed: Sealed) -> tuple[str, ...]:
        """What the version could not carry, each as a line: kind, place, detail."""
        self._mine(sealed)
        stored = await to_thread.run_sync(self._files.read, sealed.version)
        return tuple(f"{flag.kind}: {flag.where} {flag.detail}".rstrip() for flag in stored.profile.flags)

    async def usage(self, handle: Handle) -> Usage:
        """Bytes on disk. A branch has none; what its context costs is memory of the shared processes."""
        self._mine(handle)
        if not isinstance(handle, Sealed):
            return Usage(private_bytes=0)
        path = self._files.path(handle.version)
        return Usage(private_bytes=path.stat().st_size if path.exists() else 0)

    async def inventory(self) -> AsyncIterator[Handle]:
        """Sealed files, and the branches of this process: a dead engine's contexts died with it."""
        for version in await to_thread.run_sync(lambda: list(self._files.versions())):
            yield self._files.handle(version)
        for entry in list(self._open.values()):
            yield entry.branch

    async def discard(self, handle: Handle) -> None:
        """Remove a version's file; close and forget a branch. Idempotent."""
        self._mine(handle)
        if isinstance(handle, Sealed):
            await to_thread.run_sync(self._files.remove, handle.version)
            return
        entry = self._open.get(handle.id if isinstance(handle, Branch) else handle.branch)
        if entry is not None:
            with CancelScope(shield=True):
                await self._close(entry)
            if isinstance(handle, Branch):
                self._open.pop(handle.id, None)

    # -- bindings ---------------------------------------------------------------------------------------------

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """A context with the branch's content, behind a proxy door of its own."""
        entry = self._entry(branch)
        routes = routes_of(needs) + routes_outside(self.options)
        if entry.binding is not None:
            same = entry.binding.identity == identity and entry.routes == routes
            if same and entry.session is not None and not entry.session.live.broken:
                return entry.binding
            with CancelScope(shield=True):
                await self._close(entry)
        stored = await to_thread.run_sync(self._files.read, entry.current)
        self._binding += 1
        try:
            await self._thread.call(self._take, entry)
            entry.door = await open_door(self._services.gateway, entry.ready, identity, routes)
            if entry.door is not None and self._services.determinism != "off":
                entry.door.conditions = told_while_restoring(stored.profile)
            await self._thread.call(self._make, entry, stored, needs.conditions)
        except BaseException:
            with CancelScope(shield=True):
                await self._close(entry)
            raise
        finally:
            self._binding -= 1
        if entry.door is not None:
            entry.door.conditions = ""
        entry.routes = routes
        entry.binding = Binding(
            journal=self._services.journal,
            resource=self.name,
            adapter=self.adapter,
            branch=branch.id,
            identity=identity,
            address={"port": entry.door.port if entry.door is not None else 0},
        )
        return entry.binding

    async def _take(self, entry: _Open) -> None:
        entry.ready = await self._running().reserve.take(self.options, self._services.gateway)

    async def _make(self, entry: _Open, stored: Stored, conditions: Conditions | None) -> None:
        """On the thread: the context, noted in the entry before anything can fail, and its content."""
        options = context_options(self.options, entry.door.port if entry.door is not None else 0)
        host, ready = self._running(), entry.ready.live if entry.ready is not None else None
        entry.session = await Session.make(self.name, host, self._services.determinism, ready, **options)
        entry.ready = None
        entry.session.live.selectors = tuple(selector.text for selector in self._services.selectors)
        await entry.session.fill(stored, conditions)
        if self._binding == 1:  # nobody else waits for the processor
            host.reserve.refill(self.options, self._services.gateway)

    async def differences(self, binding: Binding) -> tuple[str, ...]:
        """In what the restored context differs from the version that it was made from; empty: in nothing seen."""
        return self._session(self._bound(binding)).differences

    async def unlike_behind(self, binding: Binding) -> tuple[str, ...]:
        """The tabs that are not shown and came back with another text (see engine.behind)."""
        return self._session(self._bound(binding)).unlike_behind

    async def probe(self, binding: Binding) -> None:
        """The active page answers. Raises NotReady."""
        session = self._session(self._bound(binding))
        try:
            await self._thread.call(session.answers)
        except ResourceFailed as error:
            raise NotReady(f"the page of {binding.identity} does not answer: {error}", resource=self.name) from error

    async def unbind(self, binding: Binding) -> None:
        """Close the context, without firing beacons or unload handlers, then its door. Idempotent."""
        self._mine(binding)
        entry = self._open.get(binding.branch)
        if entry is not None and entry.binding is not None and entry.binding.identity == binding.identity:
            with CancelScope(shield=True):
                await self._close(entry)

    async def _close(self, entry: _Open) -> None:
        session, door, ready = entry.session, entry.door, entry.ready
        entry.session = entry.door = entry.binding = entry.ready = None
        if ready is not None and self._thread.running:
            await self._thread.call(ready.close)
        if session is not None and self._thread.running:
            await self._thread.call(session.close)
        if door is not None:
            await door.close()

    async def quiesce(self, branch: Branch) -> None:
        """Wait for what the pages have asked for, take their content, and stop their scripts (see :mod:`pause`)."""
        session = self._entry(branch).session
        if session is not None:
            await self._thread.call(session.hold)

    async def thaw(self, branch: Branch) -> None:
        """Let the scripts go on. Idempotent."""
        self._mine(branch)
        entry = self._open.get(branch.id)
        if entry is not None and entry.session is not None:
            with CancelScope(shield=True):
                await self._thread.call(entry.session.go_on)

    # -- acting -----------------------------------------------------------------------------------------------

    def died(self, binding: Binding) -> str:
        """Whether the binding's context broke with its browser or a page's process."""
        session = self._open[binding.branch].session if binding.branch in self._open else None
        return DIED if session is not None and session.broken else ""

    def check(self, action: Mapping[str, Json]) -> None:
        """Raise InvalidAction, naming the field, for what ``act`` would not carry out."""
        parse_action(action)

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """Carry out an action, let the page come to rest, and look.

        Raises InvalidAction (nothing was done), ActionFailed, RuntimeDied.
        """
        parsed = parse_action(action)
        session = self._session(self._bound(binding))
        seen = await self._thread.call(
            session.act, parsed, settle_seconds_max=self.options.settle_s, screenshot=self.options.screenshots
        )
        return await self._observation(seen)

    async def set_conditions(self, binding: Binding, conditions: Conditions) -> None:
        """What the pages draw and read from here on (see engine.prevailing.Conditioned)."""
        await self._thread.call(self._session(self._bound(binding)).set_conditions, conditions)

    async def observe(self, binding: Binding) -> Observation:
        """Look at the active tab. Raises RuntimeDied."""
        session = self._session(self._bound(binding))
        return await self._observation(await self._thread.call(session.look, screenshot=self.options.screenshots))

    async def picture(self, binding: Binding) -> bytes:
        """The active tab as PNG, also where observations have none (see engine.picturing)."""
        return (await self._thread.call(self._session(self._bound(binding)).look, screenshot=True)).screenshot

    async def _observation(self, seen: Look) -> Observation:
        strict = self._services.determinism == "strict"
        selectors = tuple(selector.text for selector in self._services.selectors)
        return await to_thread.run_sync(lambda: observed(seen, self._services.blobs, strict, selectors))

    @asynccontextmanager
    async def raw(self, binding: Binding) -> AsyncIterator[Any]:
        """The active tab's Playwright page, usable from this side (see :mod:`raw`); lent until the block ends."""
        session = self._session(self._bound(binding))
        loan = Loan(self._thread, session)
        try:
            yield Proxy(await self._thread.call(session.page), loan)
        except PlaywrightError as error:
            if session.live.broken:
                raise session.died(error) from error
            raise
        finally:
            loan.ended = True

    def _session(self, entry: _Open) -> Session:
        if entry.session is None:
            raise NotReady(f"{entry.branch.id} is not bound", resource=self.name)
        return entry.session

    def _mine(self, handle: Handle) -> None:
        if handle.journal != self._services.journal or handle.resource != self.name:
            raise ForeignHandle(
                f"the handle belongs to journal {handle.journal}, resource {handle.resource!r}", resource=self.name
            )

    def _entry(self, branch: Branch) -> _Open:
        self._mine(branch)
        entry = self._open.get(branch.id)
        if entry is None:
            raise ResourceFailed(f"there is no branch {branch.id}", resource=self.name)
        return entry

    def _bound(self, binding: Binding) -> _Open:
        self._mine(binding)
        entry = self._open.get(binding.branch)
        if entry is None or entry.binding is None or entry.binding.identity != binding.identity:
            raise NotReady(f"{binding.identity} is not bound", resource=self.name)
        return entry
