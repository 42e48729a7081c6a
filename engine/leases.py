"""Leases: the right to act on one generation of one environment. Scoped, counted in trees, revocable.

A lease is an async context manager. *Root* leases are granted only while the gate of the published generation is open
(I2). What a root causes runs in *child* leases, which the gate grants as long as the root's own body runs, also while
it drains. Each lease owns a cancel scope: revoking a tree cancels every body in it, and the drain waits until the last
of them has ended (I3). A lease keeps the generation it was granted on for ever (I1).

The hot path reads no journal, takes no lock and waits for nothing. Everything here runs in one event loop, so that no
statement between two awaits can be interrupted.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal

import anyio

from statefork.engine.errors import EnvironmentFrozen, LeaseRevoked, LimitReached, RuntimeDied, StaleGeneration
from statefork.engine.prevailing import Prevailing
from statefork.engine.scopes import Scope, scope_maker
from statefork.journal.errors import StateforkError
from statefork.journal.values import Held, Identity

Kind = Literal["action", "evaluation", "request", "lease", "staging"]

_current: ContextVar[Lease | None] = ContextVar("statefork_lease", default=None)


def current_lease() -> Lease | None:
    """The innermost lease that the calling task holds or inherited."""
    return _current.get()


@contextmanager
def holding(lease: Lease | None) -> Iterator[None]:
    """The calling context holds a lease that a task took for it: what it asks for meanwhile is caused by that."""
    token = _current.set(lease)
    try:
        yield
    finally:
        # Entered in another context, as in one cell of a notebook and left in the next: there the lease stays named,
        # and one that has ended counts for nothing.
        with suppress(ValueError):
            _current.reset(token)


class Lease:
    """One holder's right to one generation. Use it once, with ``async with``.

    Raises EnvironmentFrozen or StaleGeneration on entry; LeaseRevoked on exit, when it was revoked and its body was cut
    short by that.
    """

    __slots__ = (
        "_token",
        "conditions",
        "count",
        "entered",
        "fault",
        "gate",
        "holder",
        "id",
        "kind",
        "on_fence",
        "parent",
        "revoked",
        "running",
        "scope",
        "tree",
    )

    def __init__(self, gate: Gate, holder: str, kind: Kind, parent: Lease | None) -> None:
        self.gate = gate
        self.holder = holder
        self.kind: Kind = kind
        self.parent = parent
        self.tree: Lease = parent.tree if parent is not None else self
        self.id = 0  # numbered when it is granted, so that a later generation has only higher numbers
        self.count = 0  # of a root: live leases of its tree
        self.entered = False
        self.running = False
        self.revoked = ""  # why, once it was
        self.conditions = ""  # under what chance and time a request of it is answered, as its server is told
        self.fault = ""  # how a runtime failed under it, or under something that it caused
        self.on_fence: Callable[[], None] | None = None
        self.scope = gate.new_scope()
        self._token: Token[Lease | None] | None = None

    @property
    def env(self) -> str:
        """The environment."""
        return self.gate.identity.env

    @property
    def identity(self) -> Identity:
        """Environment, epoch and activation."""
        return self.gate.identity

    @property
    def epoch(self) -> int:
        """The epoch of the generation it was granted on."""
        return self.gate.identity.epoch

    @property
    def activation(self) -> int:
        """The stay in a slot in which it was granted."""
        return self.gate.identity.activation

    @property
    def generation(self) -> int:
        """The generation it was granted on. A continuing publish waits for the lease, so this can't move under it."""
        return self.gate.generation

    @property
    def root(self) -> bool:
        """Whether no action and no transition caused it: a mutating request of it is an input of the trajectory."""
        lease: Lease | None = self
        while lease is not None:
            if lease.kind in ("action", "staging"):
                return False
            lease = lease.parent
        return True

    async def __aenter__(self) -> Lease:
        return self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(kind, error, trace)

    def enter(self) -> Lease:
        """What ``async with`` does first, for another context manager around it; nothing of it waits."""
        assert not self.entered, "a lease is used once"
        self.gate.count_in(self)
        self.entered = self.running = True
        self.scope.__enter__()
        self._token = _current.set(self)
        return self

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """What ``async with`` does last. Raises LeaseRevoked."""
        if self._token is not None:
            _current.reset(self._token)
        self.running = False
        try:
            cut_short = bool(self.scope.__exit__(kind, error, trace)) and kind is not None
        finally:
            self.gate.count_out(self)
        if cut_short:
            assert self.revoked, "nobody else cancels a lease's scope"
            raise LeaseRevoked(
                f"the lease of {self.holder} on {self.env} was revoked: {self.revoked}",
                hint="What it did is unknown: observe, or roll back.",
                environment=self.env,
                generation=self.generation,
                lease=self.id,
                holder=self.holder,
            )

    def carry(self, name: str) -> AbstractContextManager[None]:
        """Around a connection that lives on when the lease has ended, at rest between its messages."""
        return self.gate.carry(name)

    def spoil(self, reason: str) -> None:
        """A runtime failed under it: what those who caused it have seen is not the world's answer."""
        lease: Lease | None = self
        while lease is not None:
            lease.fault = lease.fault or reason
            lease = lease.parent

    def check_unspoilt(self) -> None:
        """Raise RuntimeDied where a runtime failed under this lease or something that it caused."""
        if self.fault:
            raise RuntimeDied(
                f"a runtime of {self.env} failed under {self.holder}: {self.fault}",
                hint="What was done is unknown: look again before acting on, or restore an earlier generation.",
                environment=self.env,
                generation=self.generation,
                holder=self.holder,
            )

    def abandon(self) -> None:
        """It leaves a straggler behind: what it caused is revoked, and its context is given up at the next use."""
        self.gate.abandoned = self.gate.abandoned or self.holder
        for other in list(self.gate.live.values()):
            if other.tree is self.tree and other is not self:
                other.revoke("what caused it was given up")

    def revoke(self, reason: str) -> None:
        """Cancel the body, which is then waited for. Idempotent."""
        if not self.revoked:
            self.revoked = reason
            self.scope.cancel()


