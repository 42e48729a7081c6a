"""Drain: what is under way on a frozen environment ends, is revoked and joined, is fenced, or stops the transition.

First the leases, then what the runtimes still do for the environment when every lease has ended (a thread after its
response). Whatever it waits for, cuts off or finds at rest is accounted for by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from statefork.engine.errors import DrainTimeout
from statefork.engine.ledger import Ledger
from statefork.engine.ports import Drainable, Resource
from statefork.engine.settings import DrainPolicy
from statefork.engine.staging import ComponentFailed, Context
from statefork.journal.events import LeaseRevoked
from statefork.journal.values import Held


class Drain:
    """One drain of one context. ``held`` tells what was found open and how it ended, at any moment."""

    def __init__(self, ledger: Ledger, resources: Mapping[str, Resource], context: Context, *, names_max: int) -> None:
        self._ledger = ledger
        self._resources = {name: found for name, found in resources.items() if isinstance(found, Drainable)}
        self._context = context
        self._names_max = names_max
        self._background: list[Held] = []

    @property
    def held(self) -> tuple[Held, ...]:
        """What was open, at most ``names_max`` names; the last one says how many more there were."""
        found = [*self._context.gate.held, *self._background]
        if len(found) <= self._names_max:
            return tuple(found)
        found.sort(key=lambda one: one.how == "ended")  # what did not end by itself is never left out first
        rest = Held(holder=f"… and {len(found) - self._names_max + 1} more", how="ended")
        return (*found[: self._names_max - 1], rest)

    async def run(self, policy: DrainPolicy, *, may_fence: bool) -> None:
        """Return when nothing is live any more. Raises DrainTimeout naming the holders, and leaves them alone then."""
        deadline = anyio.current_time() + policy.deadline_s
        with anyio.move_on_after(policy.deadline_s):
            await self._context.gate.idle()
        if self._context.gate.live:
            await self._late(policy, may_fence=may_fence)
        if self._context.gate.abandoned and not may_fence:
            raise self._abandoned()
        for name in self._resources:
            await self._drain_runtime(name, policy, max(deadline - anyio.current_time(), 0.0), may_fence=may_fence)
        assert not self._context.gate.live, "I3: drained, and a lease is live"

    async def _late(self, policy: DrainPolicy, *, may_fence: bool) -> None:
        gate = self._context.gate
        if policy.then == "abort":
            raise self._timeout([lease.holder for lease in gate.live.values()], "still under way at the drain deadline")
        for lease in gate.revoke_all("a transition did not wait any longer"):
            self._ledger.ride(
                lease.env,
                LeaseRevoked(
                    at=self._ledger.clock.now(),
                    env=lease.env,
                    generation=lease.generation,
                    lease=lease.id,
                    holder=lease.holder,
                    reason="drain deadline",
                ),
            )
        with anyio.move_on_after(policy.join_s):
            await gate.idle()
        if not gate.live:
            return
        if not may_fence:
            raise self._timeout([lease.holder for lease in gate.live.values()], "revoked, but can't be joined")
        gate.fence()

    def _abandoned(self) -> DrainTimeout:
        """Something that was given up may still write: nothing continuing leads on from here (I3)."""
        identity, holder = self._context.identity, self._context.gate.abandoned
        return DrainTimeout(
            f"{identity.env} has something that can't be ended and may still write: {holder}",
            hint="Reset or restore it; its next use gives up what came after its last published generation.",
            environment=identity.env,
            holders=holder,
            reason="it was cancelled, and can't be joined",
        )

    async def _drain_runtime(self, name: str, policy: DrainPolicy, left_s: float, *, may_fence: bool) -> None:
        resource, branch = self._resources[name], self._context.branches[name]
        began = self._ledger.clock.monotonic()
        try:
            pending = await resource.pending(branch)
            if not pending:
                return
            with anyio.move_on_after(left_s) as late:
                await resource.drained(branch)
            if not late.cancelled_caught:
                self._note(name, pending, "ended", began)
                return
            pending = await resource.pending(branch)
            if policy.then == "abort":
                raise self._timeout([f"{name}: {what}" for what in pending], "still working at the drain deadline")
            alive = await resource.terminate(branch)
        except DrainTimeout:
            raise
        except Exception as error:
            raise ComponentFailed(name, "draining", error) from error
        self._note(name, tuple(what for what in pending if what not in alive), "revoked", began)
        if alive and not may_fence:
            raise self._timeout([f"{name}: {what}" for what in alive], "can't be ended")
        self._note(name, alive, "fenced", began)

    def _note(self, name: str, what: tuple[str, ...], how: str, began: float) -> None:
        waited_ms = round((self._ledger.clock.monotonic() - began) * 1000, 3)
        self._background.extend(Held(holder=f"{name}: {work}", how=how, waited_ms=waited_ms) for work in what)

    def _timeout(self, holders: list[str], why: str) -> DrainTimeout:
        shown = ", ".join(holders[: self._names_max]) or "something"
        return DrainTimeout(
            f"{self._context.identity.env} could not be drained: {shown}: {why}",
            hint="Wait for it, end it, or drain with `revoke`.",
            environment=self._context.identity.env,
            holders=shown,
            reason=why,
        )
