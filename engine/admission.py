"""Which lease a request gets: the attribution of what arrives at the gateway (I1, I2, I7).

A request belongs to the live context whose identity its door carries. There it is a child of the action (or, without
one, of the evaluation) that is running; during staging a child of the staging transition; otherwise it takes a root
lease of its own, which a frozen environment refuses. Messages of long-lived connections are held at the boundary
instead of refused while the environment is frozen. Every refusal is journaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType

from statefork.engine.capsule import Phase
from statefork.engine.conductor import Conductor
from statefork.engine.errors import (
    EnvironmentElsewhere,
    EnvironmentFrozen,
    EnvironmentRetired,
    InDoubt,
    LimitReached,
    StaleGeneration,
    UnknownEnvironment,
)
from statefork.engine.leases import Gate, Lease
from statefork.engine.ledger import Ledger
from statefork.engine.ports import AdmissionRequest, RequestLease
from statefork.engine.staging import Context
from statefork.engine.tickets import heard_conditions
from statefork.journal.errors import StateforkError
from statefork.journal.events import InputRecorded, RequestRefused
from statefork.journal.values import Identity

_HELD_KINDS = ("websocket-message", "event-stream-message")
_STATUS = {
    EnvironmentFrozen: 503,
    InDoubt: 503,
    LimitReached: 503,
    StaleGeneration: 409,
    UnknownEnvironment: 421,
    EnvironmentElsewhere: 421,
    EnvironmentRetired: 421,
}


class Admitted:
    """The async context manager around one request. Entering decides; the lease's rules hold for the body."""

    __slots__ = ("_conductor", "_lease", "_request")

    def __init__(self, conductor: Conductor, request: AdmissionRequest) -> None:
        self._conductor = conductor
        self._request = request
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        request = self._request
        try:
            async with self._slot():
                gate = (await self._context()).gate
                while gate.shut and not gate.ended and await self._held_back(gate):
                    gate = (await self._context()).gate
                self._check_epoch(gate.identity)
                cause, remote = self._cause(gate), self._conductor.ledger.remote
                if remote is not None and remote.away and cause is None:
                    await remote.reachable()  # what it does would stand nowhere
                    cause = self._cause(gate)
                lease = gate.lease(f"{request.method} {request.url}", "request", cause)
                await lease.__aenter__()
        except StateforkError as error:
            status = _STATUS.get(type(error))
            if status is not None:
                refuse(self._conductor, request, status=status, code=error.code, detail=error.message)
            raise
        self._lease = lease
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)

    def _cause(self, gate: Gate) -> Lease | None:
        through_site_door = self._request.identity is None
        return gate.cause("evaluation") if through_site_door else gate.cause("action", "staging", "evaluation")

    async def _held_back(self, gate: Gate) -> bool:
        """Wait for what comes, where that is right; True when it should be looked for again.

        What somebody caused who is still at work is never held: the freeze waits for him, and he for his answer. A
        page's own requests are refused at once: a page that waits for an answer can't be captured.
        """
        if gate.cause("action", "staging", "evaluation") is not None:
            return False
        if self._request.kind in _HELD_KINDS:
            await gate.moved()
            return True
        return self._request.identity is None and await gate.held_back()

    def _slot(self) -> AbstractAsyncContextManager[None]:
        """A request at the door of a parked environment's site binds it, and keeps it so until it has its lease."""
        env, conductor = self._request.env, self._conductor
        if self._request.identity is not None or not conductor.needs_slot(env):
            return nullcontext()
        return conductor.seating.claim(env)

    async def _context(self) -> Context:
        request, conductor = self._request, self._conductor
        identity = request.identity
        env = identity.env if identity is not None else request.env
        live = conductor.lives.get(env)
        if identity is not None:
            for context in (live.context, live.staged) if live is not None else ():
                if context is not None and context.identity == identity:
                    return context
            raise self._stale(identity)
        capsule = conductor.usable(env)
        if capsule.phase is Phase.RETIRED:
            raise EnvironmentRetired(f"{env} has ended", environment=env)
        serving = live.context if live is not None else None
        if serving is not None and conductor.died(serving) and serving.gate.cause("evaluation") is None:
            await conductor.recover(env, serving)
            serving = None
        if serving is None:
            await conductor.activate(env)
            serving = conductor.live(env).context
        if serving is None:
            raise EnvironmentFrozen(f"{env} is not served now", hint="Try again shortly.", environment=env)
        return serving

    def _stale(self, identity: Identity) -> StateforkError:
        capsule = self._conductor.ledger.world.environments.get(identity.env)
        if capsule is None:
            return UnknownEnvironment(f"there is no environment {identity.env}", environment=identity.env)
        live = self._conductor.lives.get(identity.env)
        now = live.context.identity if live is not None and live.context is not None else None
        return StaleGeneration(
            f"the request is of epoch {identity.epoch}, activation {identity.activation} of {identity.env}; "
            f"now epoch {capsule.epoch}{f', activation {now.activation}' if now else ' is parked'} is served",
            environment=identity.env,
            epoch=identity.epoch,
            epoch_now=capsule.epoch,
            activation=identity.activation,
            activation_now=now.activation if now is not None else 0,
        )

    def _check_epoch(self, identity: Identity) -> None:
        pinned = self._request.pinned_epoch
        if pinned is not None and pinned != identity.epoch:
            raise StaleGeneration(
                f"the client insists on epoch {pinned} of {identity.env}; now epoch {identity.epoch} is served",
                environment=identity.env,
                epoch=pinned,
                epoch_now=identity.epoch,
            )


def refuse(conductor: Conductor, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
    """Journal a refusal: in the environment's activity where there is such an environment, else in the engine's."""
    identity = request.identity
    env = identity.env if identity is not None else request.env
    ledger = conductor.ledger
    event = RequestRefused(
        at=ledger.clock.now(),
        env=env,
        epoch=identity.epoch if identity is not None else 0,
        activation=identity.activation if identity is not None else 0,
        status=status,
        code=code,
        method=request.method,
        url=request.url,
        detail=detail,
    )
    if env in ledger.world.environments:
        ledger.ride(env, event)
    else:
        ledger.ride_engine(event)


def record_input(
    ledger: Ledger, lease: RequestLease, *, method: str, url: str, headers: Mapping[str, str], body: str, status: int
) -> None:
    """Journal a mutating request of a root lease; ``body``: the digest of its blob."""
    env = lease.identity.env
    seed, clock = heard_conditions(lease.conditions)
    ledger.ride(
        env,
        InputRecorded(
            at=ledger.clock.now(),
            env=env,
            generation=lease.generation,
            epoch=lease.identity.epoch,
            lease=lease.id,
            after_action=ledger.world.capsule(env).actions,
            method=method,
            url=url,
            headers=dict(headers),
            body=body,
            status=status,
            seed=seed,
            clock=clock,
        ),
    )
