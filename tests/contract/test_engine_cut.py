"""One consistent cut: what is written to while it is sealed is sealed again, and what always is makes no cut."""

from __future__ import annotations

import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.cut import TRIES
from statefork.engine.errors import TornCut
from statefork.engine.kernel import Kernel
from tests.contract.engine_kit import STORES, House, put

pytestmark = pytest.mark.anyio


async def prepare(kernel: Kernel) -> None:
    """An environment with a published write and an unpublished one."""
    await kernel.create("shop")
    await put(kernel, "shop", "published", 1)
    await kernel.snapshot("shop")
    await put(kernel, "shop", "tail", 2)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_write_between_the_seals_tears_the_cut(store: str, moment: str) -> None:
    house = House()
    armed = False

    async def hook(call: Call) -> None:
        if armed and (call.resource, call.method, call.when) == (store, "seal", moment):
            branch = kernel.branches("shop")[store]
            house.world.write(branch.id, "meddled", True)

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        armed = True
        with pytest.raises(TornCut) as caught:
            await kernel.snapshot("shop")
        armed = False
        assert caught.value.facts["component"] == store
        assert house.unreached(kernel) == []
        assert kernel.environments["shop"].generation == 2
        await kernel.snapshot("shop")
        assert house.sealed(kernel, "shop", 3, store)["meddled"] is True


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("writes", range(1, TRIES))
async def test_what_is_written_to_meanwhile_is_sealed_again(store: str, moment: str, writes: int) -> None:
    house = House()
    left = 0
    seals: list[str] = []

    async def hook(call: Call) -> None:
        nonlocal left
        if (call.method, call.when) == ("seal", moment):
            seals.append(call.resource)
            if left and call.resource == store:
                left -= 1
                house.world.write(kernel.branches("shop")[store].id, "meddled", left)

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        left, seals[:] = writes, []
        await kernel.snapshot("shop")
        assert {name: seals.count(name) for name in set(seals)} == dict.fromkeys(seals, 1) | {store: 1 + writes}
        assert house.sealed(kernel, "shop", 3, store)["meddled"] == 0
        assert house.unreached(kernel) == []
