"""More environments than slots, through the kernel: who is parked, who waits, and that nothing is lost by it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from statefork.engine.capsule import Phase
from statefork.engine.errors import ActionFailed, EnvironmentExists, EnvironmentRetired, NoSlot, StateforkError
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.journal.events import ActionBegun, EnvironmentActivated, EnvironmentParked, EnvironmentQueued
from statefork.journal.values import Moment
from tests.contract.engine_kit import CONTRACT, SETTINGS, House, Pause, put, until

pytestmark = pytest.mark.anyio

SEATED = CONTRACT.replace('visits = "visits"', 'visits = "visits"\nslot = "browser"')


@asynccontextmanager
async def open_house(
    slots: int, *, wait_s: float = 60, more_settings: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[House, Kernel]]:
    house = House(contract=SEATED)
    settings = replace(SETTINGS, max_slots={"browser": slots}, slot_wait_s=wait_s, **(more_settings or {}))
    async with house.open(settings=settings, **more) as kernel:
        yield house, kernel


def bound(kernel: Kernel) -> set[str]:
    return {env for env, capsule in kernel.environments.items() if capsule.phase is Phase.SERVING}


@contextmanager
def impatient(kernel: Kernel) -> Iterator[None]:
    """In the body nobody waits for a slot longer than a moment; elsewhere a busy machine fails no test."""
    seating = kernel._conductor.seating
    patient, seating._wait_s = seating._wait_s, 0.05
    try:
        yield
    finally:
        seating._wait_s = patient


@asynccontextmanager
async def busy(kernel: Kernel, env: str) -> AsyncIterator[None]:
    """Somebody else's lease on the environment."""
    over = anyio.Event()
    ready = anyio.Event()

    async def hold() -> None:
        async with kernel.lease(env, "somebody"):
            ready.set()
            await over.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await ready.wait()
        try:
            yield
        finally:
            over.set()


async def test_more_environments_than_slots_each_keep_their_own_state() -> None:
    async with open_house(2) as (house, kernel):
        names = [f"e{number}" for number in range(6)]
        for env in names:
            await kernel.create(env)
            assert len(bound(kernel)) <= 2
        for turn in range(3):
            for env in names:
                await put(kernel, env, f"turn {turn}", env)
                assert env in bound(kernel)
                assert len(bound(kernel)) <= 2
        for env in names:
            await kernel.activate(env)
            content = house.content(kernel, env)
            assert {key: content[key] for key in content if key.startswith("turn")} == {
                f"turn {turn}": env for turn in range(3)
            }
        reasons = {event.reason for event in await house.events(EnvironmentParked)}
        assert reasons == {"its slot was needed"}


async def test_the_one_that_was_used_last_stays() -> None:
    async with open_house(2) as (_, kernel):
        for env in ("a", "b"):
            await kernel.create(env)
        await put(kernel, "a", "k", 1)
        await kernel.create("c")
        assert bound(kernel) == {"a", "c"}


async def test_a_pinned_environment_stays_bound() -> None:
    async with open_house(2) as (_, kernel):
        for env in ("a", "b"):
            await kernel.create(env)
        with kernel.pinned("a"):
            for env in ("c", "d"):
                await kernel.create(env)
                assert "a" in bound(kernel)


async def test_where_all_are_in_use_it_is_said_who_holds_the_slots_and_that_one_waited() -> None:
    async with open_house(1) as (house, kernel):
        await kernel.create("a")
        async with busy(kernel, "a"):
            with impatient(kernel), pytest.raises(NoSlot, match=r"a \(in use\)"):
                await kernel.create("b")
            assert "b" not in kernel.environments
        await kernel.create("b")
        async with busy(kernel, "b"):
            with impatient(kernel), pytest.raises(NoSlot, match=r"b \(in use\)"):
                await put(kernel, "a", "k", 1)
        assert [(event.env, event.position) for event in await house.events(EnvironmentQueued)] == [
            ("b", 1),
            ("b", 1),
            ("a", 1),
        ]
        await put(kernel, "a", "k", 1)


async def test_nobody_waits_for_a_slot_to_hear_that_it_is_in_vain() -> None:
    async with open_house(1, wait_s=60) as (_, kernel):
        await kernel.create("a")
        await kernel.create("gone")
        await kernel.retire("gone")
        await kernel.activate("a")
        async with busy(kernel, "a"):
            with anyio.fail_after(5):
                with pytest.raises(EnvironmentExists):
                    await kernel.create("a")
                with pytest.raises(EnvironmentRetired):
                    await put(kernel, "gone", "k", 1)
                with pytest.raises(EnvironmentRetired):
                    await kernel.activate("gone")