class Gate:
    """Grants and counts the leases of one execution context: one activation of one environment.

    Shut until ``open`` is called the first time. ``generation`` moves only while nothing is live (continuing publish).
    """

    def __init__(
        self,
        identity: Identity,
        generation: int,
        ids: Iterator[int],
        monotonic: Callable[[], float],
        *,
        leases_max: int = sys.maxsize,
        waiting_max: int = sys.maxsize,
    ) -> None:
        self.identity = identity
        self.generation = generation
        self.shut = "it is not published yet"
        self.hold_s = 0.0  # while it is shut: how long newcomers wait for what comes, instead of being refused
        self.ended = False
        self.abandoned = ""  # who left something behind that can't be ended and may still write
        self.trees: dict[int, Lease] = {}  # live roots by id
        self.live: dict[int, Lease] = {}  # every live lease by id, in order of entry
        self.admissions = 0
        self.held: list[Held] = []
        self.prevailing: Prevailing | None = None
        self.carried: dict[object, str] = {}  # connections at rest between messages, by name
        self.next_id: Callable[[], int] = ids.__next__
        self.new_scope: Callable[[], Scope] = scope_maker()
        self.on_idle: Callable[[Kind], None] | None = None  # told the kind of the tree that ended last
        self._leases_max = leases_max
        self._waiting_max = waiting_max
        self._waiting = 0  # newcomers that are held back
        self._monotonic = monotonic
        self._shut_at = 0.0
        self._over: Callable[[], StateforkError] | None = None
        self._idle: anyio.Event | None = None
        self._moved: anyio.Event | None = None

    def now(self) -> float:
        """Seconds on the clock by which durations are measured."""
        return self._monotonic()

    def lease(self, holder: str, kind: Kind, parent: Lease | None = None) -> Lease:
        """A lease to enter. Nothing is granted or counted before ``async with``."""
        return Lease(self, holder, kind, parent)

    def cause(self, *kinds: Kind) -> Lease | None:
        """The newest lease of one of these kinds whose body still runs: what a request is due to."""
        for lease in reversed(self.live.values()):
            if lease.kind in kinds and lease.running and not lease.revoked:
                return lease
        return None

    def count_in(self, lease: Lease) -> None:
        """Grant: the moment that decides. Raises EnvironmentFrozen, StaleGeneration, LimitReached."""
        if lease.parent is None or lease.kind == "action":  # an action is a new decision of an agent, whoever holds it
            self._check_open(lease)
        if lease.parent is not None and (lease.tree.id not in self.trees or lease.tree.revoked):
            raise self.stale()
        if len(self.live) >= self._leases_max:
            raise self._too_many("leases_max", self._leases_max, "leases are live on")
        lease.id = self.next_id()
        if self.prevailing is not None:
            lease.conditions = self.prevailing.told(self.now())
        if lease.parent is None:
            self.trees[lease.id] = lease
        lease.tree.count += 1
        self.live[lease.id] = lease
        self.admissions += 1

    def _too_many(self, limit: str, most: int, what: str) -> LimitReached:
        env = self.identity.env
        return LimitReached.of(limit, most, f"{most} {what} {env}", environment=env, generation=self.generation)

    def _check_open(self, lease: Lease) -> None:
        if self.ended:
            raise (self._over or self.stale)()
        if self.shut and lease.kind != "staging":
            raise EnvironmentFrozen(
                f"{self.identity.env} grants no lease now: {self.shut}",
                hint="Try again shortly.",
                environment=self.identity.env,
                generation=self.generation,
                epoch=self.identity.epoch,
            )

    def count_out(self, lease: Lease) -> None:
        """The body of a lease has ended."""
        if self.live.pop(lease.id, None) is None:
            return  # fenced: the drain has already accounted for it
        if self._shut_at:
            self._note(lease, "revoked" if lease.revoked else "ended")
        tree = lease.tree
        tree.count -= 1
        if not tree.count:
            del self.trees[tree.id]
        if self._idle is not None:
            self._idle.set()
        if self.on_idle is not None and not self.live:
            self.on_idle(tree.kind)

    def _note(self, lease: Lease, how: str) -> None:
        waited_ms = round((self._monotonic() - self._shut_at) * 1000, 3)
        self.held.append(Held(holder=lease.holder, how=how, waited_ms=waited_ms))

    @contextmanager
    def carry(self, name: str) -> Iterator[None]:
        """Name a connection that is at rest between messages, each of which takes a lease of its own."""
        key = object()
        self.carried[key] = name
        try:
            yield
        finally:
            del self.carried[key]

    def shut_for(self, reason: str, *, hold_s: float = 0.0) -> None:
        """Freeze: grant no more roots. Starts a new account of what was held open."""
        assert not self.shut, "a gate is shut once at a time"
        self.shut = reason
        self.hold_s = hold_s
        self.held = [Held(holder=name, how="held") for name in self.carried.values()]
        self._shut_at = self._monotonic()

    def open(self, generation: int) -> None:
        """Thaw: grant roots on this generation."""
        if generation != self.generation:
            assert not self.trees, "I3: a generation moved under a live lease"
            self.generation = generation
        self.shut = ""
        self._shut_at = 0.0
        self._wake()

    def end(self, why: Callable[[], StateforkError] | None = None) -> None:
        """This activation is over: whoever comes now, or waits, is stale, or gets the error of ``why``."""
        self._over = why or self._over
        self.shut = self.shut or "this activation has ended"
        self.ended = True
        self._wake()

    def renew(self, why: str) -> None:
        """Undo ``end``: still shut, until it is opened."""
        self.shut, self.ended, self._over = self.shut or why, False, None

    def _wake(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    async def held_back(self) -> bool:
        """Let a newcomer wait where that is allowed; True: look again at what serves now. Raises LimitReached."""
        if not self.shut or self.ended or not self.hold_s:
            return False
        if self._waiting >= self._waiting_max:
            raise self._too_many("waiting_max", self._waiting_max, "callers are held back by a freeze of")
        self._waiting += 1
        try:
            with anyio.move_on_after(self.hold_s):
                await self.moved()
                return True
        finally:
            self._waiting -= 1
        return False

    async def moved(self) -> None:
        """Return when a shut gate was opened or has ended."""
        while self.shut and not self.ended:
            self._moved = self._moved or anyio.Event()
            await self._moved.wait()

    async def idle(self, *, beside: int = 0) -> None:
        """Return when no more than ``beside`` leases are live."""
        while len(self.live) > beside:
            self._idle = anyio.Event()
            await self._idle.wait()
        self._idle = None

    def revoke_all(self, reason: str) -> list[Lease]:
        """Cancel every body, children too; returns whom."""
        revoked = [lease for lease in self.live.values() if not lease.revoked]
        for lease in revoked:
            lease.revoke(reason)
        return revoked

    def fence(self) -> None:
        """Go on without those that can't be joined: they stay cancelled, and what they touch is abandoned."""
        for lease in list(self.live.values()):
            self.abandoned = self.abandoned or lease.holder
            self._note(lease, "fenced")
            if lease.on_fence is not None:
                lease.on_fence()
        self.live.clear()
        self.trees.clear()

    def stale(self) -> StaleGeneration:
        """The error for those who come to an activation that has ended."""
        return StaleGeneration(
            f"{self.identity} is no longer served",
            environment=self.identity.env,
            epoch=self.identity.epoch,
            activation=self.identity.activation,
        )


def lease_ids() -> Iterator[int]:
    """Numbers of leases, from 1, counted anew in each run of an engine."""
    return itertools.count(1)
