"""One true journal, made by the engine: everything that can be said in a journal is said in it, and nothing is wrong.

a   acts, is given input, snapshotted, judged, restored, refused a late request, parked and bound again; crashes
b   forked from a@2, acts, retired            c   cloned from a@2, acts
g   five snapshots, one after an opaque action; @3 is marked, h forked from @2; then @2 and @4 go, and @3 is restored
i   with a snapshot after each action, of which the last one stays: @2 goes when @3 is published
d   acts, snapshotted over a revoked action, then a reset of it fails          e   is never founded
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import LeaseRevoked, ResourceFailed, TransitionAborted
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.policy import Choice
from statefork.engine.retention import Retention
from statefork.journal.codec import Codec
from statefork.journal.errors import StateforkError
from statefork.journal.log import Recorded
from statefork.journal.memory import MemoryDisk
from statefork.journal.values import Moment
from tests.contract.engine_kit import REVOKE, SMALL, House, put, request

Events = list[tuple[str, dict[str, Any]]]
_made: list[tuple[str, bytes]] = []


def true_events() -> Events:
    """Stream and event of each row; made once, given out as copies."""
    if not _made:
        codec = Codec()
        _made.extend((one.stream, codec.encode(one.event)) for one in anyio.run(_lives, backend="trio"))
    return [(stream, json.loads(raw)) for stream, raw in _made]


async def _lives() -> list[Recorded]:
    house = House(contract=SMALL)
    async with house.open(check=False) as kernel:
        await _first_life(house, kernel)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wait, kernel, "a")
            await _journaled(house, "a", 3)
            crashed = House(contract=SMALL)
            crashed.disk = MemoryDisk()
            crashed.disk.rows = list(house.disk.rows)
            crashed.disk.synced = len(crashed.disk.rows)
            crashed.world = house.world.survivors()
            house.world.signal("never")
    async with crashed.open() as kernel:
        await put(kernel, "a", "k", 9)
        await kernel.snapshot("a")
    async with crashed.open() as kernel:
        await _tidied(kernel)
        await put(kernel, "c", "k", 9)
        return await crashed.recorded()


async def _first_life(house: House, kernel: Kernel) -> None:
    await kernel.create("a")
    await put(kernel, "a", "k", 1)
    async with kernel.lease("a", "curl") as lease:
        kernel.record_input(lease, method="POST", url="http://notes.example/", headers={}, body=b"tea", status=200)
    await put(kernel, "a", "k", 2)
    await kernel.snapshot("a")
    await put(kernel, "a", "k", 3)
    await kernel.evaluate("a", "bought", _judge)
    (child,) = await kernel.fork(Moment(env="a", generation=2), ["b"])
    assert child.error is None
    await put(kernel, "b", "k", 4)
    late = request(kernel, "a")
    await kernel.restore("a", Moment(env="a", generation=1))
    with pytest.raises(StateforkError):
        async with kernel.admit(late):
            raise AssertionError("a ticket of an old epoch was accepted")
    await put(kernel, "a", "k", 5)
    await kernel.clone(Moment(env="a", generation=2), "c")
    await put(kernel, "c", "k", 6)
    await _troubles(house, kernel)
    await kernel.park("a")
    await put(kernel, "a", "k", 7)
    await kernel.retire("b")


async def _troubles(house: House, kernel: Kernel) -> None:
    await kernel.create("d")
    await put(kernel, "d", "k", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_wait, kernel, "d")
        await _journaled(house, "d", 2)
        await kernel.snapshot("d", drain=REVOKE)
    with _failing(house, "d"):
        with pytest.raises(TransitionAborted):
            await kernel.reset("d")
    await put(kernel, "d", "k", 2)
    with _failing(house, "e"):
        with pytest.raises(TransitionAborted):
            await kernel.create("e")


async def _tidied(kernel: Kernel) -> None:
    await kernel.create("g")
    for number in range(2, 5):
        await put(kernel, "g", "k", number)
        await kernel.snapshot("g")
    async with kernel.raw("g"):
        pass
    await put(kernel, "g", "k", 5)
    await kernel.snapshot("g")
    await put(kernel, "g", "k", 6)
    await kernel.snapshot("g")
    await kernel.upkeep.mark(Moment(env="g", generation=3), "in the middle")
    (child,) = await kernel.fork(Moment(env="g", generation=2), ["h"])
    assert child.error is None
    assert [one.generation for one in await kernel.upkeep.prune("g", Retention(last=1))] == [2, 4]
    await kernel.restore("g", Moment(env="g", generation=3))
    await kernel.create("i", choice=Choice(snapshots="every action", retention="last 1"))
    for number in range(2):
        await put(kernel, "i", "k", number)


async def _judge(seen: EvaluationContext) -> float:
    return 1.0


async def _wait(kernel: Kernel, env: str) -> None:
    """An action that does not end by itself."""
    try:
        await kernel.act(env, {"type": "wait", "in": "db", "key": "never"})
    except LeaseRevoked:
        return


async def _journaled(house: House, env: str, number: int) -> None:
    while not any(
        recorded.stream == f"act/{env}" and getattr(recorded.event, "number", 0) == number
        for recorded in await house.recorded()
    ):
        await anyio.lowlevel.checkpoint()


@contextmanager
def _failing(house: House, env: str) -> Iterator[None]:
    async def fail(call: Call) -> None:
        if (call.method, call.env, call.when) == ("bind", env, "before") and call.resource == "page":
            raise ResourceFailed("the page can't be bound", resource="page")

    house.world.hook = fail
    try:
        yield
    finally:
        house.world.hook = None
