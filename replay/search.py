"""Finding the first moment at which something does not hold any more, by asking at few of them."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

import msgspec

from statefork.journal.errors import StateforkError


class Answer(enum.Enum):
    """What a check says of one moment."""

    HOLDS = "holds"
    FAILS = "fails"
    SKIP = "skip"  # it can't be said here


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The first moment that fails, as far as could be said. ``first`` = ``last``: it is this one."""

    first: int  # the earliest that it may be
    last: int  # the earliest that is known to fail
    checks: int
    answers: dict[int, str]

    @property
    def exact(self) -> bool:
        """It is one moment, not a span of moments at which nothing could be said."""
        return self.first == self.last


class NothingBetween(StateforkError):
    """The two ends are not in this order, or are one moment."""

    code = "nothing_between"


class EndsAlike(StateforkError):
    """A check says the same of every moment, also of the end at which it should not."""

    code = "ends_alike"


Ask = Callable[[int], Awaitable[Answer]]


async def first_failing(good: int, bad: int, ask: Ask) -> Found:
    """Of the moments after ``good`` up to ``bad`` the first that fails, if all before it hold and all after it fail.

    Asks about log2(bad - good) moments; where one can't be said, its neighbours. The ends are not asked, for whoever
    names them knows, unless all answers are alike: then the end that they lead to is; and the failing one where nothing
    was said of any in between. Raises NothingBetween, and EndsAlike where that end is not what it was said to be.
    """
    if not good < bad:
        raise NothingBetween(
            f"there is nothing between action {good} and action {bad}", hint="Name the moment that holds first"
        )
    ends, answers = (good, bad), dict[int, Answer]()
    while (at := _next(good, bad, answers)) is not None:
        answer = answers[at] = await ask(at)
        if answer is Answer.HOLDS:
            good = at
        elif answer is Answer.FAILS:
            bad = at
    await _check_end(ends, answers, ask)
    told = {number: answer.value for number, answer in sorted(answers.items())}
    return Found(first=good + 1, last=bad, checks=len(answers), answers=told)


async def _check_end(ends: tuple[int, int], answers: dict[int, Answer], ask: Ask) -> None:
    """Where everything in between holds, or fails, the check may say the same of everything there is."""
    if not {Answer.HOLDS, Answer.FAILS} & set(answers.values()):
        answers[ends[1]] = await ask(ends[1])
    said = set(answers.values()) - {Answer.SKIP}
    for end, name, wanted in zip(ends, ("GOOD", "BAD"), (Answer.HOLDS, Answer.FAILS), strict=True):
        other = Answer.FAILS if wanted is Answer.HOLDS else Answer.HOLDS
        if said == {other}:
            if end not in answers:
                answers[end] = await ask(end)
            if answers[end] is other:
                raise EndsAlike(
                    f"the check {answers[end].value} at all {len(answers)} moments that were asked, {name} among them",
                    hint="See what it does at both ends: it may not look at what it means to",
                    checks=len(answers),
                )


def _next(good: int, bad: int, answers: dict[int, Answer]) -> int | None:
    """The moment to ask about: nearest to the middle, of those that were not asked yet."""
    failing = Answer.FAILS in answers.values()
    middle = (good + bad + (not failing)) // 2  # so that one more question at the end stays within the same number
    open_still = (at for at in range(good + 1, bad) if at not in answers)
    return min(open_still, key=lambda at: abs(at - middle), default=None)
