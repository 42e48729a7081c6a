"""Every exception of the engine, each with a stable code. Adapters raise these or subclasses of them.

The journal's own faults live in :mod:`statefork.journal.errors` and share the root class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from statefork.engine.places import Problem
from statefork.journal.errors import StateforkError

__all__ = ["StateforkError"]

_NAMES_TOLD = 20


class ContractError(StateforkError):
    """A contract can't be used; ``facts`` has ``file``, ``line`` and ``key`` as far as they are known.

    ``problems`` has everything that is wrong, each with its place; ``facts`` are of the first.
    """

    code = "contract_error"

    def __init__(
        self,
        message: str,
        *,
        problems: Sequence[Problem] = (),
        hint: str = "",
        **facts: str | int | float | bool | None,
    ) -> None:
        super().__init__(message, hint=hint, **facts)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Sequence[Problem], *, hint: str = "") -> ContractError:
        """One error that tells all the problems, a line each."""
        assert problems
        first = problems[0].place
        lines = [str(problem) for problem in problems]
        message = lines[0] if len(lines) == 1 else "\n  ".join([f"{first.file}: {len(lines)} problems", *lines])
        where: dict[str, str | int] = {"file": first.file, "line": first.line, "column": first.column, "key": first.key}
        return cls(message, problems=problems, hint=hint, **where)


class UnknownRef(StateforkError):
    """A ref names an environment, generation or action that this journal does not hold."""

    code = "unknown_ref"


class GenerationPruned(UnknownRef):
    """A generation's content is not kept any more; what was done before it can be done again."""

    code = "generation_pruned"


class InvalidName(UnknownRef):
    """The text can't be an environment's name."""

    code = "invalid_name"


class UnknownEnvironment(StateforkError):
    """No live environment has this name."""

    code = "unknown_environment"


class EnvironmentExists(StateforkError):
    """The name is taken, now or in history: names are never used twice in a journal."""

    code = "environment_exists"


class EnvironmentElsewhere(StateforkError):
    """The environment lives in another state directory of this journal. ``facts``: environment, place, where."""

    code = "environment_elsewhere"


class EnvironmentRetired(StateforkError):
    """The environment has ended; its history can still be read and forked."""

    code = "environment_retired"


class EnvironmentFrozen(StateforkError):
    """A transition is under way: no root lease is granted between freeze and publish. Try again shortly."""

    code = "environment_frozen"


class StaleGeneration(StateforkError):
    """The caller's epoch or generation is not the environment's; both are named."""

    code = "stale_generation"


class IllegalTransition(StateforkError):
    """The transition table has no such row: the command makes no sense in the environment's phase."""

    code = "illegal_transition"


class HeldByCaller(StateforkError):
    """The caller holds a lease on the environment that it wants to change, and would wait for itself."""

    code = "held_by_caller"


class NotReady(StateforkError):
    """A resource is not bound, or has not passed its readiness probe."""

    code = "not_ready"


class EngineClosed(StateforkError):
    """The engine was closed before the call, or while it ran."""

    code = "engine_closed"

    @classmethod
    def of(cls) -> EngineClosed:
        """The error for those who come when an engine closes or has closed, and who wait there."""
        return cls("the engine closes, and begins nothing any more", hint="Open it again.")


class LimitReached(StateforkError):
    """More was asked for at once than the engine takes. ``facts``: limit (its name in Settings), most, asked."""

    code = "limit_reached"

    @classmethod
    def of(cls, limit: str, most: int, what: str, hint: str = "", **facts: str | int) -> LimitReached:
        """The error of one more than ``most``."""
        return cls(
            f"{what}: the limit {limit} = {most} is reached",
            hint=hint or "Come again when some of them have ended, or raise the limit in the engine's settings.",
            limit=limit,
            most=most,
            asked=most + 1,
            **facts,
        )


class OutOfRange(StateforkError):
    """A number that means nothing there: no children, no time at all. ``facts``: what, asked."""

    code = "out_of_range"


class KeyReused(StateforkError):
    """A command's key was given before with another command. ``facts``: key, before, now (both commands in words)."""

    code = "key_reused"


class InvalidKey(StateforkError):
    """The text can't be a command's key."""

    code = "invalid_key"


class NoSlot(StateforkError):
    """An environment waited for a slot until its deadline. ``facts``: environment, kind, slots, position."""

    code = "no_slot"


class LeaseRevoked(StateforkError):
    """The holder's lease was revoked while it ran; its outcome is unknown."""

    code = "lease_revoked"


class TransitionAborted(StateforkError):
    """A transition failed; the old generation serves. ``facts``: environment, operation, component, reason.

    ``facts`` also have the old ``generation`` and, where the transition was to lead to another one, that as ``source``.
    """

    code = "transition_aborted"


