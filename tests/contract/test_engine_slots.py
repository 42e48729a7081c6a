"""Slots: order of arrival, giving way, pins, deadlines, cancellation; nobody is forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from statefork.engine.errors import NoSlot
from statefork.engine.slots import UNLIMITED, Slots, capacity

pytestmark = pytest.mark.anyio


class House:
    """Environments that are busy or idle, and what happened to them."""

    def __init__(self, limit: int, *, staging: int = 1) -> None:
        self.bound: set[str] = set()
        self.busy: set[str] = set()
        self.parked: list[str] = []
        self.refusals: dict[str, str] = {}
        self.parking = anyio.Event()
        self.may_park = anyio.Event()
        self.may_park.set()
        self.slots = Slots(
            limit,
            kind="browser",
            staging=staging,
            is_bound=self.bound.__contains__,
            is_idle=lambda env: env in self.bound and env not in self.busy,
            give_way=self.give_way,
        )

    async def give_way(self, env: str) -> str:
        self.parking.set()
        await self.may_park.wait()
        if env in self.refusals:
            return self.refusals[env]
        if env in self.busy:
            return "it is used again"
        self.parked.append(env)
        self.give(env)
        return ""

    def give(self, env: str) -> None:
        self.bound.discard(env)
        self.slots.settle(env)

    async def fill(self, *envs: str) -> None:
        for env in envs:
            await self.take(env)

    async def take(self, env: str, *, deadline_s: float = 5, waits: Callable[[int], None] | None = None) -> None:
        async with self.slots.claim(env, deadline_s=deadline_s, waits=waits):
            self.bound.add(env)

    def let_go(self, env: str) -> None:
        self.busy.discard(env)
        self.slots.used(env)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await checkpoint()


async def test_the_one_that_was_idle_longest_gives_way() -> None:
    house = House(2)
    await house.fill("a", "b")
    house.slots.used("a")
    await house.take("c")
    assert house.parked == ["b"]
    assert house.slots.taken == ("a", "c")


async def test_without_a_limit_nobody_gives_way() -> None:
    house = House(UNLIMITED)
    await house.fill(*map(str, range(100)))
    assert house.parked == []


async def test_who_is_busy_or_pinned_does_not_give_way() -> None:
    house = House(3)
    await house.fill("busy", "pinned", "idle")
    house.busy.add("busy")
    with house.slots.pinned("pinned"):
        await house.take("new")
    assert house.parked == ["idle"]


async def test_waiters_are_served_in_the_order_of_arrival() -> None:
    house = House(2)
    await house.fill("a", "b")
    house.busy = {"a", "b"}
    served: list[str] = []
    told: dict[str, int] = {}

    async def wait(env: str) -> None:
        await house.take(env, waits=lambda position: told.update({env: position}))
        house.busy.add(env)
        served.append(env)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(wait, f"w{number}")
            await until(lambda number=number: len(house.slots.queue) == number + 1)
        assert [(one.env, one.position) for one in house.slots.queue] == [("w0", 1), ("w1", 2), ("w2", 3), ("w3", 4)]
        for number, env in enumerate(("b", "a", "w1", "w0")):
            house.let_go(env)
            await until(lambda number=number: len(served) == number + 1)
    assert served == ["w0", "w1", "w2", "w3"]
    assert told == {"w0": 1, "w1": 2, "w2": 3, "w3": 4}
    assert house.parked == ["b", "a", "w1", "w0"]


async def test_a_newcomer_does_not_take_the_slot_that_was_freed_for_another() -> None:
    house = House(1)
    await house.fill("a")
    house.busy.add("a")
    order: list[str] = []

    async def wait(env: str) -> None:
        await house.take(env)
        order.append(env)
        house.give(env)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "first")
        await until(lambda: len(house.slots.queue) == 1)
        house.give("a")  # free now, but "first" has not run yet
        await wait("second")
    assert order == ["first", "second"]


async def test_several_give_way_at_once_for_several_who_wait() -> None:
    house = House(3)
    await house.fill("a", "b", "c")
    house.may_park = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for env in ("x", "y"):
            tasks.start_soon(house.take, env)
        await until(lambda: sum(seat.leaving for seat in house.slots._seats.values()) == 2)
        house.may_park.set()
    assert sorted(house.parked) == ["a", "b"]


async def test_at_the_deadline_it_is_said_who_holds_the_slots() -> None:
    house = House(3)
    await house.fill("busy", "pinned", "stuck")
    house.busy.add("busy")
    house.slots.pin("pinned")
    house.refusals["stuck"] = "a transaction is open"
    with pytest.raises(NoSlot) as caught:
        await house.take("new", deadline_s=0.05)
    message = str(caught.value)
    assert "busy (in use)" in message
    assert "pinned (pinned)" in message
    assert "stuck (can't be parked: a transaction is open)" in message
    assert caught.value.facts == {"environment": "new", "slots": 3, "kind": "browser", "position": 1}
    assert house.slots.queue == ()


async def test_who_could_not_be_parked_is_tried_again_when_it_was_used() -> None:
    house = House(1)
    await house.fill("stuck")
    house.refusals["stuck"] = "a transaction is open"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.take, "new")
        await house.parking.wait()
        await until(lambda: bool(house.slots._seats["stuck"].refused))
        house.refusals.clear()
        house.slots.used("stuck")
    assert house.parked == ["stuck"]


async def test_one_who_gives_up_waiting_leaves_its_place_to_the_next() -> None:
    house = House(1)
    await house.fill("a")
    house.busy.add("a")
    scope = anyio.CancelScope()

    async def give_up() -> None:
        with scope:
            await house.take("gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up)
        await until(lambda: len(house.slots.queue) == 1)
        tasks.start_soon(house.take, "next")
        await until(lambda: len(house.slots.queue) == 2)
        scope.cancel()
        await until(lambda: [one.env for one in house.slots.queue] == ["next"])
        house.give("a")
    assert house.slots.taken == ("next",)


async def test_staging_places_are_counted_apart() -> None:
    house = House(1, staging=1)
    await house.fill("a")
    inside = 0
    most = 0

    async def switch() -> None:
        nonlocal inside, most
        async with house.slots.staging_place():
            inside += 1
            most = max(most, inside)
            await checkpoint()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(switch)
    assert most == 1
    assert house.slots.taken == ("a",)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_everybody_is_served_and_no_slot_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    house = House(chance.randint(1, 4))
    limit = house.slots.limit
    served = dict.fromkeys((f"e{number}" for number in range(12)), 0)

    async def live(env: str, chances: random.Random) -> None:
        while served[env] < 6:
            if env not in house.slots.taken:
                with anyio.move_on_after(chances.choice((0, 30))):
                    await house.take(env, deadline_s=30)
            if env not in house.slots.taken:
                continue
            house.slots.pin(env)
            house.busy.add(env)
            assert len(house.slots.taken) <= limit
            for _ in range(chances.randint(0, 3)):
                await checkpoint()
            served[env] += 1
            house.busy.discard(env)
            house.slots.unpin(env)
            house.slots.used(env)
            if not chances.randint(0, 5):
                house.give(env)
            await checkpoint()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for env in served:
                tasks.start_soon(live, env, random.Random(chance.random()))
    assert set(served.values()) == {6}
    assert house.slots.queue == ()
    for env in house.slots.taken:
        house.give(env)
    await house.fill(*map(str, range(limit)))


def test_the_kind_with_the_fewest_slots_decides() -> None:
    needs = {"browser": "browser", "screen": "display", "db": ""}
    assert capacity(needs, {"browser": 4, "display": 2}) == (2, "display")
    assert capacity(needs, {"browser": 4}) == (4, "browser")
    assert capacity(needs, {"tape": 1}) == (UNLIMITED, "")
    assert capacity(needs, {"*": 3, "display": 5}) == (3, "browser")
    assert capacity({"db": ""}, {"*": 3}) == (UNLIMITED, "")
    assert capacity({}, {"browser": 1}) == (UNLIMITED, "")


async def test_several_who_want_the_same_environment_share_its_slot() -> None:
    house = House(1)
    await house.fill("busy")
    house.busy.add("busy")
    inside: list[int] = []

    async def claim(number: int) -> None:
        async with house.slots.claim("wanted", deadline_s=5):
            inside.append(number)
            house.bound.add("wanted")
            await until(lambda: len(inside) == 3)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(claim, number)
        await until(lambda: len(house.slots.queue) == 3)
        house.let_go("busy")
    assert house.slots.taken == ("wanted",)
    assert house.parked == ["busy"]


async def test_a_claim_that_came_to_nothing_leaves_no_slot_taken() -> None:
    house = House(1)
    with pytest.raises(ZeroDivisionError):
        async with house.slots.claim("a", deadline_s=5):
            raise ZeroDivisionError
    assert house.slots.taken == ()
    await house.fill("b")


async def test_a_claimed_environment_does_not_give_way_and_keeps_its_slot_when_it_is_parked() -> None:
    house = House(1)
    async with house.slots.claim("a", deadline_s=5):
        house.bound.add("a")
        with pytest.raises(NoSlot):
            await house.take("b", deadline_s=0.02)
        house.give("a")  # parked by somebody: the claimer binds it again
        assert house.slots.taken == ("a",)
    assert house.slots.taken == ()
