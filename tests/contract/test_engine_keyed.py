"""Commands with a key: a repetition is answered and not done again, whatever came between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import (
    EnvironmentExists,
    InvalidKey,
    KeyReused,
    LimitReached,
    OutOfRange,
    ResourceFailed,
    TransitionAborted,
    UnknownEnvironment,
)
from statefork.engine.kernel import Kernel
from statefork.journal.events import CommandAnswered, EnvironmentForked, GenerationPublished
from statefork.journal.values import Moment
from tests.contract.engine_kit import House, put
from tests.contract.test_engine_crash import Photo, Scenario

pytestmark = pytest.mark.anyio


@pytest.fixture
def house() -> House:
    return House()


SHOP_1 = Moment(env="shop", generation=1)
COMMANDS: dict[str, Callable[[Kernel], Awaitable[object]]] = {
    "create": lambda kernel: kernel.create("new", key="k"),
    "snapshot": lambda kernel: kernel.snapshot("shop", key="k"),
    "reset": lambda kernel: kernel.reset("shop", key="k"),
    "restore": lambda kernel: kernel.restore("shop", SHOP_1, key="k"),
    "fork": lambda kernel: kernel.fork("shop", 2, key="k"),
    "fork of the past": lambda kernel: kernel.fork(SHOP_1, ["x", "y"], key="k"),
    "clone": lambda kernel: kernel.clone("shop", "copy", key="k"),
    "retire": lambda kernel: kernel.retire("shop", key="k"),
    "create_each": lambda kernel: kernel.create_each(["m", "n"], key="k"),
    "reset_each": lambda kernel: kernel.reset_each(["shop", "other"], key="k"),
}


async def state(house: House) -> list[str]:
    """All that lifecycle commands write."""
    return [str(event) for event in await house.events() if isinstance(event, GenerationPublished | EnvironmentForked)]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("parked", [False, True])
async def test_a_repetition_has_the_same_answer_and_no_effect(house: House, name: str, parked: bool) -> None:
    command = COMMANDS[name]
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        await put(kernel, "shop", "a", 1)
        if parked:
            await kernel.park("shop")
        first = await command(kernel)
        told = await state(house)
        assert await command(kernel) == first
        assert await state(house) == told
        if kernel.environments["shop"].phase is not Phase.RETIRED:
            await put(kernel, "shop", "a", 2)
            await kernel.snapshot("shop")  # the world goes on
        told = await state(house)
        assert await command(kernel) == first
    async with house.open() as kernel:  # and another engine knows it too
        told = await state(house)
        assert await command(kernel) == first
        assert await state(house) == told


@pytest.mark.parametrize("first", ["alone", "one of one"])
async def test_one_environment_given_alone_and_as_one_of_one_is_one_command(house: House, first: str) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")

        async def give(alone: bool, what: str) -> Moment | None:
            if alone:
                one = kernel.create("new", key="c") if what == "create" else kernel.reset("shop", key="r")
                return await one
            several = kernel.create_each(["new"], key="c") if what == "create" else kernel.reset_each(["shop"], key="r")
            (result,) = await several
            return result.moment

        for what in ("create", "reset"):
            answer = await give(first == "alone", what)
            assert answer is not None
            assert await give(first != "alone", what) == answer
            assert await give(first == "alone", what) == answer
        assert kernel.environments["shop"].generation == 2


@pytest.mark.parametrize("name", COMMANDS)
async def test_two_who_give_it_at_once_get_one_answer(house: House, name: str) -> None:
    answers: list[object] = []
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        await put(kernel, "shop", "a", 1)

        async def give() -> None:
            answers.append(await COMMANDS[name](kernel))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(give)
        assert len(answers) == 3
        assert answers[0] == answers[1] == answers[2]
        parts = [event.part for event in await house.events(CommandAnswered)]
        assert len(parts) == len(set(parts)), "something happened twice"


async def test_without_a_key_nothing_is_remembered(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        assert await kernel.snapshot("shop") != await kernel.snapshot("shop")
        with pytest.raises(EnvironmentExists):
            await kernel.create("shop")
        assert await house.events(CommandAnswered) == []


async def test_a_key_belongs_to_one_command(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop", key="k")
        for other in (
            lambda: kernel.create("shop2", key="k"),
            lambda: kernel.snapshot("shop", key="k"),
            lambda: kernel.fork("shop", 2, key="k"),
        ):
            with pytest.raises(KeyReused, match="'create shop'") as caught:
                await other()
            assert caught.value.facts["key"] == "k"
        await kernel.fork("shop", 2, key="f")
        with pytest.raises(KeyReused, match="n=3"):
            await kernel.fork("shop", 3, key="f")
        assert set(kernel.environments) == {"shop", "shop-f1", "shop-f2"}


@pytest.mark.parametrize("key", ["", " k", "k\n", "\x1b[31m", "a\u2028b"])
async def test_a_key_that_nobody_could_read_in_a_log_is_refused(house: House, key: str) -> None:
    async with house.open() as kernel:
        with pytest.raises(InvalidKey):
            await kernel.create("shop", key=key)
        assert "shop" not in kernel.environments


async def test_the_length_of_a_key_is_limited(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop", key="k" * 200)
        with pytest.raises(LimitReached) as caught:
            await kernel.snapshot("shop", key="k" * 201)
        assert (caught.value.facts["limit"], caught.value.facts["most"]) == ("key_chars_max", 200)


async def test_a_long_command_is_told_by_its_digest(house: House) -> None:
    names = [f"environment-number-{number}" for number in range(30)]
    async with house.open() as kernel:
        await kernel.create_each(names, activate=False, key="k")
        with pytest.raises(KeyReused):
            await kernel.create_each([*names[:-1], "another"], activate=False, key="k")
        assert all(len(event.request) < 300 for event in await house.events(CommandAnswered))


def failing(*calls: tuple[str, str, str]) -> Callable[[Call], Awaitable[None]]:
    """A hook under which these (resource, method, environment) fail."""

    async def hook(call: Call) -> None:
        if (call.resource, call.method, call.env) in calls:
            raise ResourceFailed("it was told to fail", resource=call.resource)

    return hook


async def test_what_failed_is_done_by_the_repetition_and_of_the_same_moment(house: House) -> None:
    """Children two and three can't be staged the first time; the source goes on before the second try."""
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        house.world.hook = failing(("db", "branch", "shop-f2"), ("db", "branch", "shop-f3"))
        first = await kernel.fork("shop", 3, key="k")
        house.world.hook = None
        assert [result.moment for result in first][1:] == [None, None]
        assert isinstance(first[1].error, TransitionAborted)
        await put(kernel, "shop", "a", 2)
        again = await kernel.fork("shop", 3, key="k")
        assert [str(result.moment) for result in again] == ["shop-f1@1", "shop-f2@1", "shop-f3@1"]
        assert [house.content(kernel, result.env)["a"] for result in again] == [1, 1, 1]
        assert kernel.environments["shop"].generation == 2, "the source was frozen once"


