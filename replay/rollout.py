"""Re-executing an environment's trajectory on a fresh fork of a generation, through the same engine."""

from __future__ import annotations

import time
from typing import NamedTuple

import anyio

from statefork.engine.kernel import Kernel
from statefork.engine.masks import Columned, Cookied
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref
from statefork.journal.events import ReplayVerdict, activity_stream
from statefork.journal.log import Append, Journal
from statefork.journal.values import Moment, Sealed
from statefork.replay.rebuild import pasts_of
from statefork.replay.stage import Progress, nobody_watches, play
from statefork.replay.steps import OnStep, nobody_asks
from statefork.replay.verdict import Judge, RolloutResult, Verdict
from statefork.replay.way import Way

__all__ = ["RolloutResult", "record", "rollout"]

RETIRE_TIMEOUT_S = 30.0


async def rollout(
    kernel: Kernel,
    journal: Journal,
    blobs: Blobs,
    end: Ref,
    *,
    start: Ref | None = None,
    keep: bool = False,
    states: bool = True,
    progress: Progress = nobody_watches,
    on_step: OnStep = nobody_asks,
) -> RolloutResult:
    """Re-execute what led to a moment, from the origin or the generation before ``start``, and compare step by step.

    ``on_step`` is told of each step, and may end it there by False: then it is unverified, unless that was the last.

    With ``states``, where a generation was published at the end, what the stores hold then is compared, too. The fork
    is retired afterwards unless ``keep``, and where there is no result in any case. A ``replay.verdict`` event in the
    environment's activity says what came of it. Raises UnknownRef, TransitionAborted, RuntimeDied.
    """
    began = time.monotonic()
    await journal.flush()
    way = Way(end, kernel.world, await pasts_of(journal, end.env))
    source = way.origin if start is None else way.before(start)
    recording = way.recording(source)
    child = await _fork(kernel, end.env, source, "" if keep else f"replay of {end}")
    kept = False
    try:
        with kernel.pinned(child):  # parked between two steps, it would go on from a page that was loaded again
            judge = await play(kernel, blobs, child, recording, progress, on_step=on_step)
            held = await _states(kernel, way, child) if states and _may_be_the_same(judge, way) else States({}, ())
        kept = keep
    finally:
        kernel.outside.open(child)
        if not kept:
            with anyio.move_on_after(RETIRE_TIMEOUT_S, shield=True):
                await kernel.retire(child)
    result = RolloutResult(
        env=end.env,
        child=child,
        source=source,
        verdict=verdict_of(judge, held),
        actions=recording.actions,
        steps=len(recording.steps),
        compared=judge.compared,
        unverified=judge.unverified,
        masked=tuple(judge.masked),
        divergence=judge.divergence,
        by_step=tuple(judge.by_step),
        unasked=judge.unasked,
        states=held.equal,
        masked_states=held.masked,
        expiries=held.expiries,
        kept=keep,
        elapsed_ms=round((time.monotonic() - began) * 1000, 1),
    )
    await record(journal, result)
    return result


def _may_be_the_same(judge: Judge, way: Way) -> bool:
    """Whether it is worth to compare what is held: nothing differed so far, and there is something to compare with."""
    return judge.divergence is None and judge.whole and way.stands


class States(NamedTuple):
    """Of each authoritative resource, whether it holds the same; and those that do but for what is masked.

    ``expiries``: the cookies, by domain, path and name, that are the same but for when they expire.
    """

    equal: dict[str, bool]
    masked: tuple[str, ...]
    expiries: tuple[str, ...] = ()


def verdict_of(judge: Judge, held: States) -> Verdict:
    """What was seen proves, or what is held, which says more."""
    if not held.equal or any(not same and name not in held.masked for name, same in held.equal.items()):
        return judge.verdict
    return "equivalent" if held.masked else "exact-state"


async def _states(kernel: Kernel, way: Way, child: str) -> States:
    """Compare what the child holds with what the moment's generation does, by their digests."""
    sealed = await kernel.snapshot(child)
    found = States({}, ())
    async with kernel.upkeep.reading():
        here, there = (kernel.world.generation(moment).manifest for moment in (sealed, way.nearest))
        for name, component in there.items():  # none where it was pruned meanwhile
            if component.durability == "authoritative":
                same, masked, expiries = await _held(kernel, name, (here[name].sealed, component.sealed))
                found.equal[name] = same
                found = found._replace(
                    masked=(*found.masked, name) if masked else found.masked, expiries=(*found.expiries, *expiries)
                )
    return found


async def _held(kernel: Kernel, name: str, sides: tuple[Sealed, Sealed]) -> tuple[bool, bool, tuple[str, ...]]:
    """Of one resource: whether both sides are the same, or but for what is masked, and which cookies' expiry differs.

    That alone makes no other state: a browser counts it from its own clock, and what is done later expires later.
    """
    resource, masks = kernel.resources[name], kernel.contract.masks
    one, other = [await resource.digest(side) for side in sides]
    if one == other:
        return True, False, ()
    columns, cookies = masks.columns_of(name), masks.cookies.get(name, ())
    if columns and isinstance(resource, Columned):
        one, other = [await resource.digest_without(side, columns) for side in sides]
        return False, one == other, ()
    if isinstance(resource, Cookied):
        for masked in ((), cookies) if cookies else ((),):
            left, right = [await resource.apart_from_cookies(side, masked) for side in sides]
            if left.digest == right.digest:
                differ = left.expiries.items() ^ right.expiries.items()
                return not masked, bool(masked), tuple(sorted({cookie for cookie, _ in differ}))
    return False, False, ()


async def _fork(kernel: Kernel, env: str, source: Moment, helps: str) -> str:
    """A fresh child, bound and ready."""
    name = await kernel.promise(env, "r")
    kernel.outside.close(name)  # also while its pages are brought back
    try:
        (made,) = await kernel.fork(source, (name,), helps=helps)
        if made.error is not None:
            raise made.error
    except BaseException as error:
        kernel.outside.open(name)
        child = kernel.environments.get(name)
        given_up = not isinstance(error, Exception)  # perhaps in the last moment
        if given_up and child is not None and child.helps == helps:
            with anyio.move_on_after(RETIRE_TIMEOUT_S, shield=True):
                await kernel.retire(name)
        raise
    finally:
        kernel.let_go(name)
    return name


async def record(journal: Journal, result: RolloutResult) -> None:
    """Journal the verdict beside what it is about."""
    verdict = ReplayVerdict(
        at=time.time(),
        env=result.env,
        child=result.child,
        source=result.source,
        actions=result.actions,
        verdict=result.verdict,
        first_divergence=result.first_divergence,
        copied_from=result.copied_from,
    )
    await journal.append(Append(stream=activity_stream(result.env), events=(verdict,)))
