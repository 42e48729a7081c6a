"""Long work tells how far it is, and what nobody reaches is removed several at once."""

from __future__ import annotations

import copy

import anyio
import pytest

from statefork.adapters.resources.memory_world import Call
from statefork.engine.kernel import Kernel
from statefork.journal.events import OrphanCollected
from statefork.journal.values import Branch, Sealed
from tests.contract.engine_kit import CONTRACT, House, put

pytestmark = pytest.mark.anyio

STRAYS = 5
TIMEOUT_S = 5.0


def plant(house: House) -> None:
    """Versions and branches that nothing reaches."""
    namespace = next(iter(house.world.branches.values()))
    for number in range(STRAYS):
        version = f"db-v9{number}"
        house.world.versions[version] = Sealed(journal="memory", resource="db", adapter="memory", version=version)
        stray = copy.copy(namespace)
        stray.handle = Branch(
            journal="memory", resource="db", adapter="memory", id=f"db-b9{number}", env="x", epoch=1, base="?"
        )
        house.world.branches[stray.handle.id] = stray


class Together:
    """A hook that lets nobody discard before several want to: it waits for ever where they come one by one."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._there = 0
        self._all = anyio.Event()

    async def __call__(self, call: Call) -> None:
        if (call.method, call.when) != ("discard", "before"):
            return
        self._there += 1
        if self._there % self._wanted == 0:
            done, self._all = self._all, anyio.Event()
            done.set()
        else:
            with anyio.fail_after(TIMEOUT_S):
                await self._all.wait()


async def test_orphans_of_a_kind_go_together_and_kinds_one_after_the_other() -> None:
    house = House()
    told: list[tuple[int, int]] = []
    async with house.open() as kernel:
        await kernel.create("shop")
        plant(house)
        house.world.hook = Together(STRAYS)
        report = await kernel.collect(lambda done, of: told.append((done, of)))
        house.world.hook = None
        assert not report.failed
        kinds = [one.kind for one in report.collected]
        assert kinds == ["branch"] * STRAYS + ["sealed"] * STRAYS
        journaled = [event.kind for event in await house.events(OrphanCollected) if isinstance(event, OrphanCollected)]
        assert journaled == kinds
        assert told == [(done, 2 * STRAYS) for done in range(2 * STRAYS + 1)]


async def test_what_can_not_be_removed_keeps_no_other() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        plant(house)

        async def refuse(call: Call) -> None:
            if (call.method, call.when, call.env) == ("discard", "before", "x"):
                raise OSError("it is held")

        house.world.hook = refuse
        report = await kernel.collect()
        house.world.hook = None
        assert {one.error for one in report.failed} == {"it is held"}
        assert len(report.failed) == len(report.collected) == STRAYS
        assert not (await kernel.collect()).failed


async def test_opening_tells_what_it_does() -> None:
    house = House()
    async with house.open() as kernel:
        for name in ("one", "two"):
            await kernel.create(name)
            await put(kernel, name, "a", 1)
        crashed = House()
        crashed.world = house.world.survivors()
        crashed.disk.rows, crashed.disk.synced = list(house.disk.rows), len(house.disk.rows)
    plant(crashed)
    told: list[tuple[float, str]] = []
    async with crashed.open(tell=lambda fraction, doing: told.append((round(fraction, 2), doing))) as kernel:
        assert kernel.recovered.orphans >= 2 * STRAYS
        removed = f"removing what nothing reaches: {kernel.recovered.orphans}"
    doing = list(dict.fromkeys(text for _, text in told))
    starting = [f"starting {name}" for name in crashed.contract.order]
    assert doing[: len(starting) + 1] == [*starting, "recovering environments: 2"]
    removing = doing[len(starting) + 1 :]  # of one resource after the other
    assert (removing[-1], {text.rpartition(":")[0] for text in removing}) == (removed, {removed.rpartition(":")[0]})
    assert [fraction for fraction, text in told if text == "recovering environments: 2"] == [0.5, 1.0]
    assert [fraction for fraction, text in told if text == removed][-1] == 1.0
    told.clear()
    async with crashed.open(tell=lambda fraction, doing: told.append((fraction, doing))):
        assert [text for _, text in told] == starting


async def test_bulk_commands_count_what_is_done() -> None:
    house = House()
    told: list[tuple[int, int]] = []

    def count(done: int, of: int) -> None:
        told.append((done, of))

    async with house.open() as kernel:
        await kernel.create_each(["one", "two", "three"], count=count)
        assert sorted(told) == [(1, 3), (2, 3), (3, 3)]
        told.clear()
        await kernel.fork("one", 4, count=count, key="k")
        assert sorted(told) == [(1, 4), (2, 4), (3, 4), (4, 4)]
        told.clear()
        await kernel.reset_each(["one", "two"], count=count)
        assert sorted(told) == [(1, 2), (2, 2)]
        await refused(kernel)


async def refused(kernel: Kernel) -> None:
    """What fails is done, too."""
    told: list[tuple[int, int]] = []
    results = await kernel.create_each(["one", "new"], count=lambda done, of: told.append((done, of)))
    assert [result.error is None for result in results] == [False, True]
    assert sorted(told) == [(1, 2), (2, 2)]


async def test_bindings_stand_in_the_contracts_order() -> None:
    """They are made side by side: whoever is ready first is not the first to be told."""
    house = House(contract=CONTRACT)
    names = list(house.contract.resources)
    ready = {name: anyio.Event() for name in names}

    async def reversed_(call: Call) -> None:
        if (call.method, call.when) == ("bind", "before") and call.resource in ("db", "media"):
            if call.resource == "db":
                with anyio.fail_after(TIMEOUT_S):
                    await ready["media"].wait()
        elif (call.method, call.when, call.resource) == ("bind", "after", "media"):
            ready["media"].set()

    async with house.open(hook=reversed_) as kernel:
        await kernel.create("shop")
        assert list(kernel.bindings("shop")) == names
