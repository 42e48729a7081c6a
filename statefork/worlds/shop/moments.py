"""Forking a trajectory at every one of its actions, and seeing whether each fork is the same world.

A fork at action *k* is asked three things: how it was made (the verdict), whether it holds what the source held then
(where a generation was published there, or its digests were kept before it went), and whether the next action is seen
in it as it was seen in the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal

import anyio
import msgspec

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import Diverged, UnknownRef
from statefork.engine.masks import Columned, Cookied
from statefork.journal.errors import StateforkError
from statefork.journal.values import Component
from statefork.replay.lineage import Act, Step, Witnessed, trajectory
from statefork.replay.rebuild import pasts_of

Alike = Literal["same", "masked", "differs"]
"""``masked``: what is held is equal but for when cookies expire, and what else the contract's masks cover."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a resource holds at a moment, by digests: of all, and of what no mask covers."""

    whole: str
    uncovered: str

    def like(self, other: Held) -> Alike:
        """How much of it is equal."""
        if self.whole == other.whole:
            return "same"
        return "masked" if self.uncovered == other.uncovered else "differs"


Digests = Mapping[int, Mapping[str, Held]]
"""What the authoritative resources hold after so many actions."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A fork at one action."""

    ref: str
    verdict: str  # sealed (a generation stands there), or how it was made
    passed_over: tuple[str, ...] = ()  # generations whose page was not brought back as it was
    goes_on_alike: bool | None = None  # None: there was no next action to compare
    holds: dict[str, Alike] = {}  # by resource; empty where nothing is known of the moment but what was seen
    trouble: str = ""  # what went otherwise

    @property
    def alike(self) -> bool:
        """Nothing differed that is not covered by a mask."""
        return not self.trouble and self.goes_on_alike is not False and "differs" not in self.holds.values()


async def digests(engine: Engine, env: str) -> dict[int, dict[str, Held]]:
    """What each generation that stands holds, by the number of actions that led there: to be known when it has gone."""
    found: dict[int, dict[str, Held]] = {}
    for generation in list(engine.capsules[env].generations.values()):
        if not generation.pruned and generation.actions not in found:
            found[generation.actions] = await _held(engine, generation.manifest)
    return found


async def fork_everywhere(
    engine: Engine,
    env: str,
    *,
    seed: int,
    tell: Callable[[Tried], None],
    only: Sequence[int] = (),
    known: Digests | None = None,
    at_once: int = 1,
) -> list[Tried]:
    """Fork at each action, in an order of the seed's choice; the source is left alone, each fork is retired.

    ``known``: what was held at moments whose generations have gone (see :func:`digests`). ``at_once``: how many forks
    are alive together.
    """
    await engine.journal.flush()
    recorded = trajectory(await pasts_of(engine.journal, env), env)
    acts = [
        (step, witnessed)
        for step, witnessed in zip(recorded.steps, recorded.witnessed, strict=True)
        if isinstance(step, Act)
    ]
    numbers = list(only) or list(range(1, len(acts) + 1))
    Random(seed).shuffle(numbers)
    found: list[Tried] = []
    places = anyio.CapacityLimiter(at_once)

    async def one(number: int) -> None:
        following = acts[number] if number < len(acts) else None
        async with places:
            tried = await _try(engine, f"{env}#{number}", following, (known or {}).get(number))
        found.append(tried)
        tell(tried)

    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(one, number)
    return found


async def _try(
    engine: Engine, ref: str, following: tuple[Step, Witnessed] | None, known: Mapping[str, Held] | None
) -> Tried:
    try:
        (child,) = await engine.fork(ref)
    except Diverged as diverged:
        if child_name := str(diverged.facts.get("child", "")):
            await engine.environment(child_name).retire()
        return Tried(ref=ref, verdict="diverged", trouble=diverged.message)
    try:
        holds = await _holds(engine, ref, child, known)
        alike, trouble = await _goes_on(child, following)
    finally:
        await child.retire()
    return Tried(
        ref=ref,
        verdict=child.made.verdict if child.made is not None else "sealed",
        passed_over=tuple(map(str, child.made.passed_over)) if child.made is not None else (),
        goes_on_alike=alike,
        holds=holds,
        trouble=trouble,
    )


async def _holds(engine: Engine, ref: str, child: Environment, known: Mapping[str, Held] | None) -> dict[str, Alike]:
    """Whether the fork holds what the source held at the moment, by the digests of its authoritative resources."""
    if known is None:
        try:
            there = engine.kernel.world.generation(engine.moment(ref))
        except UnknownRef:
            return {}
        if there.pruned:
            return {}
        known = await _held(engine, there.manifest)
    here = await _held(engine, engine.kernel.world.generation(await child.snapshot()).manifest)
    return {name: here[name].like(there) for name, there in known.items()}


async def _held(engine: Engine, manifest: Mapping[str, Component]) -> dict[str, Held]:
    found = {}
    for name, component in manifest.items():
        if component.durability != "authoritative":
            continue
        resource, masks, sealed = engine.kernel.resources[name], engine.kernel.contract.masks, component.sealed
        whole = uncovered = await resource.digest(sealed)
        if (columns := masks.columns_of(name)) and isinstance(resource, Columned):
            uncovered = await resource.digest_without(sealed, columns)
        elif isinstance(resource, Cookied):
            uncovered = (await resource.apart_from_cookies(sealed, masks.cookies.get(name, ()))).digest
        found[name] = Held(whole=whole, uncovered=uncovered)
    return found


async def _goes_on(child: Environment, following: tuple[Step, Witnessed] | None) -> tuple[bool | None, str]:
    """Whether the next action is seen as it was seen in the source."""
    if following is None:
        return None, ""
    step, witnessed = following
    assert isinstance(step, Act)
    if step.opaque or witnessed.outcome == "unknown" or witnessed.observation is None:
        return None, ""
    try:
        seen = await child.act(step.action)
    except StateforkError as error:
        return witnessed.outcome == "failed", "" if witnessed.outcome == "failed" else error.message
    recorded = witnessed.observation
    if seen.observation.digest == recorded.digest:
        return True, ""
    where = "another address" if seen.observation.url != recorded.url else "another page"
    return False, f"action {step.number} ({step.action.get('type')}) shows {where}"


def compared(tried: Sequence[Tried]) -> dict[str, Counter[str]]:
    """Of each resource, how many forks held what the source did, and how many differed."""
    found: dict[str, Counter[str]] = {}
    for one in tried:
        for name, alike in one.holds.items():
            found.setdefault(name, Counter())[alike] += 1
    return found
