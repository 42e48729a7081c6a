"""Staging: opening a successor beside what serves, all or nothing.

A :class:`Context` is one execution context: the branches and bindings of one activation of one environment, and the
gate that grants leases on it. :class:`Staging` makes one from a manifest, in dependency order and concurrently where
nothing depends; whatever fails or is cancelled, everything that was staged is discarded again (I9).

A restored browser reloads its pages, and the application may answer by writing (view counters, sessions). So that a
restored generation equals the sealed one, stores whose write mark moved while the context was staged are branched
afresh, and what depends on them directly is bound again. A server may keep sessions that only read, and for which no
store can tell yet that they wrote nothing: before a store counts as written, what depends on it lets go of its
sessions, and the mark is read once more. A store is an authoritative resource that depends on nothing:
what depends on others acts on them, and looks after its own content while it is bound.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

import anyio

from statefork.engine.contract import Contract
from statefork.engine.errors import ResourceBusy, ResourceFailed, StateforkError, TransitionAborted
from statefork.engine.leases import Gate, Lease
from statefork.engine.ports import Needs, Owner, Resource
from statefork.journal.values import Binding, Branch, Component, Handle, Identity

_REWINDS_MAX = 3
R = TypeVar("R")
_logger = logging.getLogger(__name__)


class ComponentFailed(Exception):
    """What went wrong with one resource; becomes the abort's component and reason."""

    def __init__(self, component: str, doing: str, cause: Exception) -> None:
        super().__init__(f"{component}: {doing}: {cause}")
        self.component = component
        self.doing = doing
        self.cause = cause

    @property
    def said(self) -> str:
        """The cause in words, without the component's name and without its hint, which is told once and last."""
        words = self.cause.message if isinstance(self.cause, StateforkError) else str(self.cause)
        return words.removeprefix(f"{self.component}: ")

    @property
    def hint(self) -> str:
        """What the cause says is to be done."""
        return self.cause.hint if isinstance(self.cause, StateforkError) else ""

    @property
    def code(self) -> str:
        """The stable code of the cause."""
        return self.cause.code if isinstance(self.cause, StateforkError) else "resource_failed"


class Working:
    """What is being done to which resource now, so that a passed deadline has a name."""

    def __init__(self) -> None:
        self._doing: dict[str, str] = {}

    async def on(self, name: str, doing: str, work: Awaitable[R]) -> R:
        """Await ``work``. What ends by cancellation or failure stays written down."""
        self._doing[name] = doing
        result = await work
        del self._doing[name]
        return result

    def late(self, deadline_s: float) -> ComponentFailed | None:
        """The failure of the first that was not done in time; None when nothing was under way."""
        for name, doing in self._doing.items():
            return ComponentFailed(name, doing, ResourceFailed(f"not done within {deadline_s:g} s", resource=name))
        return None