class DrainTimeout(TransitionAborted):
    """Leases were still live at the drain deadline and the policy was ``abort``; the holders are named."""

    code = "drain_timeout"


class TornCut(TransitionAborted):
    """Something wrote between the first and the last seal, so the components are not of one moment."""

    code = "torn_cut"


SETTLE_HINT = "Try again when the journal can be reached: every command on the environment asks first, recover too."


class InDoubt(StateforkError):
    """An append got no answer and could not be read back: the environment stays frozen until the journal can be asked.

    Every later command on the environment asks first; so does opening the state directory again.
    """

    code = "in_doubt"

    @classmethod
    def of(cls, env: str) -> InDoubt:
        """The error for those who come to a frozen environment, and who wait there."""
        return cls(
            f"{env} is frozen: an append got no answer and could not be settled",
            hint=SETTLE_HINT,
            environment=env,
        )


class PartialFailure(StateforkError):
    """Some environments of a bulk command failed. ``done`` names the others, ``failed`` gives each failure by name."""

    code = "partial_failure"

    def __init__(self, doing: str, done: Sequence[str], failed: Mapping[str, StateforkError]) -> None:
        first = next(iter(failed.values()))
        super().__init__(
            f"{doing} of {len(failed)} of {len(done) + len(failed)} environments failed ({', '.join(failed)}): "
            f"{first.message}",
            hint="The others are done; a command with a key can be given again, and does only the rest" if done else "",
            done=", ".join(done),
            failed=", ".join(failed),
        )
        self.done = tuple(done)
        self.failed = dict(failed)


class PartialFork(StateforkError):
    """Some children of a fork failed. ``born`` names the survivors, ``failed`` gives each failure by name."""

    code = "partial_fork"

    def __init__(self, source: str, born: Sequence[str], failed: Mapping[str, StateforkError]) -> None:
        first = next(iter(failed.values()))
        super().__init__(
            f"{len(failed)} of {len(born) + len(failed)} children of {source} failed ({', '.join(failed)}): "
            f"{first.message}",
            hint=f"{_few(born)} serve; fork again for the rest" if born else "Nothing of them is left; fork again",
            source=source,
            born=", ".join(born),
            failed=", ".join(failed),
        )
        self.born = tuple(born)
        self.failed = dict(failed)


class NotRecorded(StateforkError):
    """A page that is made again asked a host outside of its world what it had not asked when it was recorded."""

    code = "not_recorded"


class Diverged(StateforkError):
    """What was done again went otherwise than when it was recorded. ``result`` says where, and what was seen."""

    code = "diverged"
    result: Any = None  # the whole comparison, where an interface has it


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_TOLD])
    return shown if len(names) <= _NAMES_TOLD else f"{shown} and {len(names) - _NAMES_TOLD} others"


class ResourceBusy(StateforkError):
    """A resource can't be sealed without breaking somebody (an open transaction, a session lock); it is named."""

    code = "resource_busy"


class ResourceFailed(StateforkError):
    """An adapter could not do what it was asked; ``facts`` names resource and environment."""

    code = "resource_failed"


class RuntimeDied(ResourceFailed):
    """A shared process or a page ended under an operation."""

    code = "runtime_died"


class ResourceUnreachable(StateforkError):
    """A server that a resource needs does not answer, or lets nobody in as was told: nothing was begun."""

    code = "resource_unreachable"


class ActionFailed(StateforkError):
    """The action was carried out and the world said no: no such element, navigation error, time-out inside the page."""

    code = "action_failed"
    seen: Any = None  # what was seen after it, where an interface has looked


class InvalidAction(StateforkError):
    """The action is not of any known kind or its fields do not fit; nothing was done."""

    code = "invalid_action"
    known: tuple[str, ...] = ()  # the types that there are, where it is of none

    @classmethod
    def unknown(cls, kind: object, known: Sequence[str]) -> InvalidAction:
        """The error for an action's type that is none of those known."""
        if kind is None:
            told = "the action has no type"
        else:
            near = get_close_matches(str(kind), known, n=1)
            told = f"there is no action {kind!r}{f'; did you mean {near[0]!r}?' if near else ''}"
        error = cls(told, hint=f"There are: {', '.join(known)}", field="type")
        error.known = tuple(known)
        return error


class ActionTimeout(StateforkError):
    """The action passed its deadline: its outcome is unknown."""

    code = "action_timeout"


class ObservationLost(StateforkError):
    """The action was carried out, and what was seen then could not be stored: its outcome is unknown."""

    code = "observation_lost"


class ForeignHandle(StateforkError):
    """A handle or ref belongs to another journal."""

    code = "foreign_handle"


class MissingDependency(StateforkError):
    """Something must be installed on this machine; ``hint`` says exactly what. The CLI exits with 2."""

    code = "missing_dependency"
