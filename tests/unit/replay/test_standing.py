"""Restoring and cloning moments that nobody sealed: made beside, and never at the expense of who asks for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statefork.adapters.interfaces.environment import Environment, making
from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import Diverged, EnvironmentExists, UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.engine.retention import Retention
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.events import GenerationPublished, ReplayVerdict
from statefork.journal.values import Json, Moment
from tests.contract.engine_kit import CONTRACT, SETTINGS, House, put

pytestmark = pytest.mark.anyio
KEYS = ("one", "two", "three", "four")


@pytest.fixture
def house() -> House:
    return House()


class Rig:
    """An engine, with an environment ``a`` in which four things were done and nothing was published."""

    def __init__(self, house: House, kernel: Kernel) -> None:
        assert house.journal is not None
        self.house = house
        self.kernel = kernel
        self.forks = Forks(kernel, house.journal, MemoryBlobs())

    async def begin(self) -> Environment:
        await self.kernel.create("a")
        for key in KEYS:
            await put(self.kernel, "a", key, 1)
        return self.environment("a")

    def environment(self, name: str) -> Environment:
        return Environment(self.kernel, MemoryBlobs(), name, self.forks)

    async def held(self, env: str) -> dict[str, Json]:
        await self.kernel.activate(env)
        return dict(self.house.content(self.kernel, env, "db"))

    def there(self) -> set[str]:
        """Who has not ended."""
        return {name for name, one in self.kernel.environments.items() if one.phase is not Phase.RETIRED}


def first(count: int) -> dict[str, Json]:
    """What is held after so many of them."""
    return {"greeting": "hello", **dict.fromkeys(KEYS[:count], 1)}


async def test_an_environment_goes_back_to_a_moment_that_nobody_sealed(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        env = await rig.begin()
        moment = await env.restore("a#2")
        assert (moment, env.capsule.epoch, env.capsule.actions) == (Moment(env="a", generation=2), 2, 2)
        assert await rig.held("a") == first(2)
        assert env.made is not None
        assert (env.made.verdict, env.made.child, env.made.actions) == ("exact-observed", "a-d1", 2)
        assert rig.there() == {"a"}
        (verdict,) = [event for event in await house.events(ReplayVerdict) if isinstance(event, ReplayVerdict)]
        assert (verdict.env, verdict.child, verdict.source) == ("a", "a-d1", Moment(env="a", generation=1))
        restored = [event for event in await house.events(GenerationPublished) if getattr(event, "op", "") == "restore"]
        assert [str(getattr(event, "source", "")) for event in restored] == ["a-d1@2"], "the journal tells the way"
        await put(kernel, "a", "other", 1)
        for ref, content in (
            ("a#1", first(1)),
            ("a#2", first(2)),
            ("a#3", {**first(2), "other": 1}),
            ("a@1+4", first(4)),
        ):
            (child,) = await rig.forks.fork(parse_ref(ref), 1, key=None)
            assert await rig.held(child.name) == content, ref
        await env.restore(1)
        assert env.made is None
        await env.reset()
        assert await rig.held("a") == first(0)


async def test_another_environment_goes_to_it_too(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        await kernel.create("b")
        await put(kernel, "b", "mine", 1)
        await kernel.retire("a")
        await rig.environment("b").restore("a#3")
        assert await rig.held("b") == first(3)
        assert kernel.environments["b"].actions == 3


async def test_a_clone_begins_there(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        clone = rig.environment("b")
        await kernel.clone(making(parse_ref("a#2"), clone, rig.forks), "b")
        assert clone.made is not None
        assert await rig.held("b") == first(2)
        assert (clone.capsule.actions, rig.there()) == (0, {"a", "b"})
        await put(kernel, "b", "mine", 1)
        await clone.reset()
        assert await rig.held("b") == first(2)


async def test_a_repeated_command_is_answered_and_makes_nothing(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        env = await rig.begin()
        moments = {await env.restore("a#2", key="back") for _ in range(2)}
        assert moments == {Moment(env="a", generation=2)}
        source = making(parse_ref("a@1+3"), rig.environment("b"), rig.forks)
        clones = {await kernel.clone(source, "b", key="new") for _ in range(2)}
        assert clones == {Moment(env="b", generation=1)}
        assert len(await house.events(ReplayVerdict)) == 2
        await put(kernel, "a", "mine", 1)
        assert await env.restore("a#2", key="back") == Moment(env="a", generation=2), "it is still the old command"
        assert await rig.held("a") == {**first(2), "mine": 1}


async def test_where_it_goes_otherwise_nothing_changes(house: House) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when) == ("db", "act", "before") and str(call.env).startswith("a-d"):
            house.world.write(kernel.branches(str(call.env))["db"].id, "greeting", "goodbye")

    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        env = await rig.begin()
        with pytest.raises(Diverged, match="a#3 could not be made again") as caught:
            await env.restore("a#3")
        assert caught.value.hint == "To look at how it went: statefork fork 'a#3'"
        with pytest.raises(Diverged):
            await kernel.clone(making(parse_ref("a#3"), rig.environment("b"), rig.forks), "b", key="k")
        with pytest.raises(UnknownRef, match=r"a#9: a has "):
            await env.restore("a#9")
        assert (env.made, env.capsule.generation, rig.there()) == (None, 1, {"a"})
        assert await rig.held("a") == first(4)


async def test_an_environment_that_somebody_else_made_is_not_taken_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.open() as kernel:
        assert house.journal is not None
        forks = Forks(kernel, house.journal, MemoryBlobs())
        await kernel.create("a")
        for number in (1, 2):
            await put(kernel, "a", f"k{number}", number)
        promise = kernel.promise

        async def promised(env: str, kind: str) -> str:
            name = await promise(env, kind)
            await kernel.create(name)  # a user's, in the last moment
            return name

        monkeypatch.setattr(kernel, "promise", promised)
        with pytest.raises(EnvironmentExists):
            await forks.lend(parse_ref("a#1"), "a test")
        with pytest.raises(EnvironmentExists):
            async with forks.standing(parse_ref("a#1")):
                pass
        assert {name: one.phase for name, one in kernel.environments.items() if name != "a"} == {
            "a-d1": Phase.SERVING,
            "a-d2": Phase.SERVING,
        }


async def test_with_one_slot_it_is_parked_meanwhile(house: House) -> None:
    settings = replace(SETTINGS, max_slots={"browser": 1})
    seated = House(contract=CONTRACT.replace('visits = "visits"', 'visits = "visits"\nslot = "browser"'))
    async with seated.open(settings=settings) as kernel:
        rig = Rig(seated, kernel)
        env = await rig.begin()
        await env.restore("a#2")
        assert await rig.held("a") == first(2)
        children = await rig.forks.fork(parse_ref("a#1"), 3, key=None)
        assert [await rig.held(child.name) for child in children] == [first(1)] * 3


async def test_a_fork_that_is_repeated_leaves_its_children_alone(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()

        async def fork() -> Environment:
            (child,) = await rig.forks.fork(parse_ref("a#2"), ("child",), key="once")
            return child

        child = await fork()
        assert child.made is not None
        await child.restore("a@1")
        await put(kernel, "child", "own", 1)
        held = await rig.held("child")
        generation = child.capsule.generation
        await kernel.snapshot("a")
        await put(kernel, "a", "more", 1)
        await kernel.snapshot("a")
        await kernel.upkeep.prune("a", Retention(last=1))  # another generation is the nearest now
        await fork()
        assert (await rig.held("child"), child.capsule.generation) == (held, generation)


async def test_a_fork_of_a_pruned_generation_that_is_repeated_does_too(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        for _ in range(3):
            await kernel.snapshot("a")
        await kernel.upkeep.prune("a", Retention(last=1))
        for _ in range(2):
            (child,) = await rig.forks.fork(parse_ref("a@3"), ("child",), key="once")
            await put(kernel, "child", f"own {child.capsule.actions}", 1)
        assert await rig.held("child") == {**first(4), "own 4": 1, "own 5": 1}
