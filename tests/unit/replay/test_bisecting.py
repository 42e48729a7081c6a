"""Which action broke it: found among moments that nobody sealed."""

from __future__ import annotations

import pytest

from statefork.adapters.interfaces.bisecting import Bisecting, span
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.forking import Forks
from statefork.engine.capsule import Phase
from statefork.engine.errors import UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.journal.blobs import MemoryBlobs
from statefork.replay.search import NothingBetween
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


class Scene:
    """An environment in which action 5 of 9 breaks the shop."""

    def __init__(self, house: House, kernel: Kernel) -> None:
        assert house.journal is not None
        self.house = house
        self.kernel = kernel
        self.bisecting = Bisecting(Forks(kernel, house.journal, MemoryBlobs()), kernel.world)
        self.asked: list[tuple[str, str]] = []

    async def begin(self) -> None:
        await self.kernel.create("a")
        for number in range(1, 10):
            await put(self.kernel, "a", "price" if number == 5 else f"k{number}", number)
            if number in (3, 6):
                await self.kernel.snapshot("a")

    async def check(self, env: Environment) -> bool | None:
        content = self.house.content(self.kernel, env.name)
        await put(self.kernel, env.name, "mess", 1)  # it may do what it likes
        return "price" not in content

    async def bisect(self, good: str, bad: str) -> tuple[str, bool, int]:
        found = await self.bisecting.bisect(
            parse_ref(good), parse_ref(bad), self.check, lambda ref, answer: self.asked.append((ref, answer))
        )
        assert len(self.asked) == found.checks
        assert dict(self.asked) == found.answers
        return found.first, found.exact, found.checks


@pytest.mark.parametrize(
    ("good", "bad"), [("a#0", "a"), ("a#1", "a#9"), ("a@1", "a@3"), ("a@1", "a#8"), ("a#4", "a#5")]
)
async def test_the_action_is_named_and_nothing_is_left(good: str, bad: str) -> None:
    house = House()
    async with house.open() as kernel:
        scene = Scene(house, kernel)
        await scene.begin()
        first, exact, checks = await scene.bisect(good, bad)
        assert (first, exact) == ("a#5", True)
        assert checks <= 4
        assert [env for env, one in kernel.environments.items() if one.phase is not Phase.RETIRED] == ["a"]
        assert kernel.environments["a"].actions == 9


async def test_what_was_abandoned_is_searched_from_its_generation() -> None:
    house = House()
    async with house.open() as kernel:
        scene = Scene(house, kernel)
        await scene.begin()
        await kernel.reset("a")
        assert await scene.bisect("a@2", "a@2+3") == ("a@2+2", True, 2)
        with pytest.raises(UnknownRef, match="not a moment on the way to the present of a"):
            await scene.bisect("a@2", "a")


async def test_a_check_that_fails_leaves_nothing_either() -> None:
    house = House()
    async with house.open() as kernel:
        scene = Scene(house, kernel)
        await scene.begin()

        async def broken(_env: Environment) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await scene.bisecting.bisect(parse_ref("a#0"), parse_ref("a"), broken, lambda _ref, _answer: None)
        assert [env for env, one in kernel.environments.items() if one.phase is not Phase.RETIRED] == ["a"]


async def test_ends_in_the_wrong_order_and_of_nobody_are_refused() -> None:
    house = House()
    async with house.open() as kernel:
        scene = Scene(house, kernel)
        await scene.begin()
        with pytest.raises(NothingBetween):
            await scene.bisect("a#5", "a#2")
        with pytest.raises(UnknownRef, match=r"a#20: a has "):
            await scene.bisect("a#5", "a#20")
        assert span(kernel.world, parse_ref("a@1+2"), parse_ref("a@1+3")).ref(3) == "a@1+3"
