"""What users of such systems complain of, on real files and a real database: writes that vanish, residue that stays."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from statefork.journal.values import Moment
from tests.crash import examine
from tests.crash.kill_kit import opened

pytestmark = pytest.mark.anyio

CYCLES = 25


async def test_writes_survive_being_parked_and_activated_three_times(tmp_path: Path) -> None:
    async with opened(tmp_path, tmp_path / "state") as hands:
        await hands.create("shop")
        for turn in range(3):
            await hands.write("shop", f"turn {turn}")
            await hands.park("shop")
            await hands.kernel.activate("shop")
            await examine.heads(hands.kernel, hands)
        assert len(hands.tail("shop")) == 3
        examine.contents(hands.kernel, tmp_path / "state", hands.facts)


async def test_what_others_are_built_on_survives_the_end_of_its_environment(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with opened(tmp_path, state) as hands:
        await hands.create("parent")
        await hands.write("parent", "before")
        await hands.fork("parent", ["child"])
        await hands.write("parent", "after")
        await hands.retire("parent")
        assert (await hands.kernel.collect()).collected == ()
        await examine.heads(hands.kernel, hands)
        await hands.fork(Moment(env="parent", generation=2), ["late"])
        await examine.heads(hands.kernel, hands)
        assert hands.tail("late") == hands.tail("child") == ["parent before"]
        hands.will_close()
    examine.tidy(state)
    examine.audited(state)


async def test_environments_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def counts() -> dict[str, int]:
        process = psutil.Process()
        return {
            "descriptors": process.num_fds(),
            "children": len(process.children(recursive=True)),
            "mounts": len(examine.mounted_below(state)),
            "places": len(list((state / "resources").glob("*/*/*"))),
        }

    async with opened(tmp_path, state) as hands:
        await hands.create("first")
        await hands.retire("first")
        before = counts()
        for number in range(CYCLES):
            await hands.create(f"env-{number}")
            await hands.write(f"env-{number}", "something")
            await hands.retire(f"env-{number}")
        assert counts() == before
        assert (await hands.kernel.collect()).collected == ()
    examine.tidy(state)
