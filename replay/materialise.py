"""Making a moment that nobody sealed: the nearest generation before it, and the recorded actions after that again.

They are carried out in the child, never in the source, and each observation is compared with the recorded one. What the
generation brings back of a page is looked at first: where the page does not look as it did when the generation was
published (its scripts held something that no snapshot carries), an earlier generation is taken, from before the last
navigation, so that the page is loaded by it again.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from statefork.engine.behind import unlike_behind
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref
from statefork.journal.log import Journal
from statefork.journal.values import Moment
from statefork.replay.lineage import Act, Trajectory, last_seen
from statefork.replay.rebuild import pasts_of
from statefork.replay.rollout import record
from statefork.replay.sameness import alike
from statefork.replay.stage import Progress, nobody_watches, play
from statefork.replay.verdict import Judge, RolloutResult, Verdict
from statefork.replay.way import Way

_WORST_FIRST: tuple[Verdict, ...] = ("diverged", "unverified", "equivalent")


async def materialise(
    kernel: Kernel, journal: Journal, blobs: Blobs, ref: Ref, child: str, *, progress: Progress = nobody_watches
) -> RolloutResult:
    """Bring a child, which was forked of the nearest generation, to the moment, and say whether it is the same.

    The child is left where it went otherwise. A ``replay.verdict`` event in the source's activity says what came of it.
    Raises UnknownRef, TransitionAborted, RuntimeDied.
    """
    with kernel.outside.closed(child):
        return await _materialise(kernel, journal, blobs, ref, child, progress)


async def _materialise(
    kernel: Kernel, journal: Journal, blobs: Blobs, ref: Ref, child: str, progress: Progress
) -> RolloutResult:
    began = time.monotonic()
    (way,) = await ways(kernel, journal, ref)
    start, passed_over = await _rewound(kernel, blobs, way, child)
    recording = way.recording(start)
    begin = kernel.environments[child].moment
    judge = await play(kernel, blobs, child, recording, progress)
    result = _result(ref, child, recording, judge, passed_over, began)
    if judge.divergence is None and recording.steps and isinstance(recording.steps[-1], Act):
        result = replace(result, ref=str(Ref(env=child, generation=begin.generation, plus=recording.actions)))
    await record(journal, result)
    return result


async def go_on(
    kernel: Kernel, journal: Journal, blobs: Blobs, made: RolloutResult, earlier: Ref, later: Ref, child: str
) -> RolloutResult:
    """Bring a child that was ``made`` at a moment to a later one of the same history, and say the same of all of it."""
    began = time.monotonic()
    with kernel.outside.closed(child):
        way, before = await ways(kernel, journal, later, earlier)
        rest = way.beyond(before)
        assert rest is not None, "they lie on one way"
        recording = way.recording(made.source, rest)
        judge = await play(kernel, blobs, child, recording)
    then = _result(later, child, recording, judge, made.passed_over, began)
    verdicts = (made.verdict, then.verdict)
    result = replace(
        then,
        verdict=next((one for one in _WORST_FIRST if one in verdicts), "exact-observed"),
        actions=made.actions + then.actions,
        steps=made.steps + then.steps,
        compared=made.compared + then.compared,
        unverified=made.unverified + then.unverified,
        masked=made.masked + then.masked,
        unasked=made.unasked + then.unasked,
    )
    await record(journal, result)
    return result


async def ways(kernel: Kernel, journal: Journal, *refs: Ref) -> list[Way]:
    """The ways to some moments. Raises UnknownRef."""
    await journal.flush()
    return [Way(ref, kernel.world, await pasts_of(journal, ref.env)) for ref in refs]


def _result(
    ref: Ref, child: str, recording: Trajectory, judge: Judge, passed_over: tuple[Moment, ...], began: float
) -> RolloutResult:
    return RolloutResult(
        env=ref.env,
        child=child,
        source=recording.origin,
        verdict=judge.verdict,
        actions=recording.actions,
        steps=len(recording.steps),
        compared=judge.compared,
        unverified=judge.unverified,
        masked=tuple(judge.masked),
        divergence=judge.divergence,
        by_step=tuple(judge.by_step),
        unasked=judge.unasked,
        kept=True,
        passed_over=passed_over,
        elapsed_ms=round((time.monotonic() - began) * 1000, 1),
    )


async def _rewound(kernel: Kernel, blobs: Blobs, way: Way, child: str) -> tuple[Moment, tuple[Moment, ...]]:
    """Where the child begins, looking as it did then, and the generations whose page was not brought back as it was."""
    passed_over: list[Moment] = []
    start = way.nearest
    if kernel.environments[child].actions != kernel.world.generation(start).actions:  # an earlier try was cut short
        await kernel.restore(child, start)
    while (recorded := last_seen(way.known, start)) is not None:
        seen = await kernel.observe(child)
        if alike(recorded, seen, kernel.contract.masks, blobs.get) and not await unlike_behind(kernel, child):
            break
        earlier = way.before_the_page(start)
        if earlier is None:
            break
        passed_over.append(start)
        start = earlier
        await kernel.restore(child, start)
    return start, tuple(passed_over)