async def test_a_full_house_is_forked_parked_reset_and_retired_without_a_slot() -> None:
    async with open_house(1) as (house, kernel):
        await kernel.create("parked")
        await put(kernel, "parked", "k", "kept")
        await kernel.create("busy")
        assert bound(kernel) == {"busy"}
        async with busy(kernel, "busy"):
            (child,) = await kernel.fork("parked", ["child"], activate=False)
            assert child.error is None
            assert house.sealed(kernel, "child", 1)["k"] == "kept"
            await kernel.reset("parked")
            await kernel.restore("parked", Moment(env="parked", generation=2))
            await kernel.clone("parked", "copy", activate=False)
            await kernel.retire("parked")
            assert bound(kernel) == {"busy"}
        assert (await put(kernel, "child", "k2", 1)).outcome == "ok"
        assert house.content(kernel, "child")["k"] == "kept"


async def test_a_switch_stages_beside_what_it_replaces_also_in_a_full_house() -> None:
    async with open_house(2) as (house, kernel):
        for env in ("a", "b"):
            await kernel.create(env)
            await put(kernel, env, "k", env)
        async with anyio.create_task_group() as tasks:
            for env in ("a", "b"):
                tasks.start_soon(kernel.reset, env)
        assert bound(kernel) == {"a", "b"}
        assert all("k" not in house.content(kernel, env) for env in ("a", "b"))


async def test_one_that_is_used_while_it_should_give_way_is_left_alone() -> None:
    async with open_house(1) as (house, kernel):
        await kernel.create("a")
        other = anyio.Event()

        async def create() -> None:
            await kernel.create("b")
            other.set()

        async with anyio.create_task_group() as tasks:
            async with busy(kernel, "a"):
                tasks.start_soon(create)
                await until(lambda: len(kernel.slots.queue) == 1)
                await put(kernel, "a", "k", 1)
                assert not other.is_set()
            await other.wait()
        assert house.sealed(kernel, "a", 2)["k"] == 1


async def test_a_slot_is_free_again_after_whatever_ends_its_use() -> None:
    house = House(contract=SEATED)
    fail: set[str] = set()

    async def hook(call: Any) -> None:
        if call.when == "before" and (call.resource, call.method) == ("page", "bind") and call.env in fail:
            raise OSError("no page")

    async with house.open(settings=replace(SETTINGS, max_slots={"browser": 1}, slot_wait_s=60), hook=hook) as kernel:
        await kernel.create("a")
        assert kernel.slots.taken == ("a",)
        fail.add("b")
        with pytest.raises(StateforkError, match="no page"):
            await kernel.create("b")
        assert kernel.slots.taken == ()
        await kernel.activate("a")
        await kernel.park("a")
        assert kernel.slots.taken == ()
        fail.add("a")
        with pytest.raises(StateforkError, match="no page"):
            await put(kernel, "a", "k", 1)
        assert kernel.slots.taken == ()
        fail.clear()
        await put(kernel, "a", "k", 1)
        await kernel.recover("a")
        assert kernel.slots.taken == ()
        await kernel.activate("a")
        await kernel.retire("a")
        assert kernel.slots.taken == ()


async def test_a_slot_is_free_again_when_the_one_who_waited_was_cancelled_while_it_was_bound() -> None:
    pause = Pause("page", "bind")
    house = House(contract=SEATED)
    async with house.open(settings=replace(SETTINGS, max_slots={"browser": 1}), hook=pause) as kernel:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kernel.create, "a")
                await pause.reached.wait()
                scope.cancel()
        assert kernel.slots.taken == ()
        await kernel.create("b")


async def test_a_collection_does_not_wait_for_those_who_wait_for_a_slot() -> None:
    async with open_house(1) as (_, kernel):
        await kernel.create("a")
        await kernel.create("b")
        async with anyio.create_task_group() as tasks:
            async with busy(kernel, "b"):
                tasks.start_soon(kernel.activate, "a")
                await until(lambda: len(kernel.slots.queue) == 1)
                with anyio.fail_after(5):
                    await kernel.collect()
        assert bound(kernel) == {"a"}


async def test_of_many_children_as_many_are_bound_as_there_are_slots_and_all_can_be_used() -> None:
    async with open_house(2) as (house, kernel):
        await kernel.create("a")
        await put(kernel, "a", "k", 1)
        children = [f"c{number}" for number in range(7)]
        results = await kernel.fork("a", children)
        assert [result.error for result in results] == [None] * 7
        activated = [event.env for event in await house.events(EnvironmentActivated) if event.env in children]
        assert sorted(activated) == ["c0", "c1"], "to bind the others would only park those"
        assert bound(kernel) == {"c0", "c1"}
        for child in children:
            await put(kernel, child, "own", child)
        assert len(bound(kernel)) == 2


