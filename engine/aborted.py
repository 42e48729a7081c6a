"""What is said of a transition that failed, in the journal and to its caller."""

from __future__ import annotations

import anyio

from statefork.engine.errors import StateforkError, TransitionAborted
from statefork.engine.staging import ComponentFailed
from statefork.journal.values import Moment


def code_of(error: BaseException) -> str:
    """The stable code of what ended a transition."""
    if isinstance(error, ComponentFailed | StateforkError):
        return error.code
    return "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "failed"


def as_aborted(
    error: ComponentFailed, env: str, op: str, generation: int, source: Moment | None = None
) -> TransitionAborted:
    """The failure of a component as the caller gets it, with all the facts. ``source``: where it was to lead."""
    leading = "" if source is None else f" to {source}" if source.env == env else f" from {source}"
    remains = "serves on" if op != "activate" else "stays parked"
    left = f"{env}@{generation} {remains}" if generation else "Nothing of it is left"
    return TransitionAborted(
        f"{op} of {env}{leading} was aborted: {error.component}: {error.doing}: {error.said}",
        hint=f"{error.hint.rstrip('.')}. {left}" if error.hint else left,
        component=error.component,
        reason=str(error.cause),
        cause=error.code,
        **_facts(env, op, generation, source),
    )


def add_facts(error: BaseException, env: str, op: str, generation: int, source: Moment | None = None) -> None:
    """Complete the facts of an abort that was raised where they were not all known."""
    if isinstance(error, TransitionAborted):
        error.facts = {**_facts(env, op, generation, source), **error.facts}


def _facts(env: str, op: str, generation: int, source: Moment | None) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"environment": env, "operation": op, "generation": generation}
    return facts if source is None else {**facts, "source": str(source)}
