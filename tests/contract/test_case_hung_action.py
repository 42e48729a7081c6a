"""A hung action: its deadline ends it, whatever it hangs in, and nobody else notices.

One that answers to its cancellation costs its own outcome, which is unknown. One that does not, for it is stuck where
nothing reaches it, is left behind: who asked for it has an answer in time, and the environment goes on from its last
published generation at the next use, whatever that is; nothing that the straggler still does can be seen.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import ActionTimeout, DrainTimeout, LeaseRevoked, TransitionAborted
from statefork.engine.kernel import ActResult, EvaluationContext, Kernel
from statefork.journal.events import ActionEnded, GenerationPublished
from tests.contract.engine_kit import REVOKE, SETTINGS, House, put, request

pytestmark = pytest.mark.anyio

HUNG = {"type": "put", "in": "db", "key": "late", "value": 1}
HASTY = replace(SETTINGS, act_join_s=0.05)


class Deaf:
    """A hook that holds one call of environment ``a`` where no cancellation reaches it, until it is let go."""

    def __init__(self, *, thread: bool, method: str = "act") -> None:
        self.armed = False
        self.began = anyio.Event()
        self.ended = anyio.Event()
        self._method = method
        self._let_go = anyio.Event()
        self._thread = threading.Event() if thread else None

    async def __call__(self, call: Call) -> None:
        if not self.armed or (call.env, call.method, call.when) != ("a", self._method, "before"):
            return
        self.armed = False
        self.began.set()
        if self._thread is not None:
            await anyio.to_thread.run_sync(self._thread.wait)
        else:
            with anyio.CancelScope(shield=True):
                await self._let_go.wait()
        self.ended.set()

    def let_go(self) -> None:
        self._let_go.set()
        if self._thread is not None:
            self._thread.set()


@asynccontextmanager
async def two(deaf: Deaf, house: House) -> AsyncIterator[Kernel]:
    """Environments ``a``, at generation 2 and one action further, and ``b``; whatever hangs ends before the engine."""
    async with house.open(settings=HASTY, hook=deaf) as kernel:
        await kernel.create("a")
        await kernel.create("b")
        await put(kernel, "a", "sealed", 1)
        await kernel.snapshot("a")
        await put(kernel, "a", "tail", 1)
        deaf.armed = True
        try:
            with anyio.fail_after(5):
                yield kernel
        finally:
            deaf.let_go()


async def hang(kernel: Kernel, deaf: Deaf) -> ActResult:
    """The hung action's result; meanwhile the sibling acts, is published and reset."""
    results: list[ActResult] = []

    async def act() -> None:
        results.append(await kernel.act("a", HUNG, timeout_s=0.05))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(act)
        await deaf.began.wait()
        await put(kernel, "b", "own", 1)
        await kernel.snapshot("b")
        await kernel.reset("b")
    return results[0]


async def test_one_that_waits_for_ever_costs_only_its_own_outcome() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "tail", 1)
        with anyio.fail_after(5):
            result = await kernel.act("a", {"type": "wait", "in": "db", "key": "never"}, timeout_s=0.05)
        assert (result.outcome, result.code, result.error) == (
            "unknown",
            "action_timeout",
            "it took longer than 0.05 s",
        )
        await put(kernel, "a", "more", 1)
        assert (await kernel.snapshot("a")).generation == 2
        assert house.content(kernel, "a") | {"tail": 1, "more": 1} == house.content(kernel, "a")


@pytest.mark.parametrize("thread", [False, True], ids=["shielded", "in a thread"])
async def test_one_that_can_not_be_ended_is_answered_in_time_and_its_environment_goes_on(thread: bool) -> None:
    house, deaf = House(), Deaf(thread=thread)
    async with two(deaf, house) as kernel:
        result = await hang(kernel, deaf)
        assert (result.outcome, result.code) == ("unknown", "action_timeout")
        assert result.error == "it took longer than 0.05 s, and can't be ended"
        assert not deaf.ended.is_set()
        with pytest.raises(DrainTimeout, match="can't be ended and may still write: action put"):
            await kernel.snapshot("a")  # continuing: the straggler may write into what is sealed
        with pytest.raises(DrainTimeout):
            await kernel.fork("a", ["child"])
        await put(kernel, "a", "next", 1)
        assert house.content(kernel, "a").keys() & {"sealed", "tail", "late", "next"} == {"sealed", "next"}

        deaf.let_go()
        await deaf.ended.wait()
        await kernel.snapshot("a")
        assert house.content(kernel, "a").keys() & {"sealed", "tail", "late", "next"} == {"sealed", "next"}
        published: list[Any] = await house.events(GenerationPublished)
        recovered = [event for event in published if event.op == "recover"]
        assert [(event.env, event.generation, event.lost_actions) for event in recovered] == [("a", 3, (2, 3))]
        ended: list[Any] = await house.events(ActionEnded)
        assert [event.outcome for event in ended if event.env == "a"] == ["ok", "ok", "unknown", "ok"]


