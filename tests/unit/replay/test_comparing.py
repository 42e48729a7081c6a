"""What differs between two moments, those included at which nobody published anything."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from statefork.adapters.interfaces.comparing import Comparing
from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import Diverged, UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.journal.blobs import MemoryBlobs
from statefork.replay import differing
from statefork.replay.differing import Counts, Difference
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


@pytest.fixture
def house() -> House:
    return House()


class Rig:
    """An engine whose moments are compared."""

    def __init__(self, house: House, kernel: Kernel) -> None:
        assert house.journal is not None
        blobs = MemoryBlobs()
        self.kernel = kernel
        self.comparing = Comparing(kernel, house.journal, blobs, Forks(kernel, house.journal, blobs))

    async def diff(self, before: str, after: str, limit: int = 100) -> Difference:
        return await self.comparing.diff(parse_ref(before), parse_ref(after), limit)

    async def begin(self) -> None:
        """Six actions on ``a``, of which the first two are published."""
        await self.kernel.create("a")
        for number in range(1, 7):
            await put(self.kernel, "a", f"k{number}", number)
            if number == 2:
                await self.kernel.snapshot("a")

    @property
    def alive(self) -> list[str]:
        return [name for name, one in self.kernel.environments.items() if one.phase is not Phase.RETIRED]


def names(found: Difference, resource: str = "db") -> list[str]:
    return [f"{change.kind} {change.name}" for change in found.resources[resource].changes]


async def test_moments_that_nobody_published_are_made_and_leave_nothing(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        found = await rig.diff("a#3", "a#5")
        assert names(found) == ["added k4", "added k5"]
        told = str(found).splitlines()
        assert told[0] == "a#3 to a#5:"
        assert {"  db: added k4", "  db: added k5"} <= set(told), told
        assert found.made_before is not None
        assert (found.made_before.verdict, found.made_before.actions) == ("exact-observed", 1)
        assert found.made_after is not None
        assert (found.made_after.verdict, found.made_after.actions) == ("exact-observed", 3)
        assert (found.before_at.env, found.after_at.env) == ("a-d1", "a-d1"), "the later one goes on from the earlier"
        assert found.before_at != found.after_at
        assert rig.alive == ["a"]
        assert kernel.environments["a"].actions == 6
        assert not found.equal
        assert names(await rig.diff("a#5", "a#3")) == ["removed k4", "removed k5"]
        assert names(await rig.diff("a#5", "a@2")) == ["removed k3", "removed k4", "removed k5"]
        assert names(await rig.diff("a@2+1", "a@2")) == ["removed k3"]
        same = await rig.diff("a#4", "a#4")
        assert same.equal
        assert str(same).startswith("a#4 to a#4: nothing differs")
        assert rig.alive == ["a"]
        with pytest.raises(UnknownRef):
            await rig.diff("a@2", "a#9")


async def test_what_a_later_generation_holds_of_a_raw_page_is_not_lost(house: House) -> None:
    """Going on from the earlier moment would leave it out: nobody can do again what was done through a raw page."""
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await kernel.create("a")
        for key in ("one", "two"):
            await put(kernel, "a", key, 1)
        async with kernel.raw("a") as content:
            content["by hand"] = 1
        await put(kernel, "a", "three", 1)
        await kernel.snapshot("a")
        for key in ("four", "five"):
            await put(kernel, "a", key, 1)
        added = {"added by hand", "added three", "added four"}
        assert set(names(await rig.diff("a#2", "a#5"))) == added
        assert {name.removeprefix("removed") for name in names(await rig.diff("a#5", "a#2"))} == {
            name.removeprefix("added") for name in added
        }
        assert rig.alive == ["a"]


async def test_the_present_is_published_where_it_was_written_to(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        assert names(await rig.diff("a@2", "a")) == ["added k3", "added k4", "added k5", "added k6"]
        assert kernel.environments["a"].generation == 3
        assert (await rig.diff("a", "a@3")).equal
        assert kernel.environments["a"].generation == 3, "nothing was written meanwhile"
        house.world.write(kernel.branches("a")["db"].id, "raw", 1)
        assert names(await rig.diff("a@3", "a")) == ["added raw"], "though no action did it"
        await kernel.retire("a")
        assert names(await rig.diff("a@3", "a")) == ["added raw"]


async def test_what_nobody_saw_is_looked_at_where_that_is_wanted(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        found = await rig.diff("a@1", "a@2")
        assert found.page.before is None
        assert found.page.after is not None
        assert (found.page.after.number, found.page.equal) == (2, True)
        found = await rig.comparing.diff(parse_ref("a@1"), parse_ref("a@2"), 100, look=True)
        assert found.page.before is not None
        assert found.page.before.number == 0
        assert rig.alive == ["a"]


async def test_two_children_of_one_moment_are_compared(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        await kernel.fork("a", ("left", "right"))
        await put(kernel, "left", "k1", "other")
        await put(kernel, "right", "drawn", 1, where="media")
        found = await rig.diff("left", "right")
        (change,) = found.resources["db"].changes
        assert (change.kind, change.name, change.before, change.after) == ("changed", "k1", "other", 1)
        assert names(found, "media") == ["added drawn"]
        assert (found.resources["app"].cache, found.resources["app"].stale_by) == ("stale", ("db", "media"))
        assert (await rig.diff("left", "left")).resources["app"].cache == "fresh"


async def test_what_is_listed_is_bounded_and_the_rest_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        db = (await rig.diff("a@1", "a", limit=4)).resources["db"]
        assert (len(db.changes), db.total, db.left_out, db.counted_all) == (4, 6, 2, True)
        assert db.counts == {"": Counts(added=6)}
        assert (await rig.diff("a@1", "a", limit=0)).resources["db"].total == 6
        monkeypatch.setattr(differing, "COUNTED_MAX", 5)
        db = (await rig.diff("a@1", "a")).resources["db"]
        assert (len(db.changes), db.total, db.counted_all) == (5, 5, False)


async def test_secrets_are_told_to_differ_and_not_shown(house: House) -> None:
    async with house.open() as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        await put(kernel, "a", "api_token", "hunter2")
        await put(kernel, "a", "user", {"name": "Ada", "password": "hunter2"})
        found = await rig.diff("a@2", "a")
        assert "hunter2" not in str(found)
        shown = {change.name: change.after for change in found.resources["db"].changes}
        assert shown["api_token"] == "(secret, 7 characters)"
        assert shown["user"] == {"name": "Ada", "password": "(secret, 7 characters)"}


@pytest.mark.parametrize("how", ["diverges", "fails", "cancelled"])
async def test_a_moment_that_can_not_be_made_leaves_nothing(house: House, how: str) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) != ("db", "act", "before", "a-d1"):
            return
        if how == "diverges":
            house.world.write(kernel.branches("a-d1")["db"].id, "greeting", "goodbye")
        elif how == "fails":
            raise OSError("no")
        else:
            scope.cancel()
            await anyio.lowlevel.checkpoint()

    scope = anyio.CancelScope()
    async with house.open(hook=meddle) as kernel:
        rig = Rig(house, kernel)
        await rig.begin()
        if how == "cancelled":
            with scope:
                await rig.diff("a@1", "a#4")
            assert scope.cancelled_caught
        else:
            with pytest.raises(Diverged if how == "diverges" else OSError) as caught:
                await rig.diff("a@1", "a#4")
            if how == "diverges":
                assert "statefork fork 'a#4'" in caught.value.hint
        assert rig.alive == ["a"]
