"""Chance and time in an environment: under what conditions each action is carried out, and who is told.

Every action has conditions of its own, which are drawn, or given where it is a recorded one that is carried out again.
So what an action draws does not depend on what was drawn before it: a generation need not carry the state of any
generator, and children of one fork differ from their first actions on. A page is told when an action begins; a server
is told with each request (see :mod:`statefork.engine.tickets`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from statefork.engine.contract import Contract
from statefork.engine.leases import Gate
from statefork.engine.live import Live
from statefork.engine.ports import Clock, Resource
from statefork.engine.prevailing import Conditioned, Prevailing
from statefork.engine.staging import Context
from statefork.journal.values import Conditions

SEED_BYTES = 16
STEP_S = 1.0
"""In strict determinism, how far the pages' clock goes on by itself in the course of one action, at most."""


class Conditioning:
    """Draws the conditions of one engine's environments, and hands out those that were given."""

    def __init__(
        self, contract: Contract, resources: Mapping[str, Resource], clock: Clock, lives: Mapping[str, Live]
    ) -> None:
        self._clock = clock
        self._lives = lives
        self._strict = contract.determinism == "strict"
        on = contract.determinism != "off"
        self._told = {name: found for name, found in resources.items() if on and isinstance(found, Conditioned)}
        self._given: dict[str, Conditions] = {}

    def give(self, env: str, conditions: Conditions | None) -> None:
        """What the next action of an environment is carried out under, instead of what would be drawn.

        Where it is bound, requests that no action causes are answered under them from now on. None: nothing is given
        any more, and drawing goes on.
        """
        if conditions is None or not self._told:
            self._given.pop(env, None)
            return
        self._given[env] = conditions
        live = self._lives.get(env)
        if live is not None and live.context is not None:
            self._set(live.context.gate, conditions)

    def begin(self, gate: Gate, *, given: bool = True) -> Conditions | None:
        """The conditions that hold from now on; None where nothing in the contract would know what to do with them.

        ``given``: what was given to the environment comes before what would be drawn.
        """
        if not self._told:
            return None
        found = self._given.pop(gate.identity.env, None) if given else None
        conditions = found or self._drawn(gate)
        self._set(gate, conditions)
        return conditions

    def _drawn(self, gate: Gate) -> Conditions:
        now = 0.0
        if self._strict:
            before = gate.prevailing.conditions.now if gate.prevailing is not None else 0.0
            now = round(max(self._clock.now(), before + STEP_S), 3)
        return Conditions(seed=secrets.token_hex(SEED_BYTES), now=now)

    def _set(self, gate: Gate, conditions: Conditions) -> None:
        gate.prevailing = Prevailing(conditions=conditions, began=gate.now(), stands=self._strict)

    async def tell(self, context: Context, conditions: Conditions | None) -> None:
        """Tell those in whom code runs that was loaded before. Raises what the resources raise."""
        if conditions is None:
            return
        for name, resource in self._told.items():
            await resource.set_conditions(context.bindings[name], conditions)
