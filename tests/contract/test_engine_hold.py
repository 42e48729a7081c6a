"""Freezes that hold newcomers instead of refusing them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from statefork.engine.capsule import Phase
from statefork.engine.errors import EnvironmentFrozen
from statefork.engine.kernel import DrainPolicy, EvaluationContext, Kernel
from statefork.journal.events import ActionBegun, GenerationPublished
from statefork.journal.values import Moment
from tests.contract.engine_kit import House, Pause, put, request, until

pytestmark = pytest.mark.anyio

HOLD = DrainPolicy(hold_s=5)
Switch = Callable[[Kernel, DrainPolicy], Awaitable[object]]

SWITCHES: dict[str, Switch] = {
    "snapshot": lambda kernel, drain: kernel.snapshot("shop", drain=drain),
    "reset": lambda kernel, drain: kernel.reset("shop", drain=drain),
    "restore": lambda kernel, drain: kernel.restore("shop", Moment(env="shop", generation=1), drain=drain),
}


@pytest.mark.parametrize("op", SWITCHES)
async def test_who_comes_during_the_freeze_is_served_on_the_new_generation(op: str) -> None:
    house = House()
    pause = Pause("db", "seal" if op == "snapshot" else "bind")
    async with house.open() as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SWITCHES[op], kernel, HOLD)
            await pause.reached.wait()
            for number in range(3):
                tasks.start_soon(put, kernel, "shop", f"k{number}", number)
            await anyio.wait_all_tasks_blocked()
            assert await house.events(ActionBegun) == []
            pause.go_on.set()
        assert [event.generation for event in await house.events(ActionBegun)] == [2, 2, 2]
        assert {f"k{number}" for number in range(3)} <= house.content(kernel, "shop").keys()


async def test_a_hold_that_is_over_refuses() -> None:
    house = House()
    pause = Pause("db", "seal")
    async with house.open() as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SWITCHES["snapshot"], kernel, DrainPolicy(hold_s=0.02))
            await pause.reached.wait()
            with pytest.raises(EnvironmentFrozen, match="snapshot is under way"):
                await put(kernel, "shop", "k", 1)
            pause.go_on.set()


async def test_after_an_abort_who_was_held_is_served_on_the_old_generation() -> None:
    house = House()
    pause = Pause("db", "seal")
    async with house.open() as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        scope = anyio.CancelScope()

        async def snapshot() -> None:
            with scope:
                await kernel.snapshot("shop", drain=HOLD)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(snapshot)
            await pause.reached.wait()
            tasks.start_soon(put, kernel, "shop", "k", 1)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            pause.go_on.set()
        assert [event.generation for event in await house.events(ActionBegun)] == [1]
        assert [event.generation for event in await house.events(GenerationPublished)] == [1]


async def test_what_an_evaluation_asks_for_is_never_held() -> None:
    """The freeze waits for the evaluation, and that for its answer: held, each would wait for the other."""
    house = House()
    frozen, answered = anyio.Event(), anyio.Event()

    async def check(context: EvaluationContext) -> float:
        await frozen.wait()
        for kind in ("request", "websocket-message"):
            async with kernel.admit(request(kernel, "shop", identity=None, kind=kind)) as lease:
                assert lease.generation == context.generation
        answered.set()
        return 1.0

    async with house.open() as kernel:
        await kernel.create("shop")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.evaluate, "shop", "check", check)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(SWITCHES["reset"], kernel, HOLD)
            await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
            frozen.set()
            with anyio.fail_after(2):
                await answered.wait()
        assert kernel.environments["shop"].generation == 2
