"""An engine that closes while others are in the middle of something: what began ends, and nothing begins any more."""

from __future__ import annotations

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import EngineClosed
from statefork.engine.kernel import Kernel
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize("doing", ["create", "fork", "activate", "reset"])
async def test_what_is_under_way_ends_and_is_parked(house: House, doing: str) -> None:
    began, closing = anyio.Event(), anyio.Event()

    async def hook(call: Call) -> None:
        if (call.method, call.when, call.env) == ("bind", "before", "late"):
            began.set()
            await closing.wait()
        if (call.method, call.env) == ("unbind", "shop"):
            closing.set()

    async def work(kernel: Kernel) -> None:
        match doing:
            case "create":
                await kernel.create("late")
            case "fork":
                await kernel.fork("shop", ["late"])
            case "activate":
                await kernel.activate("late")
            case "reset":
                await kernel.reset("late")

    async with anyio.create_task_group() as tasks:
        async with house.open() as kernel:
            await kernel.create("shop")
            await put(kernel, "shop", "a", 1)
            if doing in ("activate", "reset"):
                await kernel.create("late", activate=doing == "reset")
            house.world.hook = hook
            tasks.start_soon(work, kernel)
            await began.wait()
    assert kernel.not_parked == ()
    assert kernel.environments["late"].phase is Phase.PARKED
    assert kernel.environments["late"].generation == (2 if doing == "reset" else 1)
    house.world.hook = None
    async with house.open() as kernel:
        assert kernel.recovered.clean
        await put(kernel, "late", "a", 2)


async def test_nothing_begins_any_more(house: House) -> None:
    refused = 0

    async def hook(call: Call) -> None:
        nonlocal refused
        if (call.method, call.when, call.env) == ("unbind", "before", "shop"):
            for command in (
                kernel.create("new"),
                kernel.activate("rests"),
                kernel.reset("rests"),
                kernel.retire("rests"),
            ):
                with pytest.raises(EngineClosed):
                    await command
                refused += 1
            (result,) = await kernel.create_each(["more"])
            assert isinstance(result.error, EngineClosed)

    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("rests", activate=False)
        house.world.hook = hook
    assert refused >= 4
    assert kernel.not_parked == ()
    house.world.hook = None
    async with house.open() as kernel:
        assert kernel.recovered.clean
        assert set(kernel.environments) == {"shop", "rests"}
