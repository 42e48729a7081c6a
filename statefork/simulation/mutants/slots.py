"""Planted faults: slots, queue, pins, parking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statefork.engine.capsule import Phase
from statefork.engine.commands import Park
from statefork.engine.conductor import Conductor
from statefork.engine.slots import Slots
from statefork.engine.turns import in_own_task
from statefork.simulation.mutants.planting import changed, mutant


@mutant("slot-given-twice", "slots", within=30)
def _() -> Iterator[None]:
    """Whoever asks for a slot gets one."""
    with changed(Slots, "_is_next", lambda self, ticket: True):
        yield


@mutant("last-come-first-served", "fairness", within=100)
def _() -> Iterator[None]:
    """The queue for slots is served from its end."""

    class Stack(list[Any]):
        def append(self, one: Any) -> None:
            self.insert(0, one)

    def init(self: Slots, *args: Any, **more: Any) -> None:
        was(self, *args, **more)
        self._queue = Stack()

    with changed(Slots, "__init__", init) as was:
        yield


@mutant("cleared-waiter", "wake-up", within=100)
def _() -> Iterator[None]:
    """A slot that becomes free wakes nobody."""

    def settle(self: Slots, env: str) -> None:
        seat = self._seats.get(env)
        if seat is not None and not seat.claims and not self._is_bound(env):
            del self._seats[env]

    with changed(Slots, "settle", settle), changed(Slots, "look_again", lambda self: None):
        yield


@mutant("pin-ignored", "slots", within=100)
def _() -> Iterator[None]:
    """A pinned environment gives way."""
    with changed(Slots, "pin", lambda self, env: None), changed(Slots, "unpin", lambda self, env: None):
        yield


@mutant("parked-unsealed", "state", within=30)
def _() -> Iterator[None]:
    """Parking throws a dirty tail away."""

    @in_own_task
    async def park(self: Conductor, env: str, reason: str = "", drain: Any = None, *, only_idle: bool = False) -> None:
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if live.context is None or capsule.phase is not Phase.SERVING or (only_idle and live.context.gate.live):
                return
            begin = self._begin(env, "snapshot")
            async with self._frozen(live, begin, quiet="park", hold_s=self._hold_s(drain)) as run:
                await self._drain(run, drain, may_fence=False)
                await self.ledger.commit(Park(env=env, at=self.ledger.clock.now(), reason=reason))
            live.context = None
            await self._close(run.context)

    with changed(Conductor, "park", park):
        yield
