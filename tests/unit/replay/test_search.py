"""The first moment that fails: right for every place it may have, with few questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefork.replay.search import Answer, EndsAlike, Found, NothingBetween, first_failing

pytestmark = pytest.mark.anyio


async def search(good: int, bad: int, first: int, mute: frozenset[int] = frozenset()) -> Found:
    """All before ``first`` hold; nothing can be said of ``mute``."""

    async def ask(at: int) -> Answer:
        told = [one for one in asked if one not in mute]
        alike = all(one < first for one in told) or all(one >= first for one in told)
        assert good < at < bad or alike, "an end is asked only where all else was alike"
        assert at not in asked
        asked.append(at)
        if at in mute:
            return Answer.SKIP
        return Answer.HOLDS if at < first else Answer.FAILS

    asked: list[int] = []
    found = await first_failing(good, bad, ask)
    assert found.checks == len(asked)
    return found


@given(st.integers(0, 1000), st.lists(st.integers(1, 2000), min_size=2, max_size=2))
async def test_it_is_found_in_log2_checks(good: int, behind: list[int]) -> None:
    first, bad = (good + one for one in sorted(behind))
    found = await search(good, bad, first)
    assert (found.first, found.last, found.exact) == (first, first, True)
    ends = {good, bad} & found.answers.keys()
    assert found.checks <= math.ceil(math.log2(bad - good)) + len(ends)


@pytest.mark.parametrize("says", [Answer.HOLDS, Answer.FAILS])
async def test_between_neighbours_the_ends_are_asked(says: Answer) -> None:
    assert (await search(3, 4, 4)).answers == {3: "holds", 4: "fails"}
    asked: list[int] = []

    async def ask(at: int) -> Answer:
        asked.append(at)
        return says

    with pytest.raises(EndsAlike):
        await first_failing(3, 4, ask)
    assert asked == ([4] if says is Answer.HOLDS else [4, 3])


@pytest.mark.parametrize("first", [1, 2, 511, 512, 999, 1000])
async def test_of_a_thousand_actions_ten_are_asked(first: int) -> None:
    assert (await search(0, 1000, first)).checks <= 10


@given(st.lists(st.integers(1, 60), min_size=2, max_size=2), st.frozensets(st.integers(1, 60)))
async def test_where_it_cannot_be_said_a_span_is_told(behind: list[int], silent: frozenset[int]) -> None:
    first, bad = sorted(behind)
    mute = frozenset(one for one in silent if one <= bad)
    found = await search(0, bad, first, mute)
    assert found.first <= first <= found.last
    assert set(range(found.first, found.last)) <= mute
    assert found.last == bad or found.answers[found.last] == "fails"


@pytest.mark.parametrize(("good", "bad"), [(3, 3), (4, 3)])
async def test_two_ends_in_the_wrong_order_are_refused(good: int, bad: int) -> None:
    with pytest.raises(NothingBetween):
        await search(good, bad, 3)


@pytest.mark.parametrize(("answer", "name"), [(Answer.HOLDS, "BAD"), (Answer.FAILS, "GOOD")])
async def test_a_check_that_says_the_same_of_everything_is_told_so(answer: Answer, name: str) -> None:
    async def ask(at: int) -> Answer:
        return answer

    with pytest.raises(
        EndsAlike, match=f"the check {answer.value} at all 5 moments that were asked, {name} among them"
    ):
        await first_failing(0, 20, ask)
