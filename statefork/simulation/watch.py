"""Who waits, and for what: fairness, lost wake-ups, and what an engine at rest may not hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import trio

from statefork.engine.conductor import Conductor
from statefork.engine.errors import NoSlot
from statefork.engine.kernel import Kernel
from statefork.engine.slots import UNLIMITED
from statefork.simulation.scene import Scene

TICK_S = 0.7310585
"""No deadline of anybody else is ever at such a moment: who wakes then alone finds all others waiting."""

_SLACK_S = 1e-6
_PARKING_S = 15.0
"""Longer than parking takes where nothing is in trouble: drain, seal and closing."""


class _Waiter:
    def __init__(self, env: str, number: int) -> None:
        self.env = env
        self.number = number
        self.served = False


class Watch:
    """Watches one engine from its opening to its end."""

    def __init__(self, scene: Scene, kernel: Kernel) -> None:
        self._scene = scene
        self._kernel = kernel
        self._slots = kernel.slots
        self._conductor: Conductor = kernel._conductor
        self._waiters: list[_Waiter] = []
        self._arrived = 0
        self._claim = self._slots.claim
        self._give_way = self._slots._give_way
        self._slots._give_way = self.give_way
        self._slots.claim = self.claim  # type: ignore[method-assign]  # of this one engine, to see who comes and goes

    # --- fairness ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def claim(
        self, env: str, *, deadline_s: float, waits: Callable[[int], None] | None = None
    ) -> AsyncIterator[None]:
        """The slots' own, observed."""
        self._arrived += 1
        waiter = _Waiter(env, self._arrived)
        seated = env in self._slots.taken
        began = trio.current_time()
        if not seated:
            self._waiters.append(waiter)
        try:
            async with self._claim(env, deadline_s=deadline_s, waits=waits):
                if not seated:
                    self._served(waiter)
                    self._check_patience(env, trio.current_time() - began, deadline_s)
                yield
        except NoSlot:
            waited = trio.current_time() - began
            self._check_patience(env, waited, deadline_s)
            if not waiter.served and waited < deadline_s - _SLACK_S:
                self._scene.truth.fail("deadline", f"{env} waited {waited} s for a slot, and {deadline_s} were given")
            raise
        finally:
            if not waiter.served and waiter in self._waiters:
                self._waiters.remove(waiter)

    def _check_patience(self, env: str, waited_s: float, deadline_s: float) -> None:
        """A deadline is kept, but for the time that it takes the waiter to see the parking of another to its end."""
        late = waited_s > deadline_s + _PARKING_S and not self._scene.troubled
        self._scene.truth.require(not late, "deadline", f"{env} waited {waited_s} s for a slot, and had {deadline_s}")

    async def give_way(self, env: str) -> str:
        """The engine's own, observed."""
        self._scene.truth.require(not self._scene.pins.get(env), "slots", f"{env} is to give way, and is pinned")
        return await self._give_way(env)

    def _served(self, waiter: _Waiter) -> None:
        waiter.served = True
        self._waiters.remove(waiter)
        if self._slots.limit == UNLIMITED:
            return
        taken = self._slots.taken
        if len(taken) > self._slots.limit:
            self._scene.truth.fail("slots", f"{self._slots.limit} slots are held by {len(taken)}: {taken}")
        if self._slots._seats[waiter.env].claims > 1 or self._slots._is_bound(waiter.env):
            return  # somebody came with it to the same environment, and got the slot
        before = [one.env for one in self._waiters if one.number < waiter.number and one.env not in taken]
        if len(before) > self._slots.limit - len(taken):
            self._scene.truth.fail("fairness", f"{waiter.env} got a slot before {before}, who came earlier")

    # --- rest -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look again and again, at moments when nobody can run."""
        while True:
            await anyio.sleep(TICK_S)
            self.look()

    def look(self) -> None:
        """Nobody waits for what is there already."""
        slots, truth = self._slots, self._scene.truth
        self._scene.look(self._kernel)
        if slots.limit != UNLIMITED and not self._scene.troubled:
            placed = {identity.env for branch, identity in self._scene.world.bindings if branch.startswith("page-")}
            told = f"{sorted(placed)} stand in {slots.limit} slots"
            truth.require(len(placed) <= slots.limit, "slots", told)
        free = slots.limit - len(slots.taken)
        parking = any(seat.leaving for seat in slots._seats.values())  # a waiter is busy with that
        for index, waiting in enumerate(slots.queue if not parking else ()):
            if waiting.env in slots.taken or index < free:
                truth.fail("wake-up", f"{waiting.env} waits at place {index + 1} while {free} slots are free")
        if slots.queue and not parking:
            for env in slots.taken:
                seat = slots._seats[env]
                if slots._is_idle(env) and not (seat.claims or seat.refused or env in slots._pins):
                    truth.fail("wake-up", f"{slots.queue[0].env} waits for a slot, and {env} is idle in one")
        for env, live in self._conductor.lives.items():
            gate = live.context.gate if live.context is not None else None
            if gate is not None and not gate.shut and gate._moved is not None:
                truth.fail("wake-up", f"somebody waits at the gate of {env}, which is open")

    def at_rest(self) -> None:
        """Nothing runs any more in an engine that lives: so it holds nothing but what serves."""
        truth, slots = self._scene.truth, self._slots
        self.look()
        truth.require(not slots.queue, "progress", f"{slots.queue} wait for slots, and nobody runs")
        bound = {env for env, live in self._conductor.lives.items() if live.context is not None}
        truth.require(
            slots.limit == UNLIMITED or set(slots.taken) == bound, "slots", f"{slots.taken} are held, {bound} are bound"
        )
        truth.require(not self._conductor.sharing._sharers, "progress", "a transition shares the world, and none runs")
        for env, live in self._conductor.lives.items():
            truth.require(not live.lock.locked(), "progress", f"the turn of {env} is taken, and nobody has it")
            if live.doubt:
                continue
            truth.require(live.staged is None, "I9", f"something is still staged for {env}")
            if live.context is not None:
                gate = live.context.gate
                truth.require(not gate.live, "progress", f"{env} has live leases, and nobody runs: {gate.live}")
                truth.require(not gate.shut, "I9", f"{env} stays frozen: {gate.shut}")
        for env, model in truth.models.items():
            left = [holder.what for holder in model.holders if holder.joinable]
            truth.require(not left, "progress", f"{left} still run in {env}")
