"""N environments over Q physical slots: who is bound, who waits for a slot, and who gives way.

A bound environment holds a slot of every kind that its contract's resources need, so the kind with the fewest slots
decides how many environments are bound at once. Whoever needs a slot waits in the order of arrival. When none is free,
the environment that has been idle longest gives way: it is parked, which loses nothing. An environment with a live
lease, a transition under way or a pin never gives way.

The successor of a switch stands beside what it replaces until the publish: that takes one of the *staging places*,
which are counted apart, so that a full house can still be reset.

Everything here runs in one event loop; nothing between two awaits can be interrupted.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import anyio

from statefork.engine.errors import LimitReached, NoSlot
from statefork.journal.values import Value

UNLIMITED = 0
"""A number of slots that means: as many as there are environments."""

EVERY_KIND = "*"
_NAMES_SHOWN = 8
_RETRY_S = 1.0


class Waiting(Value, frozen=True, kw_only=True):
    """One who waits for a slot. ``position`` 1 is served next."""

    env: str
    position: int


class _Seat:
    """A slot that is taken: by an environment that is bound, or by claims of those who are about to bind it."""

    __slots__ = ("claims", "leaving", "refused")

    def __init__(self) -> None:
        self.claims = 0
        self.leaving = False
        self.refused = ""  # why it could not be parked


class _Ticket:
    """A place in the queue. Who stands so far behind that no slot can be meant for it is not woken by every change."""

    __slots__ = ("changed", "env")

    def __init__(self, env: str) -> None:
        self.env = env
        self.changed = anyio.Event()

    def wake(self) -> None:
        """Something has changed that may concern it."""
        self.changed.set()
        self.changed = anyio.Event()


class Slots:
    """The slots of one engine; the three functions are the environments' side of it.

    ``is_bound``: something of the environment stands in its slot. ``is_idle``: nothing runs there, and no transition is
    under way. ``give_way`` parks an environment if it is still idle; it returns why it could not be parked, or nothing.
    """

    def __init__(
        self,
        limit: int,
        *,
        kind: str = "",
        staging: int = 1,
        queue_max: int = sys.maxsize,
        is_bound: Callable[[str], bool],
        is_idle: Callable[[str], bool],
        give_way: Callable[[str], Awaitable[str]],
    ) -> None:
        self.limit = limit
        self.kind = kind
        self._queue_max = queue_max
        self._is_bound = is_bound
        self._is_idle = is_idle
        self._give_way = give_way
        self._seats: OrderedDict[str, _Seat] = OrderedDict()  # the one that was used last stands last
        self._pins: dict[str, int] = {}
        self._queue: list[_Ticket] = []
        self._staging = anyio.CapacityLimiter(staging) if limit != UNLIMITED else None

    # --- taking and giving ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def claim(
        self, env: str, *, deadline_s: float, waits: Callable[[int], None] | None = None
    ) -> AsyncIterator[None]:
        """The environment has a slot in the body and does not give way; afterwards it keeps it while it is bound.

        Waits in order of arrival; ``waits`` is told the position when there is a queue. Several may claim for one
        environment. Raises NoSlot after ``deadline_s``, naming who holds the slots; LimitReached.
        """
        seat = self._seats.get(env) or await self._take(_Ticket(env), deadline_s, waits)
        seat.claims += 1
        try:
            yield
        finally:
            seat.claims -= 1
            self.settle(env)
            self.look_again()

    async def _take(self, ticket: _Ticket, deadline_s: float, waits: Callable[[int], None] | None) -> _Seat:
        if len(self._queue) >= self._queue_max:
            what = f"{len(self._queue)} activations wait for a {self.kind} slot"
            raise LimitReached.of("slot_queue_max", self._queue_max, what, environment=ticket.env)
        self._queue.append(ticket)
        try:
            if waits is not None and not self._is_next(ticket):
                waits(len(self._queue))
            with anyio.move_on_after(deadline_s):
                while not self._is_next(ticket):
                    await self._make_room(ticket)
                return self._seat(ticket.env)
            raise self._none_free(ticket, deadline_s)
        finally:
            self._queue.remove(ticket)
            self._wake()

    def _seat(self, env: str) -> _Seat:
        seat = self._seats.get(env)
        if seat is None:
            seat = self._seats[env] = _Seat()
            for other in self._queue:
                if other.env == env:  # it has its slot too, wherever it stands
                    other.wake()
        return seat

    @contextmanager
    def emptied(self, env: str) -> Iterator[None]:
        """What stands in the environment's slot is taken out in the body: not before its end can the slot be free."""
        seat = self._seats.get(env)
        if seat is not None:
            seat.claims += 1
        try:
            yield
        finally:
            if seat is not None:
                seat.claims -= 1
            self.settle(env)

    def settle(self, env: str) -> None:
        """Something of the environment was unbound: where nothing is left of it, its slot is free."""
        seat = self._seats.get(env)
        if seat is not None and not seat.claims and not self._is_bound(env):
            del self._seats[env]
            self._wake()

    def used(self, env: str) -> None:
        """The environment was used until now."""
        seat = self._seats.get(env)
        if seat is not None:
            seat.refused = ""
            self._seats.move_to_end(env)
            self.look_again()

    def look_again(self) -> None:
        """Something that ran in an environment has ended: perhaps that one can give way now."""
        if self._queue:
            self._wake()

    @asynccontextmanager
    async def staging_place(self) -> AsyncIterator[None]:
        """Around a switch of a bound environment, from before its successor is staged until the old one is closed."""
        if self._staging is None:
            yield
            return
        async with self._staging:
            yield

    @contextmanager
    def pinned(self, env: str) -> Iterator[None]:
        """The environment does not give way inside the body. Pins are counted."""
        self.pin(env)
        try:
            yield
        finally:
            self.unpin(env)

    def pin(self, env: str) -> None:
        """The environment does not give way until ``unpin``."""
        self._pins[env] = self._pins.get(env, 0) + 1

    def unpin(self, env: str) -> None:
        """Undo one ``pin``."""
        self._pins[env] -= 1
        if not self._pins[env]:
            del self._pins[env]
            self._wake()

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def taken(self) -> tuple[str, ...]:
        """Who holds a slot: the one that was idle longest first."""
        return tuple(self._seats)

    @property
    def queue(self) -> tuple[Waiting, ...]:
        """Who waits, in order."""
        return tuple(Waiting(env=ticket.env, position=number) for number, ticket in enumerate(self._queue, 1))

    # --- how it is decided ------------------------------------------------------------------------------------------

    def _is_next(self, ticket: _Ticket) -> bool:
        """Whether there is a free slot for this one and for everybody who came before; or it has one already."""
        if self.limit == UNLIMITED or ticket.env in self._seats:
            return True
        return self._queue.index(ticket) < self.limit - len(self._seats)

    async def _make_room(self, ticket: _Ticket) -> None:
        """Have somebody give way, unless enough are doing so already for those in the queue up to this one."""
        coming = self.limit - len(self._seats) + sum(seat.leaving for seat in self._seats.values())
        position = self._queue.index(ticket)
        chosen = self._idle_longest() if coming <= position < self.limit else None
        if chosen is None:
            await self._change(ticket, in_front=position < self.limit)
            return
        seat = self._seats[chosen]
        seat.leaving = True
        try:
            seat.refused = await self._give_way(chosen)
        finally:
            seat.leaving = False
            self._wake()

    async def _change(self, ticket: _Ticket, *, in_front: bool) -> None:
        """Wait until something has changed. Who could not be parked is tried again after a while."""
        refused = [seat for seat in self._seats.values() if seat.refused] if in_front else []
        with anyio.move_on_after(_RETRY_S if refused else None):
            await ticket.changed.wait()
            return
        for seat in refused:
            seat.refused = ""

    def _idle_longest(self) -> str | None:
        for env, seat in self._seats.items():
            held = seat.claims or seat.leaving or seat.refused or env in self._pins
            if not held and self._is_idle(env):
                return env
        return None

    def _wake(self) -> None:
        for ticket in self._queue[: self.limit]:
            ticket.wake()

    def _none_free(self, ticket: _Ticket, deadline_s: float) -> NoSlot:
        holders = ", ".join(self._holders()) or "nobody"
        return NoSlot(
            f"{ticket.env} got no {self.kind} slot within {deadline_s:g} s; all {self.limit} are taken: {holders}",
            hint="End what runs in one of them, unpin or park one, or open the engine with more slots.",
            environment=ticket.env,
            slots=self.limit,
            kind=self.kind,
            position=self._queue.index(ticket) + 1,
        )

    def _holders(self) -> list[str]:
        names = [f"{env} ({self._why(env, seat)})" for env, seat in self._seats.items()]
        more = len(names) - _NAMES_SHOWN
        return names if more <= 0 else [*names[:_NAMES_SHOWN], f"{more} more"]

    def _why(self, env: str, seat: _Seat) -> str:
        if env in self._pins:
            return "pinned"
        if seat.leaving:
            return "being parked"
        return f"can't be parked: {seat.refused}" if seat.refused else "in use"


def capacity(needs: Mapping[str, str], limits: Mapping[str, int]) -> tuple[int, str]:
    """How many environments can be bound at once, and which kind of slot decides that.

    ``needs``: the kind of slot that each resource takes, empty for none. ``limits``: by kind, ``*`` for all others; a
    kind without a limit is unlimited.
    """
    kinds = sorted({kind for kind in needs.values() if kind})
    found = [(limits.get(kind, limits.get(EVERY_KIND, UNLIMITED)), kind) for kind in kinds]
    return min((one for one in found if one[0] != UNLIMITED), default=(UNLIMITED, ""))
