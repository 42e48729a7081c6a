"""One consistent cut: quiesce all, seal all; what was written in between makes it no cut.

The proof is not our own book-keeping alone: the stores' write counters and the gate's admissions must be the same
before the first seal and after the last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from statefork.engine.contract import Contract
from statefork.engine.errors import StateforkError, TornCut, TransitionAborted
from statefork.engine.live import Run
from statefork.engine.ports import Foresighted, Resource
from statefork.engine.staging import Working, each
from statefork.journal.values import Component, Sealed

Keep = Callable[[], Awaitable[None]]
"""Returns when everything that was sealed so far outlives the engine; raises a StateforkError where it can't."""


async def take_cut(
    contract: Contract,
    resources: Mapping[str, Resource],
    run: Run,
    *,
    deadline_s: float,
    keep: Keep | None = None,
    to_fork: bool = False,
) -> dict[str, Component]:
    """Quiesce and seal a drained context. What was quiesced and sealed is in ``run``, also when this fails.

    ``to_fork``: a branch of each will be wanted as soon as it is published.
    Raises TornCut, TransitionAborted (what was sealed can't be kept), ComponentFailed (ResourceBusy and others; what
    was under way when the deadline passed).
    """
    context = run.context
    assert context.gate.shut, "I2: a cut through an open gate"
    assert not context.gate.live, "I3: a cut through something that runs"
    marks: dict[str, str] = {}
    again: dict[str, str] = {}

    async def quiesce(name: str) -> None:
        run.quiesced.add(name)
        with run.timer(f"quiesce {name}"):
            await resources[name].quiesce(context.branches[name])

    async def seal(name: str) -> None:
        with run.timer(f"seal {name}"):
            if to_fork and isinstance(resource := resources[name], Foresighted):
                resource.expect_fork(context.branches[name])
            run.sealed[name] = await resources[name].seal(context.branches[name])

    async def mark(name: str) -> None:
        marks[name] = await resources[name].write_mark(context.branches[name])

    async def mark_again(name: str) -> None:
        again[name] = await resources[name].write_mark(context.branches[name])

    admissions = context.gate.admissions
    working = Working()
    with anyio.move_on_after(deadline_s) as late:
        with run.timer("quiesce"):
            await each(contract, quiesce, doing="quiescing", reverse=True, working=working)
        with run.timer("seal"):
            await each(contract, mark, doing="reading the write mark", ordered=False, working=working)
            await each(contract, seal, doing="sealing", ordered=False, working=working)
            await each(contract, mark_again, doing="reading the write mark", ordered=False, working=working)
    if late.cancelled_caught:
        raise working.late(deadline_s) or TransitionAborted(
            f"{context.identity.env} could not be sealed within {deadline_s:g} s"
        )
    written = [name for name in contract.order if marks[name] != again[name]]
    if written or admissions != context.gate.admissions:
        raise _torn(context.identity.env, written)
    await _kept(keep, run)
    return _components(contract, run.sealed)


def _torn(env: str, written: Sequence[str]) -> TornCut:
    return TornCut(
        f"{env} was written while it was sealed: {' '.join(written) or 'a request was admitted'}",
        hint="Nothing was published; try again.",
        environment=env,
        component=written[0] if written else "",
    )


def _components(contract: Contract, sealed: Mapping[str, Sealed]) -> dict[str, Component]:
    return {
        name: Component(
            sealed=sealed[name],
            durability=contract.resources[name].durability,
            depends_on=contract.resources[name].depends_on,
        )
        for name in contract.order
    }


async def _kept(keep: Keep | None, run: Run) -> None:
    if keep is None:
        return
    env = run.context.identity.env
    try:
        with run.timer("keep"):
            await keep()
    except StateforkError as error:
        raise TransitionAborted(
            f"what was sealed of {env} can't be kept: {error.message}",
            hint=error.hint,
            environment=env,
            reason=error.message,
            cause=error.code,
        ) from error