async def test_a_child_that_finds_no_slot_is_born_all_the_same() -> None:
    async with open_house(1) as (_, kernel):
        await kernel.create("a")
        async with busy(kernel, "a"):
            with impatient(kernel):
                (child,) = await kernel.fork(Moment(env="a", generation=1), ["c"])
                (made,) = await kernel.create_each(["d"])
            assert (child.error, made.error) == (None, None)
            assert bound(kernel) == {"a"}
        await put(kernel, "c", "own", 1)
        await put(kernel, "d", "own", 2)


async def test_evaluations_and_observations_bind_a_parked_environment() -> None:
    async with open_house(1) as (_, kernel):
        await kernel.create("a")
        await put(kernel, "a", "k", 1)
        await kernel.create("b")

        async def check(context: EvaluationContext) -> float:
            seen = await context.observation()
            assert isinstance(seen.value, dict)
            return float(seen.value["k"] == 1)

        assert await kernel.evaluate("a", "check", check) == 1.0
        assert (await kernel.observe("b")).value == {"greeting": "hello"}


@pytest.mark.parametrize("seed", range(12))
async def test_agents_on_more_environments_than_slots(seed: int) -> None:
    """Whatever they do at once: everybody gets on, writes are where they belong, and there are never too many."""
    chance = random.Random(seed)
    async with open_house(chance.randint(1, 3), wait_s=30) as (house, kernel):
        names = [f"e{number}" for number in range(5)]
        written: dict[str, int] = dict.fromkeys(names, 0)

        async def agent(env: str, chances: random.Random) -> None:
            for number in range(6):
                await put(kernel, env, "count", number)
                written[env] = number
                assert len(kernel.slots.taken) <= kernel.slots.limit
                doing: Callable[[], Awaitable[object]] | None = chances.choice(
                    (None, lambda: kernel.snapshot(env), lambda: kernel.park(env), lambda: kernel.observe(env))
                )
                if doing is not None:
                    await doing()

        for env in names:
            await kernel.create(env)
        async with anyio.create_task_group() as tasks:
            for env in names:
                tasks.start_soon(agent, env, random.Random(chance.random()))
        for env in names:
            await kernel.activate(env)
            assert house.content(kernel, env)["count"] == written[env]


async def test_an_action_that_fails_keeps_its_slot() -> None:
    async with open_house(1) as (_, kernel):
        await kernel.create("a")
        result = await kernel.act("a", {"type": "fail", "in": "db", "key": "card"})
        assert result.code == ActionFailed.code
        assert bound(kernel) == {"a"}


async def test_who_comes_while_an_environment_gives_way_is_served_when_it_has_a_slot_again() -> None:
    pause = Pause("db", "quiesce")
    house = House(contract=SEATED)
    async with house.open(settings=replace(SETTINGS, max_slots={"browser": 1}), hook=pause) as kernel:
        await kernel.create("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.create, "b")
            await pause.reached.wait()
            tasks.start_soon(put, kernel, "a", "k", "late")
            await anyio.wait_all_tasks_blocked()
            assert not await house.events(ActionBegun)
            pause.go_on.set()
        await kernel.activate("a")
        assert house.content(kernel, "a")["k"] == "late"


async def test_who_is_asked_for_just_while_it_gives_way_waits_for_a_slot_as_everybody() -> None:
    pause = Pause("page", "seal")
    async with open_house(1, hook=pause) as (_, kernel):
        await kernel.create("a")
        await put(kernel, "a", "dirty", 1)
        await kernel.create("b", activate=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.activate, "b")
            await pause.reached.wait()
            tasks.start_soon(kernel.activate, "a")  # it is bound still, and waits for its turn
            await anyio.wait_all_tasks_blocked()
            pause.go_on.set()
        assert kernel.slots.taken == tuple(bound(kernel))
        assert len(bound(kernel)) == 1


async def test_a_slot_is_not_free_while_what_stands_in_it_is_being_closed() -> None:
    pause = Pause("page", "unbind")
    async with open_house(1, hook=pause) as (house, kernel):
        await kernel.create("a")
        await kernel.create("b", activate=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.park, "a")
            await pause.reached.wait()
            async with anyio.create_task_group() as impatient:  # who wants it back meanwhile gives up
                impatient.start_soon(kernel.activate, "a")
                await anyio.wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            tasks.start_soon(kernel.activate, "b")
            await anyio.wait_all_tasks_blocked()
            assert {identity.env for branch, identity in house.world.bindings if branch.startswith("page-")} == {"a"}
            assert kernel.slots.taken == ("a",)
            pause.go_on.set()
        assert bound(kernel) == {"b"}
