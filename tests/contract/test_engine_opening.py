"""Opening an engine: what fails there is raised as it is, not in a group of one."""

from __future__ import annotations

import anyio
import pytest

from statefork.journal.errors import JournalUnavailable
from tests.contract.engine_kit import House

pytestmark = pytest.mark.anyio


async def test_a_recovery_that_can_not_be_journaled_says_so() -> None:
    house = House()
    with anyio.CancelScope() as crash:
        async with house.open() as kernel:
            await kernel.create("a")
            await kernel.create("b")
            disk, world = house.disk, house.world.survivors()
            rows = list(disk.rows)
            crash.cancel()
            await anyio.lowlevel.checkpoint()
    house.world = world
    house.disk.rows[:] = rows  # what the closing engine wrote was never written
    house.disk.synced = len(rows)
    house.disk.checkpoints.clear()

    commits = 0

    async def full() -> None:
        nonlocal commits
        commits += 1
        if commits > 1:  # the first says that the engine has started
            raise JournalUnavailable("the disk is full")

    with pytest.raises(JournalUnavailable, match="the disk is full"):
        async with house.open(before_commit=full):
            raise AssertionError("it did not open")
