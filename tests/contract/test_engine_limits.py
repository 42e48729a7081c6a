"""What an engine takes at once: one more is refused by an error that names the limit, and nothing else suffers."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from msgspec.structs import replace

from statefork.engine.errors import LimitReached, OutOfRange
from statefork.engine.settings import DrainPolicy
from statefork.journal.errors import LimitExceeded
from statefork.journal.events import ActionBegun, RequestRefused
from tests.contract.engine_kit import SETTINGS, House, Pause, put, request
from tests.contract.test_engine_seating import open_house

pytestmark = pytest.mark.anyio


def facts(error: LimitReached) -> tuple[object, object]:
    return error.facts["limit"], error.facts["most"]


async def test_live_leases_of_one_environment() -> None:
    house = House()
    async with house.open(settings=replace(SETTINGS, leases_max=3)) as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        async with AsyncExitStack() as held:
            for _ in range(2):
                await held.enter_async_context(kernel.lease("shop", "client"))
            async with kernel.lease("shop", "client"):
                with pytest.raises(LimitReached, match="3 leases are live on shop") as caught:
                    await put(kernel, "shop", "k", 1)
                assert facts(caught.value) == ("leases_max", 3)
                with pytest.raises(LimitReached):
                    async with kernel.admit(request(kernel, "shop")):
                        raise AssertionError("admitted")
                await put(kernel, "other", "k", 1)
            await put(kernel, "shop", "k", 2)
        (refused,) = await house.events(RequestRefused)
        assert isinstance(refused, RequestRefused)
        assert (refused.status, refused.code) == (503, "limit_reached")
        begun = [event.env for event in await house.events() if isinstance(event, ActionBegun)]
        assert begun == ["other", "shop"]


async def test_commands_that_wait_for_their_turn() -> None:
    house = House()
    pause = Pause("db", "seal")
    async with house.open(settings=replace(SETTINGS, waiting_max=2)) as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            for _ in range(3):  # one runs, two wait
                tasks.start_soon(kernel.snapshot, "shop")
            await pause.reached.wait()
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(LimitReached, match="2 commands wait for their turn on shop") as caught:
                await kernel.reset("shop")
            assert facts(caught.value) == ("waiting_max", 2)
            pause.go_on.set()
        assert kernel.environments["shop"].generation == 4


async def test_callers_that_a_freeze_holds_back() -> None:
    house = House()
    pause = Pause("db", "seal")
    async with house.open(settings=replace(SETTINGS, waiting_max=2)) as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: kernel.snapshot("shop", drain=DrainPolicy(hold_s=5)))
            await pause.reached.wait()
            for number in range(2):
                tasks.start_soon(put, kernel, "shop", f"k{number}", number)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(LimitReached, match="2 callers are held back by a freeze of shop"):
                await put(kernel, "shop", "late", 1)
            pause.go_on.set()
        assert {"k0", "k1"} <= house.content(kernel, "shop").keys()


async def test_activations_that_wait_for_a_slot() -> None:
    async with open_house(1, more_settings={"slot_queue_max": 2}) as (_, kernel):
        for env in "abcd":
            await kernel.create(env, activate=False)
        async with anyio.create_task_group() as tasks:
            async with kernel.lease("a", "somebody"):
                for env in "bc":
                    tasks.start_soon(kernel.activate, env)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(LimitReached, match="2 activations wait for a browser slot") as caught:
                    await kernel.activate("d")
                assert facts(caught.value) == ("slot_queue_max", 2)
                assert {one.env for one in kernel.slots.queue} == {"b", "c"}


async def test_an_action_too_big_for_the_journal_is_not_carried_out() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(LimitExceeded, match="event_bytes_max"):
            await put(kernel, "shop", "k", "x" * (5 * 1024 * 1024))
        assert "k" not in house.content(kernel, "shop")
        await put(kernel, "shop", "k", 1)
        (begun,) = await house.events(ActionBegun)
        assert isinstance(begun, ActionBegun)
        assert begun.number == 1, "what was refused took no number"


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_a_number_that_means_nothing_is_refused_before_anything_is_done(timeout_s: float) -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(OutOfRange):
            await kernel.act("shop", {"type": "put", "key": "k", "value": 1}, timeout_s=timeout_s)
        for wrong in (0, -1, ()):
            with pytest.raises(OutOfRange):
                await kernel.fork("shop", wrong)
        with pytest.raises(OutOfRange):
            await kernel.create_each([])
        assert (list(kernel.environments), kernel.environments["shop"].actions) == (["shop"], 0)