class Context:
    """One activation of one environment: what is bound where, and who may use it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.branches: dict[str, Branch] = {}
        self.bindings: dict[str, Binding] = {}
        self.probed_ms: dict[str, float] = {}  # of each resource that passed its probe: what bind and probe took

    @property
    def identity(self) -> Identity:
        """Environment, epoch, activation."""
        return self.gate.identity


async def each(
    contract: Contract,
    work: Callable[[str], Awaitable[None]],
    *,
    doing: str,
    ordered: bool = True,
    reverse: bool = False,
    prepare: Callable[[str], Awaitable[None]] | None = None,
    working: Working | None = None,
) -> None:
    """Run ``work`` for every resource, concurrently; with ``ordered`` after those it depends on (or, in reverse, that
    depend on it). ``prepare`` runs before that wait. The first failure cancels the others and is raised as
    ComponentFailed. ``working`` is told what is under way.
    """
    working = working or Working()
    done = {name: anyio.Event() for name in contract.order}
    waits: dict[str, list[str]] = {name: [] for name in contract.order}
    for name in contract.order if ordered else ():
        for needed in contract.resources[name].depends_on:
            first, then = (name, needed) if reverse else (needed, name)
            waits[then].append(first)

    async def one(name: str) -> None:
        try:
            if prepare is not None:
                await working.on(name, doing, prepare(name))
            for other in waits[name]:
                await done[other].wait()
            await working.on(name, doing, work(name))
        except Exception as error:
            raise ComponentFailed(name, doing, error) from error
        done[name].set()

    try:
        async with anyio.create_task_group() as tasks:
            for name in reversed(contract.order) if reverse else contract.order:
                tasks.start_soon(one, name, name=f"{doing} {name}")
    except BaseExceptionGroup as group:
        raise first_failure(group) from None


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that a group is about: the first that is no cancellation."""
    for error in group.exceptions:
        found = first_failure(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(found, anyio.get_cancelled_exc_class()):
            return found
    return group.exceptions[0]


class Staging:
    """Makes the context of one activation. Use ``stage`` once; ``discard`` when it failed."""

    def __init__(
        self,
        contract: Contract,
        resources: Mapping[str, Resource],
        gate: Gate,
        manifest: Mapping[str, Component],
        timer: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.context = Context(gate)
        self._contract = contract
        self._resources = resources
        self._manifest = manifest
        self._timer = timer
        self._marks: dict[str, str] = {}
        self._old: dict[str, tuple[Branch, Binding]] = {}  # rewound, not yet discarded
        self._working = Working()
        self._owner = Owner(env=gate.identity.env, epoch=gate.identity.epoch)

    async def stage(self, *, deadline_s: float, requests_s: float) -> Context:
        """Branch, bind and probe everything. Raises ComponentFailed, TransitionAborted.

        Requests of the new activation are admitted meanwhile as children of one staging lease; they have
        ``requests_s`` to end once everything is bound, and are revoked then.
        """
        gate = self.context.gate
        with anyio.move_on_after(deadline_s) as deadline:
            async with gate.lease("staging", "staging") as lease:
                with self._timer("stage"):
                    await each(self._contract, self._bind, doing="staging", prepare=self._branch, working=self._working)
                lease.running = False  # nothing more is admitted on its account
                await self._settle(lease, requests_s)
                self._check_unspoilt(lease)
            with self._timer("rewind"):
                await self._rewind()
            self._check()
            return self.context
        assert deadline.cancelled_caught
        raise self._working.late(deadline_s) or TransitionAborted(
            f"staging of {gate.identity.env} took longer than {deadline_s:g} s", environment=gate.identity.env
        )

    async def _branch(self, name: str) -> None:
        with self._timer(f"branch {name}"):
            branch = await self._resources[name].branch(self._manifest[name].sealed, self._owner)
        self.context.branches[name] = branch
        if self._is_store(name) and self._dependants([name]):  # nobody else is given its address before it is published
            self._marks[name] = await self._resources[name].write_mark(branch)

    async def _bind(self, name: str) -> None:
        bindings, prevailing = self.context.bindings, self.context.gate.prevailing
        depends_on = self._contract.resources[name].depends_on
        needs = Needs(
            bindings={needed: bindings[needed] for needed in depends_on},
            versions={needed: self._manifest[needed].sealed for needed in depends_on},
            conditions=prevailing.conditions if prevailing is not None else None,
        )
        began = self.context.gate.now()
        with self._timer(f"bind {name}"):
            resource = self._resources[name]
            binding = await resource.bind(self.context.branches[name], self.context.identity, needs)
            bindings[name] = binding
            await resource.probe(binding)
        self.context.probed_ms[name] = round((self.context.gate.now() - began) * 1000, 3)

    def _is_store(self, name: str) -> bool:
        spec = self._contract.resources[name]
        return spec.durability == "authoritative" and not spec.depends_on

    async def _settle(self, lease: Lease, requests_s: float) -> None:
        """Wait for the requests that staging caused: they are children of its lease."""
        gate = self.context.gate
        with anyio.move_on_after(requests_s):
            await gate.idle(beside=1)
            return
        for child in list(gate.live.values()):
            if child is not lease:
                child.revoke("it was caused by staging and went on too long")
        await gate.idle(beside=1)

    def _check_unspoilt(self, lease: Lease) -> None:
        """A page that shows the gateway's own answer, because a server had failed, is not restored."""
        if lease.fault:
            raise TransitionAborted(
                f"a runtime failed while {lease.env} was staged: {lease.fault}",
                hint="Try again: runtimes that end are started again.",
                environment=lease.env,
                reason=lease.fault,
            )

    async def _rewind(self) -> None:
        for _ in range(_REWINDS_MAX):
            if not await self._written(self._marks):
                return
            let_go = self._dependants(self._marks)
            for name in reversed(let_go):
                await self._guarded(name, self._let_go)
            written = await self._written(self._marks)
            for name in written:
                await self._guarded(name, self._afresh)
            for name in self._dependants(written):
                await self._guarded(name, self._bind)
            for name in let_go:
                await self._guarded(name, self._take_up)
            for name in written:
                await self._guarded(name, self._forget)
            if not written:
                return
        raise TransitionAborted(
            f"stores of {self.context.identity.env} are still written though nothing is admitted: {' '.join(written)}",
            environment=self.context.identity.env,
            component=written[0],
        )

    async def _written(self, stores: Iterable[str]) -> list[str]:
        return [name for name in stores if await self._guarded(name, self._mark) != self._marks[name]]

    def _dependants(self, stores: Iterable[str]) -> list[str]:
        """What depends directly on any of the stores, in the order of binding."""
        resources = self._contract.resources
        return [name for name in self._contract.order if set(resources[name].depends_on) & set(stores)]

    async def _let_go(self, name: str) -> None:
        with suppress(ResourceBusy):  # then the store counts as written, and who holds it is cut off by a new binding
            await self._resources[name].quiesce(self.context.branches[name])

    async def _take_up(self, name: str) -> None:
        await self._resources[name].thaw(self.context.branches[name])

    async def _mark(self, name: str) -> str:
        return await self._resources[name].write_mark(self.context.branches[name])

    async def _guarded(self, name: str, work: Callable[[str], Awaitable[R]]) -> R:
        doing = "rewinding what was written during staging"
        try:
            return await self._working.on(name, doing, work(name))
        except Exception as error:
            raise ComponentFailed(name, doing, error) from error

    async def _afresh(self, name: str) -> None:
        """Replace a store's branch by a new one over the same sealed version. The old one waits for ``_forget``."""
        context = self.context
        fresh = await self._resources[name].branch(self._manifest[name].sealed, self._owner)
        self._old[name] = (context.branches[name], context.bindings[name])
        context.branches[name] = fresh
        self._marks[name] = await self._resources[name].write_mark(fresh)
        await self._bind(name)

    async def _forget(self, name: str) -> None:
        branch, binding = self._old[name]
        await self._resources[name].unbind(binding)
        await self._resources[name].discard(branch)
        del self._old[name]

    def _check(self) -> None:
        """I8: a context is ready only when everything is bound and probed."""
        names = set(self._contract.order)
        assert self.context.probed_ms.keys() == names, "I8: a resource was not probed"
        assert self.context.bindings.keys() == self.context.branches.keys() == names, "I8: a resource is not bound"
        assert not self._old, "a rewound branch is left over"

    async def discard(self, *, deadline_s: float) -> None:
        """Take everything back. Never raises; what can't be removed now is the collector's."""
        for name, (branch, binding) in self._old.items():
            await quietly(name, "unbind", self._resources[name].unbind(binding), deadline_s)
            await quietly(name, "discard", self._resources[name].discard(branch), deadline_s)
        self._old.clear()
        await close_context(self._contract, self._resources, self.context, deadline_s=deadline_s)
        await self._sweep(deadline_s)

    async def _sweep(self, deadline_s: float) -> None:
        """Remove what a failing adapter made and did not tell of: nobody else has this activation, or this epoch."""
        for name, resource in self._resources.items():
            found: list[Handle] = []
            with anyio.move_on_after(deadline_s, shield=True):
                try:
                    found = [handle async for handle in resource.inventory() if self._is_own(handle)]
                except Exception:
                    _logger.exception("inventory of %s failed after an aborted staging", name)
            for handle in found:
                await quietly(name, "discard", resource.discard(handle), deadline_s)

    def _is_own(self, handle: Handle) -> bool:
        if isinstance(handle, Branch):
            return (handle.env, handle.epoch) == (self._owner.env, self._owner.epoch)
        return isinstance(handle, Binding) and handle.identity == self.context.identity


async def close_context(
    contract: Contract, resources: Mapping[str, Resource], context: Context, *, deadline_s: float
) -> None:
    """Unbind and discard a context that serves no more: stragglers first, then dependants, then what they depend on.

    Shielded, and never raises: it runs after the fact that decided. What fails or takes longer than ``deadline_s``
    is logged and left to the collector, which finds it in the inventory.
    """
    gate = context.gate
    gate.end()

    async def unbind(name: str) -> None:
        if name in context.bindings:
            await quietly(name, "unbind", resources[name].unbind(context.bindings[name]), deadline_s)

    async def discard(name: str) -> None:
        if name in context.branches:
            await quietly(name, "discard", resources[name].discard(context.branches[name]), deadline_s)

    with anyio.CancelScope(shield=True):
        gate.revoke_all("its environment has moved on")
        with anyio.move_on_after(deadline_s):
            await gate.idle()
        await each(contract, unbind, doing="unbinding", reverse=True)
        await each(contract, discard, doing="discarding", ordered=False)


async def quietly(name: str, doing: str, work: Awaitable[None], deadline_s: float) -> None:
    """Await ``work``, shielded; a failure is logged and left to the collector."""
    with anyio.move_on_after(deadline_s, shield=True) as scope:
        try:
            await work
        except Exception:
            _logger.exception("%s of %s failed; left to the collector", doing, name)
    if scope.cancelled_caught:
        _logger.warning("%s of %s took longer than %g s; left to the collector", doing, name, deadline_s)
