"""Freezes that hold newcomers instead of refusing them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import pytest
from msgspec.structs import replace

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import EngineClosed, EnvironmentFrozen, InDoubt, StateforkError, TransitionAborted
from statefork.engine.kernel import DrainPolicy, EvaluationContext, Kernel
from statefork.journal.errors import JournalUnavailable
from statefork.journal.events import ActionBegun, GenerationPublished
from statefork.journal.values import Moment
from tests.contract.engine_kit import SETTINGS, House, Pause, put, request, until

pytestmark = pytest.mark.anyio

HOLD = DrainPolicy(hold_s=5)
FOR_EVER = DrainPolicy(hold_s=math.inf)
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


async def answer(work: Awaitable[object]) -> str:
    """The code of the error that was the answer; empty where it was done. Whoever gets none fails here."""
    try:
        with anyio.fail_after(5):
            await work
    except StateforkError as error:
        return error.code
    return ""


@pytest.mark.parametrize("op", SWITCHES)
async def test_after_a_failure_who_was_held_is_served_on_the_old_generation_once(op: str) -> None:
    house = House()
    pause = Pause("db", "seal" if op == "snapshot" else "bind")
    async with house.open() as kernel:
        await kernel.create("shop")

        async def hook(call: Call) -> None:
            await pause(call)
            if pause.reached.is_set() and call.method in ("seal", "bind"):
                raise OSError("no room")

        async def switch() -> None:
            with pytest.raises(TransitionAborted):
                await SWITCHES[op](kernel, FOR_EVER)

        house.world.hook = hook
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(switch)
            await pause.reached.wait()
            for number in range(3):
                tasks.start_soon(put, kernel, "shop", f"k{number}", number)
            await anyio.wait_all_tasks_blocked()
            pause.go_on.set()
        assert [event.generation for event in await house.events(ActionBegun)] == [1, 1, 1]
        assert {f"k{number}" for number in range(3)} <= house.content(kernel, "shop").keys()


async def test_who_gives_up_while_he_is_held_has_done_nothing_and_leaves_his_place() -> None:
    house = House()
    pause = Pause("db", "seal")
    async with house.open(settings=replace(SETTINGS, waiting_max=1)) as kernel:
        await kernel.create("shop")
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SWITCHES["snapshot"], kernel, FOR_EVER)
            await pause.reached.wait()
            with anyio.move_on_after(0.02) as own:
                await put(kernel, "shop", "late", 1)
            assert own.cancelled_caught
            async with anyio.create_task_group() as others:
                others.start_soon(put, kernel, "shop", "cancelled", 1)
                await anyio.wait_all_tasks_blocked()
                others.cancel_scope.cancel()
            tasks.start_soon(put, kernel, "shop", "patient", 1)
            await anyio.wait_all_tasks_blocked()
            pause.go_on.set()
        assert len(await house.events(ActionBegun)) == 1
        assert house.content(kernel, "shop").keys() & {"late", "cancelled", "patient"} == {"patient"}


@pytest.mark.parametrize("op", [*SWITCHES, "park"])
async def test_where_the_freeze_can_not_be_settled_who_is_held_hears_it_at_once(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    pause = Pause("db", "bind" if op in ("reset", "restore") else "seal")
    answers: list[str] = []

    def lost(*_: object, **__: object) -> None:
        raise JournalUnavailable("no answer, and nothing can be read back")

    async def switch() -> None:
        with pytest.raises(InDoubt):
            await (SWITCHES[op](kernel, FOR_EVER) if op in SWITCHES else kernel.park("shop", drain=FOR_EVER))

    async def held() -> None:
        answers.append(await answer(put(kernel, "shop", "k", 1)))

    async def message() -> None:
        async with kernel.admit(request(kernel, "shop", kind="websocket-message")):
            pass

    async def held_message() -> None:
        answers.append(await answer(message()))

    async with house.open(check=False) as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "tail", 1)
        house.world.hook = pause
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(switch)
            await pause.reached.wait()
            tasks.start_soon(held)
            tasks.start_soon(held)
            tasks.start_soon(held_message)
            await anyio.wait_all_tasks_blocked()
            assert house.journal is not None
            monkeypatch.setattr(house.journal, "append", lost)
            monkeypatch.setattr(house.journal, "read", lost)
            pause.go_on.set()
        assert answers == ["in_doubt"] * 3
        assert await answer(put(kernel, "shop", "k", 1)) == "in_doubt", "it is not frozen for a short while"
        monkeypatch.undo()
    async with house.open() as kernel:
        await put(kernel, "shop", "after", 1)
        assert "k" not in house.content(kernel, "shop")


async def test_an_engine_that_closes_leaves_nobody_held() -> None:
    """Also where its patience ends before the transition does: the next opening recovers the environment then."""
    house = House()
    pause = Pause("db", "seal")
    answers: list[str] = []

    async def held() -> None:
        answers.append(await answer(put(kernel, "shop", "k", 1)))

    async def snapshot() -> None:
        answers.append(await answer(kernel.snapshot("shop", drain=FOR_EVER)))

    async with anyio.create_task_group() as tasks:
        async with house.open(settings=replace(SETTINGS, close_s=0.02), check=False) as kernel:
            await kernel.create("shop")
            house.world.hook = pause
            tasks.start_soon(snapshot)
            await pause.reached.wait()
            tasks.start_soon(held)
            tasks.start_soon(held)
            await anyio.wait_all_tasks_blocked()
        assert kernel.not_parked == ("shop",)
        await anyio.wait_all_tasks_blocked()
        assert answers == [EngineClosed.code] * 2
        assert await answer(put(kernel, "shop", "k", 1)) == EngineClosed.code
        house.world.hook = None
        pause.go_on.set()
    async with house.open() as kernel:
        assert kernel.environments["shop"].head.op == "recover"
        assert await house.events(ActionBegun) == []


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
