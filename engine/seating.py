"""Which environments stand in the slots of an engine: the slots' view of what is bound, idle and under way."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from statefork.engine.leases import Gate, Kind
from statefork.engine.ledger import Ledger
from statefork.engine.live import Live
from statefork.engine.ports import Resource, Slotted
from statefork.engine.settings import Settings
from statefork.engine.slots import Slots, capacity
from statefork.journal.events import EnvironmentQueued


class Seating:
    """The slots of one engine, and who waits for them. ``give_way``: see :class:`statefork.engine.slots.Slots`."""

    def __init__(
        self,
        ledger: Ledger,
        resources: Mapping[str, Resource],
        settings: Settings,
        lives: Mapping[str, Live],
        give_way: Callable[[str], Awaitable[str]],
    ) -> None:
        self._ledger = ledger
        self._wait_s = settings.slot_wait_s
        self._lives = lives
        needs = {name: found.slot for name, found in resources.items() if isinstance(found, Slotted)}
        limit, kind = capacity(needs, settings.max_slots)
        self.slots = Slots(
            limit,
            kind=kind,
            staging=settings.staging_slots,
            queue_max=settings.slot_queue_max,
            is_bound=self.is_bound,
            is_idle=self.is_idle,
            give_way=give_way,
        )

    def claim(self, env: str) -> AbstractAsyncContextManager[None]:
        """Around an activation and what follows it at once: the environment has a slot and does not give way.

        Raises NoSlot.
        """
        return self.slots.claim(env, deadline_s=self._wait_s, waits=functools.partial(self._queued, env))

    def watch(self, gate: Gate) -> None:
        """Learn from a gate when its environment was used last."""
        gate.on_idle = functools.partial(self._fell_idle, gate.identity.env)

    def is_idle(self, env: str) -> bool:
        """Whether the environment is bound, nothing runs in it and no transition waits or is under way."""
        live = self._lives.get(env)
        if live is None or live.context is None or live.doubt or live.lock.locked():
            return False
        return not live.context.gate.live

    def is_bound(self, env: str) -> bool:
        """Whether a context of the environment serves."""
        live = self._lives.get(env)
        return live is not None and live.context is not None

    def _fell_idle(self, env: str, kind: Kind) -> None:
        if kind == "request":
            self.slots.look_again()  # a page that polls is not what keeps an environment in its slot
        else:
            self.slots.used(env)

    def _queued(self, env: str, position: int) -> None:
        event = EnvironmentQueued(at=self._ledger.clock.now(), env=env, kind=self.slots.kind, position=position)
        if env in self._ledger.world.environments:
            self._ledger.ride(env, event)
        else:
            self._ledger.ride_engine(event)
