"""Acting and judging under a lease: actions, observations, opaque spans, evaluations.

Each is one root lease, so it sees one generation, whole (I1). An action is journaled when it begins and when it ends;
one that was cancelled, revoked, fenced or timed out ended *unknown*: part of it may have happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anyio.lowlevel import checkpoint_if_cancelled

from statefork.engine.attempts import Attempts, Late
from statefork.engine.conductor import Conductor
from statefork.engine.errors import ActionFailed, ActionTimeout, InvalidAction, NotReady, ObservationLost
from statefork.engine.leases import Lease
from statefork.engine.ports import Actor, Slotted
from statefork.engine.staging import Context
from statefork.journal.errors import JournalError, StateforkError
from statefork.journal.events import ActionBegun, ActionEnded, EvaluationRecorded, Outcome
from statefork.journal.values import Binding, Conditions, Json, Observation, Value

NESTING_MAX = 32
"""Levels of lists and objects in an action: more than any has, and far from where readers of journals give up."""

OPAQUE: dict[str, Json] = {"type": "opaque"}
"""What the journal holds in the place of an action that can't be recorded."""


class ActResult(Value, frozen=True, kw_only=True):
    """How an action ended. ``number`` counts along the lineage; ``error`` is empty when the outcome is ok."""

    number: int
    outcome: Outcome
    observation: Observation | None = None
    error: str = ""
    code: str = ""  # of the error


class EvaluationContext:
    """What an evaluator may read: all of one generation."""

    def __init__(self, acting: Acting, lease: Lease, context: Context) -> None:
        self.env = lease.env
        self.generation = lease.generation
        self.epoch = lease.epoch
        self.bindings: Mapping[str, Binding] = context.bindings
        self._acting = acting
        self._lease = lease
        self._context = context

    async def observation(self) -> Observation:
        """What the agent would see now. Raises ActionTimeout."""
        return await self._acting.look(self._lease, self._context)


Check = Callable[[EvaluationContext], Awaitable[float | tuple[float, Json]]]


class Acting:
    """Acts through the contract's actors, by calls that can be walked away from."""

    def __init__(self, conductor: Conductor, attempts: Attempts) -> None:
        self._conductor = conductor
        self._attempts = attempts
        self._ledger = conductor.ledger
        found = {name: conductor.resources[name] for name in conductor.contract.order}
        actors = {name: one for name, one in found.items() if isinstance(one, Actor)}
        # What has a screen comes first: that is looked at where no action says by what.
        self._actors = dict(sorted(actors.items(), key=lambda item: not isinstance(item[1], Slotted)))

    def actor_of(self, context: Context, action: Mapping[str, Json] | None = None) -> tuple[Actor, Binding]:
        """The actor that knows the action (or the first one), and where it is bound. Raises InvalidAction, NotReady."""
        refused: InvalidAction | None = None
        for name, actor in self._actors.items():
            try:
                if action is not None:
                    actor.check(action)
            except InvalidAction as error:
                refused = refused or error
                continue
            return actor, context.bindings[name]
        if refused is not None:
            raise refused
        raise NotReady(
            "the contract has no resource through which an agent could act",
            hint="Add one with the adapter browser.",
            environment=context.identity.env,
        )

    def check(self, action: Mapping[str, Json]) -> None:
        """Raises InvalidAction unless one of the actors knows the action."""
        if _is_deeper(action, NESTING_MAX):
            raise InvalidAction(f"the action is nested more than {NESTING_MAX} levels deep", most=NESTING_MAX)
        refused: list[InvalidAction] = []
        for actor in self._actors.values():
            try:
                actor.check(action)
            except InvalidAction as error:
                refused.append(error)
            else:
                return
        if refused:
            raise _worst(action, refused)

    async def act(self, lease: Lease, context: Context, action: Mapping[str, Json], timeout_s: float) -> ActResult:
        """Carry out one action under a lease that the caller has entered.

        Returns `failed` where the world said no and `unknown` past the deadline; both are results, not errors. One
        that can't be ended then is fenced: the context is given up at its next use. Raises RuntimeDied,
        ObservationLost and whatever else ends the action from outside, after recording it as unknown.
        """
        actor, binding = self.actor_of(context, action)
        conditions = self._conductor.conditioning.begin(context.gate)
        span = _Span(self, lease, action, conditions)

        async def attempt() -> tuple[ActionFailed | None, Observation | None]:
            await self._conductor.conditioning.tell(context, conditions)
            try:
                return None, await actor.act(binding, action)
            except ActionFailed as error:
                return error, await self._look(actor, binding)

        try:
            error, seen = await self._attempts.run(
                f"{lease.holder} of {lease.env}", attempt, deadline_s=timeout_s, abandoned=lease.abandon
            )
            await checkpoint_if_cancelled()  # revoked when all was done, and not yet told: it is unknown to everybody
            lease.check_unspoilt()
            return span.end("ok" if error is None else "failed", error, seen)
        except Late as late:
            left = "" if late.joined else ", and can't be ended"
            return span.end("unknown", f"it took longer than {timeout_s:g} s{left}", None, code="action_timeout")
        except JournalError as error:  # of the blob store: the actor had acted already
            span.end("unknown", error, None)
            raise ObservationLost(
                f"action {span.number} of {lease.env} was carried out, and what was seen then can't be stored: "
                f"{error.message}",
                hint=f"{error.hint}; look before acting again" if error.hint else "Look before acting again",
                environment=lease.env,
                action=span.number,
            ) from error
        except BaseException as error:
            span.end("unknown", error if isinstance(error, Exception) else "it was cut short", None)
            raise

    async def _look(self, actor: Actor, binding: Binding) -> Observation | None:
        try:
            return await actor.observe(binding)
        except StateforkError:
            return None  # the failure of the action is the news; a page that can't be seen now is no second one

    async def _seen(self, lease: Lease, context: Context) -> Observation | None:
        try:
            return await self.look(lease, context)
        except StateforkError:
            return None  # what was done is done; that it can't be seen now changes nothing of it

    async def look(self, lease: Lease, context: Context) -> Observation:
        """What is to be seen now, under a lease that the caller has entered. Raises ActionTimeout."""
        actor, binding = self.actor_of(context)
        deadline_s = self._conductor.settings.act_timeout_s
        name = f"{lease.holder} of {lease.env}"
        try:
            return await self._attempts.run(
                name, lambda: actor.observe(binding), deadline_s=deadline_s, abandoned=lease.abandon
            )
        except Late:
            raise ActionTimeout(
                f"{lease.env} could not be looked at within {deadline_s:g} s",
                hint="Reset or restore it; what hangs there may go on.",
                environment=lease.env,
                generation=lease.generation,
            ) from None

    @asynccontextmanager
    async def raw(self, lease: Lease, context: Context) -> AsyncIterator[Any]:
        """The native object for one opaque action, under a lease that the caller has entered."""
        actor, binding = self.actor_of(context)
        conditions = self._conductor.conditioning.begin(context.gate)
        span = _Span(self, lease, OPAQUE, conditions)
        try:
            await self._conductor.conditioning.tell(context, conditions)
            async with actor.raw(binding) as native:
                yield native
            seen = await self._seen(lease, context)
            await checkpoint_if_cancelled()
            span.end("ok", None, seen)
        except BaseException as error:
            span.end("unknown", error if isinstance(error, Exception) else "it was cut short", None)
            raise

    async def evaluate(self, lease: Lease, context: Context, name: str, check: Check) -> float:
        """Judge under a lease that the caller has entered, and journal the verdict with the generation it is of."""
        answer = await check(EvaluationContext(self, lease, context))
        await checkpoint_if_cancelled()
        lease.check_unspoilt()
        score, detail = answer if isinstance(answer, tuple) else (answer, None)
        self._ledger.ride(
            lease.env,
            EvaluationRecorded(
                at=self._ledger.clock.now(),
                env=lease.env,
                generation=lease.generation,
                epoch=lease.epoch,
                lease=lease.id,
                name=name,
                score=float(score),
                after_action=self._ledger.world.capsule(lease.env).actions,
                detail=detail,
            ),
        )
        return float(score)


