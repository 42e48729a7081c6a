"""What the sealed versions lie on may refuse to keep them: then nothing of them is published."""

from __future__ import annotations

import pytest

from statefork.engine.errors import ResourceFailed, TransitionAborted
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


class Ground:
    """What everything lies on."""

    def __init__(self) -> None:
        self.asked = 0
        self.broken = False

    async def keep(self) -> None:
        self.asked += 1
        if self.broken:
            raise ResourceFailed("the ground is broken", hint="Mend it")


async def test_what_can_not_be_kept_is_not_published() -> None:
    house, ground = House(), Ground()
    async with house.open(keep=ground.keep) as kernel:
        await kernel.create("a")
        assert ground.asked == 1, "the bases are sealed, too"
        await put(kernel, "a", "key", "kept")
        await kernel.snapshot("a")
        assert ground.asked == 2
        await kernel.reset("a")
        assert ground.asked == 2, "nothing new was sealed"
        await put(kernel, "a", "key", "tail")
        ground.broken = True
        with pytest.raises(TransitionAborted, match="can't be kept: the ground is broken") as caught:
            await kernel.snapshot("a")
        assert caught.value.hint == "Mend it"
        assert caught.value.facts["cause"] == "resource_failed"
        assert caught.value.facts["generation"] == 3
        assert kernel.environments["a"].generation == 3
        await put(kernel, "a", "other", "serves on")
        ground.broken = False
        assert (await kernel.snapshot("a")).generation == 4


async def test_a_base_that_can_not_be_kept_is_tried_again() -> None:
    house, ground = House(), Ground()
    ground.broken = True
    async with house.open(keep=ground.keep) as kernel:
        with pytest.raises(ResourceFailed, match="the ground is broken"):
            await kernel.create("a")
        ground.broken = False
        await kernel.create("a")
