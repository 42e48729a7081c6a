"""Which action last changed it, and honest where that can't be said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from statefork.adapters.interfaces.blaming import Blaming
from statefork.adapters.interfaces.comparing import Comparing
from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.resources.memory import Call, MemoryResource
from statefork.engine.capsule import Phase
from statefork.engine.errors import ContractError
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Change
from statefork.engine.refs import parse_ref
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Binding, Json, Observation
from statefork.replay.blame import Blame, aside, asked, item
from tests.contract.engine_kit import CONTRACT, House, chosen, put

pytestmark = pytest.mark.anyio


@pytest.fixture
def house() -> House:
    return House()


class Rig:
    """An engine that is asked who did it."""

    def __init__(self, house: House, kernel: Kernel) -> None:
        assert house.journal is not None
        blobs = MemoryBlobs()
        self.kernel = kernel
        comparing = Comparing(kernel, house.journal, blobs, Forks(kernel, house.journal, blobs))
        self.blaming = Blaming(kernel, house.journal, blobs, comparing)

    async def blame(self, ref: str, name: str, resource: str | None = None) -> Blame:
        found = await self.blaming.blame(parse_ref(ref), item(name, resource))
        assert not [one for one in self.alive if "-d" in one]
        return found

    async def begin(self) -> None:
        """Nine actions, of which 2, 5 and 7 change the price; published after 3, 6 and 7."""
        await self.kernel.create("a")
        for number in range(1, 10):
            await put(self.kernel, "a", "price" if number in (2, 5, 7) else f"k{number}", number)
            if number in (3, 6, 7):
                await self.kernel.snapshot("a")

    @property
    def alive(self) -> list[str]:
        return [name for name, one in self.kernel.environments.items() if one.phase is not Phase.RETIRED]


async def test_the_last_action_that_changed_it_is_named(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        found = await rig.blame("a", "price")
        assert (found.ref, found.number, found.kind, found.resource) == ("a#7", 7, "changed", "db")
        assert (found.before, found.after, found.certain, found.redone) == (5, 7, True, 0)
        assert found.action == {"type": "put", "in": "db", "key": "price", "value": 7}
        found = await rig.blame("a#6", "price")
        assert (found.ref, found.before, found.after, found.redone) == ("a#5", 2, 5, 3)
        assert (await rig.blame("a#4", "price")).ref == "a#2"
        assert (await rig.blame("a@2", "price")).kind == "added"
        assert (await rig.blame("a#8", "k8")).ref == "a#8"
        found = await rig.blame("a", "greeting")
        assert (found.found, found.certain, found.number) == (False, True, 0)
        assert not (await rig.blame("a", "price", "media")).found
        with pytest.raises(ContractError, match="no resource 'till'"):
            await rig.blame("a", "price", "till")


async def test_what_is_another_value_each_time_does_not_hide_who_did_it(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    act = MemoryResource.act

    async def dated(self: MemoryResource, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """Whatever is written is written with a date of its own."""
        if action["type"] == "put":
            dates.append(f"day {len(dates)}")
            action = {**action, "value": {"amount": action["value"], "at": dates[-1]}}
        return replace(await act(self, binding, action), digest=str(action["key"]))  # the page does not show it

    dates: list[str] = []
    monkeypatch.setattr(MemoryResource, "act", dated)
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        found = await rig.blame("a#6", "price")
        assert (found.ref, found.certain, found.aside) == ("a#5", True, ("at",))


@pytest.mark.parametrize(
    ("recorded", "left", "names"),
    [
        (("added", None, {"n": 1, "at": 1}), ("changed", {"at": 2}, {"at": 1}), ("at",)),
        (("changed", {"n": 1, "at": 1}, {"n": 2, "at": 2}), ("changed", {"at": 3}, {"at": 2}), ("at",)),
        (("changed", {"n": 1}, {"n": 2}), ("changed", {"n": 3}, {"n": 2}), ()),
        (("changed", {"n": 1, "at": 1}, {"n": 2, "at": 2}), ("changed", {"n": 3, "at": 3}, {"n": 2, "at": 2}), ()),
        (("changed", {"n": 1}, {"n": 2}), ("changed", {"x": 3}, {"x": 2}), ()),
        (("added", None, {"n": 1}), ("removed", {"n": 1}, None), ()),
        (("changed", "old", "new"), ("changed", "other", "new"), ()),
    ],
)
def test_which_fields_do_not_count(
    recorded: tuple[str, Json, Json], left: tuple[str, Json, Json], names: tuple[str, ...]
) -> None:
    one, other = (Change(kind=kind, name="row", before=was, after=now) for kind, was, now in (recorded, left))
    assert aside(one, other) == names


async def test_a_retention_of_the_contract_is_none_of_what_is_done_to_tell() -> None:
    keys = 'name = "notes"\nsnapshots = "every 3 actions"\nretention = "last 1"'
    house = House(contract=CONTRACT.replace('name = "notes"', keys))
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for number in range(1, 8):
            await put(kernel, "a", "price" if number == 5 else f"k{number}", number)
        assert [one.pruned for one in kernel.environments["a"].generations.values()] == [False, True, False]
        found = await rig.blame("a", "price")
        assert (found.ref, found.certain) == ("a#5", True)


async def test_it_is_followed_through_forks_and_past_what_was_abandoned(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        await kernel.fork("a", ("b",))
        assert (await rig.blame("b", "price")).ref == "a#7"
        await kernel.restore("a", kernel.environments["a"].generations[2].moment)
        assert (await rig.blame("a", "price")).ref == "a#2"
        assert (await rig.blame("a@3", "price")).ref == "a@2+2", "that future has no number in the present's lineage"


async def test_what_was_changed_there_and_back_is_found_where_it_is_looked_for(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for number, price in enumerate((1, 1, 2, 1), 1):
            await put(kernel, "a", "price", price)
            await put(kernel, "a", f"k{number}", number)
            if number in (1, 4):
                await kernel.snapshot("a")
        await kernel.snapshot("a")
        assert (await rig.blame("a", "price")).ref == "a#1"
        found = await rig.blaming.blame(parse_ref("a"), item("price"), thorough=True)
        assert (found.ref, found.before, found.after, found.certain) == ("a#7", 2, 1, True)


async def test_what_nobody_recorded_is_said_so(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        house.world.write(kernel.branches("a")["db"].id, "price", 3)
        found = await rig.blame("a", "price")
        assert (found.found, found.number, found.ref) == (True, 0, "a@2")
        assert "no recorded action" in found.why


async def test_where_it_goes_otherwise_the_rest_is_suspected(house: House) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-d1"):
            seen.append(call)
            if len(seen) == stop:
                house.world.write(kernel.branches("a-d1")["db"].id, "greeting", "goodbye")

    seen: list[Call] = []
    stop = 2
    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for number in range(1, 5):
            await put(kernel, "a", "price" if number in (1, 3) else f"k{number}", number)
        await kernel.snapshot("a")
        found = await rig.blame("a", "price")
        assert (found.found, found.certain) == (True, False)
        assert found.between == ("action 2 (put)", "action 3 (put)", "action 4 (put)")
        assert "action 2 (put) went otherwise" in found.why
        seen.clear()
        stop = 4  # after that only one is left, and it is as it was at the end
        found = await rig.blame("a", "price")
        assert (found.ref, found.certain, found.before, found.after) == ("a#3", True, 1, 3)


async def test_an_opaque_page_alone_is_blamed_and_among_others_suspected(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for number in (1, 2):
            await put(kernel, "a", f"k{number}", number)
            async with kernel.raw("a") as content:
                content["price"] = number
        await put(kernel, "a", "k3", 3, where="media")
        found = await rig.blame("a", "price")
        assert (found.found, found.certain, found.number) == (True, False, 0)
        assert found.between == ("action 2 (opaque)", "action 3 (put)", "action 4 (opaque)", "action 5 (put)")
        found = await rig.blame("a", "k1")  # which the opaque ones may have changed there and back
        assert (found.ref, found.certain, found.between[0]) == ("a#1", False, "action 1 (put)")
        await kernel.snapshot("a")
        async with kernel.raw("a") as content:
            content["price"] = 9
        found = await rig.blame("a", "price")
        assert (found.step, found.certain, found.after) == ("action 6 (opaque)", True, 9)


async def test_one_thing_is_asked_about(house: House) -> None:
    with pytest.raises(ContractError, match="one row, one file or one item"):
        asked(None, None, None, None)
    with pytest.raises(ContractError, match="one row, one file or one item"):
        asked(("product", 1), "a.txt", None, None)
    assert asked(("prices", "12,EUR"), None, None, None).names == {"prices[12,EUR]", "prices[12, EUR]"}
    assert asked(("prices", [12, "EUR"]), None, None, None).names == {"prices[12, EUR]"}
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        with pytest.raises(ContractError, match="no resource of the kind postgres or sqlite"):
            await rig.blaming.blame(parse_ref("a"), asked(("product", 1), None, None, None))


STEPS = st.lists(
    st.tuples(st.sampled_from(["act", "act", "act", "snapshot", "restore", "fork"]), st.integers(0, 59)),
    min_size=1,
    max_size=12,
)


@given(STEPS)
@settings(max_examples=8, deadline=None)
async def test_of_any_history_it_is_the_last_write(steps: list[tuple[str, int]]) -> None:
    house = House()
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        env, held, last = "a", {"a@1": {}}, {}  # of each generation and now: number of the last write, by key
        for number, (step, choice) in enumerate(steps):
            capsule = kernel.environments[env]
            match step:
                case "act":
                    key = "xyz"[choice % 3]
                    done = await put(kernel, env, key, number)
                    last = {**last, key: done.number}
                    continue
                case "snapshot":
                    await kernel.snapshot(env)
                case "restore":
                    target = chosen(capsule.generations, choice)
                    await kernel.restore(env, capsule.generations[target].moment)
                    last = held[f"{env}@{target}"]
                case "fork":
                    (born,) = await kernel.fork(env, 1)
                    env = born.env
            held[str(kernel.environments[env].moment)] = last
        for key in "xyz":
            found = await rig.blame(env, key)
            assert (found.certain, found.number) == (True, last.get(key, 0))