async def through_the_site(kernel: Kernel) -> None:
    async with kernel.admit(request(kernel, "a", identity=None)):
        pass


async def evaluated(kernel: Kernel) -> None:
    async def check(seen: EvaluationContext) -> float:
        return float(seen.generation)

    assert await kernel.evaluate("a", "generation", check) == 3.0


NEXT: dict[str, tuple[Callable[[Kernel], Awaitable[object]], str, Phase]] = {
    "an action": (lambda kernel: put(kernel, "a", "next", 1), "recover", Phase.SERVING),
    "an observation": (lambda kernel: kernel.observe("a"), "recover", Phase.SERVING),
    "an evaluation": (evaluated, "recover", Phase.SERVING),
    "a request": (through_the_site, "recover", Phase.SERVING),
    "park": (lambda kernel: kernel.park("a"), "recover", Phase.PARKED),
    "reset": (lambda kernel: kernel.reset("a"), "reset", Phase.SERVING),
    "restore": (lambda kernel: kernel.restore("a", kernel.world.capsule("a").moment), "restore", Phase.SERVING),
    "retire": (lambda kernel: kernel.retire("a"), "snapshot", Phase.RETIRED),
}


@pytest.mark.parametrize("use", NEXT)
async def test_whatever_comes_next_finds_a_whole_environment(use: str) -> None:
    house, deaf = House(), Deaf(thread=False)
    async with two(deaf, house) as kernel:
        await hang(kernel, deaf)
        act, op, phase = NEXT[use]
        await act(kernel)
        capsule = kernel.world.capsule("a")
        assert (capsule.head.op, capsule.phase) == (op, phase)
        if phase is not Phase.RETIRED:
            (child,) = await kernel.fork("a", ["child"])
            assert child.error is None
            content = house.content(kernel, "child")
            assert ("sealed" in content, "tail" in content, "late" in content) == (op != "reset", False, False)


async def test_a_switch_that_fails_after_it_fenced_leaves_no_straggler_in_what_serves() -> None:
    house, deaf = House(), Deaf(thread=False)
    failing = False

    async def hook(call: Call) -> None:
        await deaf(call)
        if failing and (call.env, call.method) == ("a", "bind"):
            raise OSError("no place")

    async with two(deaf, house) as kernel, anyio.create_task_group() as tasks:
        house.world.hook = hook
        told: list[str] = []

        async def act() -> None:
            with pytest.raises(LeaseRevoked):
                await kernel.act("a", HUNG)
            told.append("revoked")

        tasks.start_soon(act)
        await deaf.began.wait()
        failing = True
        with pytest.raises(TransitionAborted, match="no place"):
            await kernel.reset("a", drain=REVOKE)
        failing = False
        with pytest.raises(DrainTimeout, match="can't be ended"):
            await kernel.snapshot("a")
        await put(kernel, "a", "next", 1)
        deaf.let_go()
        await deaf.ended.wait()
        assert house.content(kernel, "a").keys() & {"sealed", "tail", "late", "next"} == {"sealed", "next"}
    assert told == ["revoked"]


async def test_whoever_gives_up_waiting_is_let_go_though_the_action_is_not() -> None:
    house, deaf = House(), Deaf(thread=True)
    async with two(deaf, house) as kernel:
        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kernel.act, "a", HUNG)
                await deaf.began.wait()
                scope.cancel()
        assert scope.cancelled_caught
        await kernel.reset("a")
        assert "late" not in house.content(kernel, "a")


async def test_looking_at_what_hangs_ends_too() -> None:
    house, deaf = House(), Deaf(thread=False, method="observe")
    async with house.open(settings=replace(HASTY, act_timeout_s=0.05), hook=deaf) as kernel:
        await kernel.create("a")
        deaf.armed = True
        with anyio.fail_after(5), pytest.raises(ActionTimeout, match="a could not be looked at within"):
            await kernel.observe("a")
        assert not deaf.ended.is_set()
        assert (await kernel.recover("a")).generation == 2
        deaf.let_go()


async def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    house, deaf = House(), Deaf(thread=False)
    with anyio.fail_after(10):
        async with house.open(settings=replace(HASTY, discard_s=0.05), hook=deaf) as kernel:
            await kernel.create("a")
            deaf.armed = True
            assert (await kernel.act("a", HUNG, timeout_s=0.05)).outcome == "unknown"
    assert not deaf.ended.is_set()
    assert "action put of a still does not end" in caplog.text
    deaf.let_go()
    await deaf.ended.wait()
    async with house.open() as kernel:
        assert kernel.recovered.clean
        await put(kernel, "a", "next", 1)
        assert "late" not in house.content(kernel, "a")
