"""Bisecting: which action broke it? Moments between two ends are made, and a check is asked about each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.forking import Forks
from statefork.engine.errors import UnknownRef
from statefork.engine.refs import Ref, nearest, parse_ref
from statefork.engine.world import World
from statefork.journal.values import Moment
from statefork.replay.search import Answer, Found, first_failing

T = TypeVar("T")

Check = Callable[[Environment], Awaitable[bool | None]]
"""Whether it holds in an environment that stands at one moment; None: that can't be said there."""

Watch = Callable[[str, str], None]
"""Called with each ref that was asked about, and the answer: holds, fails or skip."""


def nobody_watches(_ref: str, _answer: str) -> None:
    """Tells nobody."""


def answer_of(holds: bool | None) -> Answer:
    """What a check said."""
    return Answer.SKIP if holds is None else Answer.HOLDS if holds else Answer.FAILS


def settled(work: Coroutine[Any, Any, T]) -> T:
    """What comes of a coroutine that waits for nothing: all that it awaits is done when it returns."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits for something")


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of one history between two ends, by number."""

    prefix: str  # shop#, shop@7+
    low: int
    high: int

    def ref(self, number: int) -> str:
        """The name of a moment."""
        return f"{self.prefix}{number}"

    def told(self, found: Found) -> Bisection:
        """What was found, in refs."""
        return Bisection(
            first=self.ref(found.last),
            earliest=self.ref(found.first),
            checks=found.checks,
            answers={self.ref(number): answer for number, answer in found.answers.items()},
        )


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: the earliest moment known to fail. Before it there may be some that could not be judged."""

    first: str
    earliest: str  # from here on it may be; equal to ``first`` where it is certain
    checks: int
    answers: dict[str, str]

    @property
    def exact(self) -> bool:
        """It is one moment."""
        return self.first == self.earliest


def span(world: World, good: Ref, bad: Ref) -> Span:
    """The moments from ``good`` to ``bad``. Raises UnknownRef where they are not of one history, or never were."""
    nearest(bad, world.environments)
    if good.env == bad.env and good.generation is not None and good.generation == bad.generation:
        return Span(prefix=f"{good.env}@{good.generation}+", low=good.plus, high=bad.plus)
    low, high = (_number(world, ref, bad.env) for ref in (good, bad))
    return Span(prefix=f"{bad.env}#", low=low, high=high)


def _number(world: World, ref: Ref, env: str) -> int:
    """The lineage number of a moment on the way to an environment's present."""
    if ref.env == env and ref.generation is None:
        return ref.action if ref.action is not None else world.capsule(env).actions
    if ref.generation is not None and not ref.plus:
        for generation in world.lineage(world.capsule(env).moment):  # its content may be gone: the number counts
            if generation.moment == Moment(env=ref.env, generation=ref.generation):
                return generation.actions
    raise UnknownRef(
        f"{ref} is not a moment on the way to the present of {env}",
        hint=f"Name both ends as {env}#N, as generations of its history, or by actions after one generation "
        f"({env}@2+1, {env}@2+9)",
        ref=str(ref),
    )


class Bisecting:
    """Makes moments, asks, and takes them away again."""

    def __init__(self, forks: Forks, world: World) -> None:
        self._forks = forks
        self._world = world

    async def bisect(self, good: Ref, bad: Ref, check: Check, watch: Watch) -> Bisection:
        """See :meth:`statefork.adapters.interfaces.python.Engine.bisect`."""
        between = span(self._world, good, bad)

        async def ask(number: int) -> Answer:
            ref = between.ref(number)
            answer = await self._ask(ref, check)
            watch(ref, answer.value)
            return answer

        return between.told(await first_failing(between.low, between.high, ask))

    async def _ask(self, ref: str, check: Check) -> Answer:
        child = await self._forks.lend(parse_ref(ref), f"bisect, which asked about {ref}")
        try:
            holds = await check(child)
        finally:
            await self._forks.take_back(child.name)
        return answer_of(holds)
