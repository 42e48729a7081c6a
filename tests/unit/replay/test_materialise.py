"""Forks of moments that nobody sealed: the same content, whatever happened before, and honest where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import Diverged, PartialFork, UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.events import ReplayVerdict
from statefork.journal.values import Json, Moment
from statefork.replay import materialise
from tests.contract.engine_kit import House, chosen, put

pytestmark = pytest.mark.anyio
Content = dict[str, dict[str, Json]]


@pytest.fixture
def house() -> House:
    return House()


class Rig:
    """An engine, its forks, and what the environment held after each action, by generation and number."""

    def __init__(self, house: House, kernel: Kernel) -> None:
        assert house.journal is not None
        self.house = house
        self.kernel = kernel
        self.forks = Forks(kernel, house.journal, MemoryBlobs())

    async def fork(self, ref: str, children: tuple[str, ...] | int = 1, key: str | None = None) -> list[str]:
        """Names of the children."""
        return [child.name for child in await self.forks.fork(parse_ref(ref), children, key=key)]

    async def content(self, env: str) -> Content:
        """What its stores hold."""
        await self.kernel.activate(env)
        return {store: self.house.content(self.kernel, env, store) for store in ("db", "media")}


async def test_a_moment_between_two_generations_is_made_again_in_the_child(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for number in range(1, 7):
            await put(kernel, "a", f"k{number}", number)
            if number == 2:
                await kernel.snapshot("a")
        before = await rig.content("a")
        (child,) = await rig.forks.fork(parse_ref("a#5"), 1, key=None)
        assert child.made is not None
        assert (child.made.verdict, child.made.actions, child.made.compared) == ("exact-observed", 3, 3)
        assert (child.made.source, child.made.kept) == (Moment(env="a", generation=2), True)
        assert (await rig.content(child.name))["db"] == {"greeting": "hello", **{f"k{n}": n for n in range(1, 6)}}
        assert kernel.environments[child.name].actions == 5
        assert await rig.content("a") == before
        assert await rig.fork(f"{child.name}#4") != []  # of a child's own history as well
        verdicts = [event for event in await house.events(ReplayVerdict) if isinstance(event, ReplayVerdict)]
        assert [(verdict.env, verdict.child, verdict.actions) for verdict in verdicts] == [
            ("a", child.name, 3),
            (child.name, f"{child.name}-f1", 2),
        ]


async def test_what_was_abandoned_is_reached_from_its_generation(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two", "three"):
            await put(kernel, "a", key, 1)
        await kernel.reset("a")
        await put(kernel, "a", "other", 1)
        (child,) = await rig.fork("a@1+2")
        assert (await rig.content(child))["db"] == {"greeting": "hello", "one": 1, "two": 1}
        with pytest.raises(UnknownRef, match=r"^a@1\+4: only 3 actions were done after a@1"):
            await rig.fork("a@1+4")
        with pytest.raises(UnknownRef, match=r"a#2: a has 1 action"):
            await rig.fork("a#2")
        assert [name for name, one in kernel.environments.items() if one.phase is not Phase.RETIRED] == ["a", child]


async def test_several_children_are_the_same_and_each_goes_on_alone(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two", "three"):
            await put(kernel, "a", key, 1)
        names = await rig.fork("a#2", 3)
        assert names == ["a-f1", "a-f2", "a-f3"]
        for name in names:
            await put(kernel, name, "mine", name)
        for name in names:
            assert (await rig.content(name))["db"] == {"greeting": "hello", "one": 1, "two": 1, "mine": name}
            assert kernel.environments[name].actions == 3


async def test_a_repeated_command_makes_it_once(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two", "three"):
            await put(kernel, "a", key, 1)
        (child,) = await rig.fork("a#2", key="k")
        await put(kernel, child, "mine", 1)
        assert await rig.fork("a#2", key="k") == [child]
        assert kernel.environments[child].actions == 3
        assert len(await house.events(ReplayVerdict)) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_fails_half_way_leaves_nothing_or_goes_on(house: House, key: str | None) -> None:
    broken = True

    async def meddle(call: Call) -> None:
        if broken and (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-f1"):
            seen.append(call)
            if len(seen) == 2:
                raise OSError("no")

    seen: list[Call] = []
    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for name in ("one", "two", "three", "four"):
            await put(kernel, "a", name, 1)
        with pytest.raises(OSError, match="no"):
            await rig.fork("a#3", 2, key)
        broken = False
        if key is None:
            assert {kernel.environments[name].phase for name in ("a-f1", "a-f2")} == {Phase.RETIRED}
            return
        assert await rig.fork("a#3", 2, key) == ["a-f1", "a-f2"]
        for name in ("a-f1", "a-f2"):
            assert (await rig.content(name))["db"] == {"greeting": "hello", "one": 1, "two": 1, "three": 1}


async def test_where_it_goes_otherwise_the_child_is_left_to_be_looked_at(house: House) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-f1"):
            seen.append(call)
            if len(seen) == 2:
                house.world.write(kernel.branches("a-f1")["db"].id, "greeting", "goodbye")

    seen: list[Call] = []
    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two", "three", "four"):
            await put(kernel, "a", key, 1)
        with pytest.raises(Diverged, match="a#3 could not be made again: action 2") as caught:
            await rig.fork("a#3", 2)
        assert caught.value.facts["child"] == "a-f1"
        assert caught.value.result.divergence.number == 2
        assert (await rig.content("a-f1"))["db"] == {"greeting": "goodbye", "one": 1, "two": 1}
        assert kernel.environments["a-f2"].phase is Phase.RETIRED


@pytest.mark.parametrize("again", ["as recorded", "otherwise"])
async def test_a_child_that_does_not_look_like_the_first_is_made_as_that_was(house: House, again: str) -> None:
    async def meddle(call: Call) -> None:
        """The second child gets something else than the first holds; what is done in it again may go wrong, too."""
        if call.env == "a-f2" and (call.resource, call.when) == ("db", "before"):
            asked.append(call.method)
            first_look = call.method == "observe" and asked.count("observe") == 1
            if first_look or (again == "otherwise" and call.method == "act" and asked.count("act") == 2):
                house.world.write(kernel.branches("a-f2")["db"].id, "greeting", "another")

    asked: list[str] = []
    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two", "three", "four"):
            await put(kernel, "a", key, 1)
        if again == "otherwise":
            with pytest.raises(PartialFork, match="a-f2") as caught:
                await rig.fork("a#3", 3)
            assert caught.value.born == ("a-f1", "a-f3")
            assert kernel.environments["a-f2"].phase is Phase.RETIRED
            left = ["a-f1", "a-f3"]
        else:
            children = await rig.forks.fork(parse_ref("a#3"), 3, key=None)
            assert [child.made.copied_from for child in children if child.made is not None] == ["", "", "a-f1"]
            left = [child.name for child in children]
        for name in left:
            assert (await rig.content(name))["db"] == {"greeting": "hello", "one": 1, "two": 1, "three": 1}
        verdicts = [event for event in await house.events(ReplayVerdict) if isinstance(event, ReplayVerdict)]
        assert {verdict.child: verdict.copied_from for verdict in verdicts} == {"a-f1": "", "a-f2": "", "a-f3": "a-f1"}


@pytest.mark.parametrize("where", ["seen", "behind"])
async def test_a_page_that_is_not_brought_back_is_loaded_again_by_its_navigation(
    house: House, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def behind(kernel: Kernel, env: str) -> tuple[str, ...]:
        """A tab that is not shown, of generation 3."""
        looked.append(kernel.environments[env].head.source)
        return ("tab 1: its text differs",) if looked[-1] == Moment(env="a", generation=3) else ()

    async def meddle(call: Call) -> None:
        """The page of generation 3 holds something that its snapshot does not carry."""
        if (call.resource, call.method, call.when) == ("db", "observe", "before") and call.env == "a-f1":
            looked.append(kernel.environments["a-f1"].head.source)
            if looked[-1] == Moment(env="a", generation=3):
                house.world.write(kernel.branches("a-f1")["db"].id, "greeting", "another")

    looked: list[Moment | None] = []
    if where == "behind":
        monkeypatch.setattr(materialise, "unlike_behind", behind)
    async with house.open(hook=meddle if where == "seen" else None) as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        await kernel.snapshot("a")
        await put(kernel, "a", "two", 2)
        await kernel.snapshot("a")
        await put(kernel, "a", "three", 3)
        await put(kernel, "a", "four", 4)
        (child,) = await rig.forks.fork(parse_ref("a#3"), 1, key=None)
        assert child.made is not None
        assert child.made.verdict == "exact-observed"
        assert child.made.passed_over == (Moment(env="a", generation=3),)
        assert child.made.source == Moment(env="a", generation=1)  # there was no navigation
        assert (await rig.content(child.name))["db"] == {"greeting": "hello", "one": 1, "two": 2, "three": 3}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["act", "act", "act", "snapshot", "reset", "restore", "fork", "park"]), st.integers(0, 59)
    ),
    min_size=1,
    max_size=14,
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
async def test_any_moment_of_any_history_is_made_as_it_was(steps: list[tuple[str, int]]) -> None:
    house = House()
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        told = Told(rig, "a")
        await kernel.create("a")
        told.publish(await rig.content("a"))
        for number, (step, choice) in enumerate(steps):
            await told.do(step, number, choice)
        for ref, content in told.held.items():
            (child,) = await rig.fork(ref)
            assert await rig.content(child) == content, ref
        for count, content in told.lineage.items():
            (child,) = await rig.fork(f"{told.env}#{count}")
            assert await rig.content(child) == content, f"{told.env}#{count}"


class Told:
    """A history while it is made, and what was held at each of its moments."""

    def __init__(self, rig: Rig, env: str) -> None:
        self.rig = rig
        self.env = env
        self.held: dict[str, Content] = {}  # by ref from a generation, also of what is abandoned
        self.lineage: dict[int, Content] = {}  # of the present
        self._lineages: dict[Moment, dict[int, Content]] = {}  # of each generation

    def publish(self, content: Content) -> None:
        """A generation stands at the present."""
        capsule = self.rig.kernel.environments[self.env]
        self.lineage.setdefault(capsule.actions, content)
        self._lineages[capsule.moment] = dict(self.lineage)

    async def do(self, step: str, number: int, choice: int) -> None:
        """One step of the history; a restore goes back to the generation that ``choice`` leads to."""
        kernel, env = self.rig.kernel, self.env
        capsule = kernel.environments[env]
        match step:
            case "act":
                await put(kernel, env, f"k{number % 4}", number, where=("db", "media")[number % 2])
                capsule = kernel.environments[env]
                content = await self.rig.content(env)
                self.held[f"{capsule.moment}+{capsule.actions - capsule.head.actions}"] = content
                self.lineage[capsule.actions] = content
                return
            case "snapshot":
                await kernel.snapshot(env)
            case "park":
                await kernel.park(env)
            case "reset" | "restore":
                target = capsule.origin
                if step == "restore":
                    target = Moment(env=env, generation=chosen(capsule.generations, choice))
                await kernel.restore(env, target)
                self.lineage = dict(self._lineages[target])
            case "fork":
                (result,) = await kernel.fork(env, 1)
                self.env = result.env
                self._lineages[kernel.environments[env].moment] = dict(self.lineage)
        self.publish(await self.rig.content(self.env))
