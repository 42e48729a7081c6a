"""Doing a stretch of the past again, one step after the other, and publishing what each of them left.

For questions that no two generations answer: which of the steps between them did it?
"""

from __future__ import annotations

import msgspec

from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs
from statefork.engine.refs import moment_ref
from statefork.journal.log import Journal
from statefork.journal.values import Moment
from statefork.replay.lineage import Step, Trajectory, Witnessed
from statefork.replay.materialise import materialise
from statefork.replay.script import Played
from statefork.replay.stage import Progress, nobody_watches, play


class Retraced(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps left: ``moments`` has one generation more than steps were done. ``why``: it ended before the end,
    or proves nothing."""

    moments: tuple[Moment, ...]
    why: str = ""


async def retrace(
    kernel: Kernel,
    journal: Journal,
    blobs: Blobs,
    start: Moment,
    steps: list[tuple[Step, Witnessed]],
    child: str,
    *,
    progress: Progress = nobody_watches,
) -> Retraced:
    """Do the steps that followed a generation again, in a child that was forked of it.

    Stops where one goes otherwise than it was recorded, and where one can't be done again. Raises TransitionAborted.
    """
    made = await materialise(kernel, journal, blobs, moment_ref(start), child)
    if made.divergence is not None:
        return Retraced(moments=(), why=f"{start} could not be made again: {made.divergence.what}")
    moments = [await kernel.publish_changes(child)]

    async def after(played: Played) -> bool:
        if played.outcome == "skipped":
            return True
        moments.append(await kernel.publish_changes(child))
        return False

    recording = Trajectory(
        env=start.env,
        generation=start.generation,
        origin=start,
        contract=kernel.world.generation(start).contract,
        steps=tuple(step for step, _ in steps),
        witnessed=tuple(witnessed for _, witnessed in steps),
    )
    judge = await play(kernel, blobs, child, recording, progress, halt=after)
    if judge.divergence is not None:
        why = f"{judge.divergence.step} went otherwise this time: {judge.divergence.what}"
    else:
        why = judge.unverified[0] if judge.unverified else ""
    return Retraced(moments=tuple(moments), why=why)
