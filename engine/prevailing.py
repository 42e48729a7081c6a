"""The conditions that hold in an execution context now: chance and time, as the code of its environment meets them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from statefork.engine.tickets import tell_conditions
from statefork.journal.values import Binding, Conditions


@runtime_checkable
class Conditioned(Protocol):
    """A resource (see engine.ports) in which code runs that reads clocks and draws random numbers."""

    async def set_conditions(self, binding: Binding, conditions: Conditions) -> None:
        """From here on, until it is called again. What a request brings by itself (see tickets) need not be set."""
        ...


class Prevailing(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that hold in an execution context, since ``began`` (on its gate's clock)."""

    conditions: Conditions
    began: float
    stands: bool  # its clocks stand still

    def told(self, now: float) -> str:
        """What a server is told of them with a request that begins ``now`` (on the gate's clock)."""
        start = self.conditions.now
        runs = start and not self.stands
        return tell_conditions(self.conditions.seed, start + (now - self.began) if runs else start)
