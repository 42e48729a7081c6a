"""Planted faults: leases, drain, gate, deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statefork.engine.acting import Acting, _Span
from statefork.engine.admission import Admitted
from statefork.engine.drain import Drain
from statefork.engine.leases import Gate, Lease
from statefork.simulation.mutants.planting import changed, mutant


@mutant("publish-before-drain", "I3", within=20)
def _() -> Iterator[None]:
    """A transition forgets who still runs, instead of waiting for them."""

    async def run(self: Drain, policy: object, *, may_fence: bool) -> None:
        self._context.gate.live.clear()
        self._context.gate.trees.clear()

    with changed(Drain, "run", run):
        yield


@mutant("lease-moved", "I1", "I3", within=20)
def _() -> Iterator[None]:
    """What runs during a snapshot is moved to the new generation."""
    moved: dict[Gate, dict[int, Lease]] = {}

    async def run(self: Drain, policy: object, *, may_fence: bool) -> None:
        gate = self._context.gate
        moved[gate] = dict(gate.live)
        gate.live.clear()
        gate.trees.clear()

    def reopened(self: Gate, generation: int) -> None:
        was(self, generation)
        self.live.update(moved.pop(self, {}))

    with changed(Drain, "run", run), changed(Gate, "open", reopened) as was:
        yield


@mutant("children-not-drained", "I3", within=50)
def _() -> Iterator[None]:
    """Child leases are granted and not counted."""

    def count_in(self: Gate, lease: Lease) -> None:
        if lease.parent is None:
            was(self, lease)
        else:
            lease.id = self.next_id()
            self.admissions += 1

    with changed(Gate, "count_in", count_in) as was:
        yield


@mutant("background-not-drained", "I3", within=50)
def _() -> Iterator[None]:
    """What servers still do when every lease has ended is not waited for."""

    async def nothing(self: Drain, *_: object, **__: object) -> None:
        pass

    with changed(Drain, "_drain_runtime", nothing):
        yield


@mutant("fenced-and-continued", "I3", within=100)
def _() -> Iterator[None]:
    """A snapshot, too, goes on without those who can't be joined."""

    async def run(self: Drain, policy: Any, *, may_fence: bool) -> None:
        await was(self, policy, may_fence=True)

    with changed(Drain, "run", run) as was:
        yield


@mutant("admitted-while-frozen", "I2", "I3", within=20)
def _() -> Iterator[None]:
    """A frozen environment grants root leases."""

    def check(self: Gate, lease: Lease) -> None:
        if self.ended:
            raise self.stale()

    with changed(Gate, "_check_open", check):
        yield


@mutant("old-ticket", "I7", within=30)
def _() -> Iterator[None]:
    """A request is let in by its environment's name: its epoch and activation are not looked at."""

    async def context(self: Admitted) -> Any:
        identity = self._request.identity
        live = self._conductor.lives.get(identity.env) if identity is not None else None
        return live.context if live is not None and live.context is not None else await was(self)

    with changed(Admitted, "_context", context) as was:
        yield


@mutant("gate-forgets-waiters", "wake-up", "progress", within=100)
def _() -> Iterator[None]:
    """An opened gate forgets those who wait at it, instead of waking them."""

    def wake(self: Gate) -> None:
        if not self.ended:
            return
        was(self)

    with changed(Gate, "_wake", wake) as was:
        yield


@mutant("deadline-ignored", "deadline", "progress", within=30)
def _() -> Iterator[None]:
    """An action that hangs is not ended at its deadline."""

    async def act(self: Acting, lease: Any, context: Any, action: Any, timeout_s: float) -> Any:
        return await was(self, lease, context, action, 1e9)

    with changed(Acting, "act", act) as was:
        yield


@mutant("revoked-is-ok", "outcome", within=50)
def _() -> Iterator[None]:
    """An action that was cut short is recorded as done."""

    def end(self: _Span, outcome: str, error: Any, seen: Any, *, code: str = "") -> Any:
        return was(self, "ok" if outcome == "unknown" else outcome, error, seen, code=code)

    with changed(_Span, "end", end) as was:
        yield