async def test_a_command_that_failed_leaves_its_key_free(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        house.world.hook = failing(("db", "seal", "shop"))
        with pytest.raises(TransitionAborted):
            await kernel.snapshot("shop", key="k")
        house.world.hook = None
        assert str(await kernel.snapshot("shop", key="k")) == "shop@2"


@pytest.mark.parametrize("name", COMMANDS)
async def test_after_a_crash_at_any_moment_a_repetition_completes_it(house: House, name: str) -> None:
    """What was done is not done again, what was not done is done, whatever of it the disk had."""
    command = COMMANDS[name]
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        scenario = Scenario(house)
        house.world.hook = scenario.call
        await command(kernel)
        house.world.hook = None
        scenario.photos.append(Photo(house, "after the reply", []))
    different = list({photo.state: photo for photo in scenario.photos}.values())
    assert len(different) > 1
    for photo in different:
        again = photo.house(keep_riders=True)
        async with again.open() as kernel:
            await command(kernel)
            told = await again.events(CommandAnswered)
            parts = [event.part for event in told]
            assert len(parts) == len(set(parts)), f"{photo.taken}: something was answered twice"
            before = await state(again)
            await command(kernel)
            assert await state(again) == before, photo.taken
            if name.startswith("fork"):
                assert len(kernel.environments["shop"].children) == 2, photo.taken


async def test_several_creates_and_resets_succeed_or_fail_each_on_its_own(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("taken")
        house.world.hook = failing(("db", "branch", "broken"))
        results = await kernel.create_each(["fresh", "taken", "broken"])
        house.world.hook = None
        assert [type(result.error) for result in results] == [type(None), EnvironmentExists, TransitionAborted]
        await put(kernel, "fresh", "a", 1)
        await put(kernel, "taken", "a", 1)
        results = await kernel.reset_each(["fresh", "nobody", "taken"])
        assert [str(result.moment) for result in results] == ["fresh@2", "None", "taken@2"]
        assert isinstance(results[1].error, UnknownEnvironment)
        assert house.content(kernel, "fresh") == house.content(kernel, "taken") == {"greeting": "hello"}
        with pytest.raises(EnvironmentExists, match="named twice"):
            await kernel.reset_each(["fresh", "fresh"])
        for empty in (kernel.create_each, kernel.reset_each):
            with pytest.raises(OutOfRange):
                await empty([])


async def test_two_forks_by_number_at_once_give_every_child_a_name_of_its_own(house: House) -> None:
    born: list[str] = []
    async with house.open() as kernel:
        await kernel.create("shop")

        async def fork(source: str | Moment) -> None:
            results = await kernel.fork(source, 3)
            assert [result.error for result in results] == [None] * 3
            born.extend(result.env for result in results)

        async with anyio.create_task_group() as tasks:
            for source in ("shop", SHOP_1, SHOP_1):
                tasks.start_soon(fork, source)
        assert sorted(born) == [f"shop-f{number}" for number in range(1, 10)]