def _worst(action: Mapping[str, Json], refused: Sequence[InvalidAction]) -> InvalidAction:
    """Of whoever knows the action's type, for they know what is wrong; where nobody does, with all types there are."""
    for error in refused:
        if not error.known:
            return error
    return InvalidAction.unknown(
        action.get("type"), tuple(dict.fromkeys(kind for one in refused for kind in one.known))
    )


def _is_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects are nested deeper than that."""
    layer = [value]
    for _ in range(levels):
        inner = [one.values() if isinstance(one, Mapping) else one for one in layer if isinstance(one, Mapping | list)]
        layer = [item for items in inner for item in items]
        if not layer:
            return False
    return True


class _Span:
    """One action in the journal, from its beginning to its one end."""

    def __init__(self, acting: Acting, lease: Lease, action: Mapping[str, Json], conditions: Conditions | None) -> None:
        self._ledger = acting._ledger
        self._lease = lease
        self._began = self._ledger.clock.monotonic()
        self._where = (lease.generation, lease.epoch, lease.activation)
        self.result: ActResult | None = None
        self.number = self._ledger.world.capsule(lease.env).actions + 1
        generation, epoch, activation = self._where
        self._ledger.ride(
            lease.env,
            ActionBegun(
                at=self._ledger.clock.now(),
                env=lease.env,
                generation=generation,
                epoch=epoch,
                activation=activation,
                lease=lease.id,
                number=self.number,
                action=dict(action),
                seed=conditions.seed if conditions is not None else "",
                clock=conditions.now if conditions is not None else 0.0,
            ),
        )
        lease.on_fence = self._fenced

    def _fenced(self) -> None:
        self.end("unknown", "it could not be joined", None, code="lease_revoked")

    def end(
        self, outcome: Outcome, error: Exception | str | None, seen: Observation | None, *, code: str = ""
    ) -> ActResult:
        """Journal the end, once: after a fence the record stays as it is."""
        if self.result is not None:
            return self.result
        text = error.message if isinstance(error, StateforkError) else str(error or "")
        code = error.code if isinstance(error, StateforkError) else code
        generation, epoch, activation = self._where
        self.result = ActResult(number=self.number, outcome=outcome, observation=seen, error=text, code=code)
        self._ledger.ride(
            self._lease.env,
            ActionEnded(
                at=self._ledger.clock.now(),
                env=self._lease.env,
                generation=generation,
                epoch=epoch,
                activation=activation,
                lease=self._lease.id,
                number=self.number,
                outcome=outcome,
                error=text,
                observation=seen,
                elapsed_ms=round((self._ledger.clock.monotonic() - self._began) * 1000, 3),
            ),
        )
        return self.result
