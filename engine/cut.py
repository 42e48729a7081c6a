"""One consistent cut: quiesce all, seal all; what was written in between makes it no cut.

The proof is not our own book-keeping alone: the stores' write counters and the gate's admissions must be the same
before the first seal and after the last.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from statefork.engine.contract import Contract
from statefork.engine.errors import TornCut, TransitionAborted
from statefork.engine.live import Run
from statefork.engine.ports import Resource
from statefork.engine.staging import Working, each
from statefork.journal.values import Component


async def take_cut(
    contract: Contract, resources: Mapping[str, Resource], run: Run, *, deadline_s: float
) -> dict[str, Component]:
    """Quiesce and seal a drained context. What was quiesced and sealed is in ``run``, also when this fails.

    Raises TornCut, ComponentFailed (ResourceBusy and others; what was under way when the deadline passed).
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
        raise TornCut(
            f"{context.identity.env} was written while it was sealed: {' '.join(written) or 'a request was admitted'}",
            hint="Nothing was published; try again.",
            environment=context.identity.env,
            component=written[0] if written else "",
        )
    return {
        name: Component(
            sealed=run.sealed[name],
            durability=contract.resources[name].durability,
            depends_on=contract.resources[name].depends_on,
        )
        for name in contract.order
    }
