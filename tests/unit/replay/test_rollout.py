"""Re-execution through the real engine: exact, diverged at the first difference, or honestly unverified."""

from __future__ import annotations

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.events import InputRecorded, ReplayVerdict, activity_stream
from statefork.journal.values import Json, Moment
from statefork.replay.rollout import RolloutResult, rollout
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


async def replay(house: House, kernel: Kernel, env: str, *, keep: bool = False) -> RolloutResult:
    """Re-execute what led to the environment's present."""
    assert house.journal is not None
    return await rollout(kernel, house.journal, MemoryBlobs(), parse_ref(env), keep=keep)


async def test_several_replays_at_once_have_names_of_their_own(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await do(kernel, "a", "put", "k", value=1)
        found: list[RolloutResult] = []

        async def one() -> None:
            found.append(await replay(house, kernel, "a"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        assert {result.child for result in found} == {"a-r1", "a-r2", "a-r3"}
        assert all(result.exact for result in found)


async def do(kernel: Kernel, env: str, kind: str, key: str, **more: Json) -> None:
    """An action on the notes' database."""
    await kernel.act(env, {"type": kind, "in": "db", "key": key, **more})


@pytest.fixture
def house() -> House:
    return House()


async def test_an_untouched_environment_is_exact(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        result = await replay(house, kernel, "a")
    assert (result.verdict, result.actions, result.compared) == ("exact-state", 0, 0)


async def test_every_observation_is_reproduced_on_a_fresh_fork_of_the_origin(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "basket", "tea")
        await do(kernel, "a", "add", "count", amount=2)
        await do(kernel, "a", "fail", "card")
        result = await replay(house, kernel, "a")
        assert result.exact
        assert (result.actions, result.compared, result.source) == (3, 3, Moment(env="a", generation=1))
        assert kernel.environments[result.child].phase.value == "retired"
        assert house.content(kernel, "a") == {"greeting": "hello", "basket": "tea", "count": 2}
        (verdict,) = await house.events(ReplayVerdict)
    assert isinstance(verdict, ReplayVerdict)
    assert (verdict.env, verdict.child, verdict.verdict, verdict.first_divergence) == ("a", "a-r1", "exact-observed", 0)


async def test_the_trajectory_of_a_fork_includes_its_parents_actions(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "basket", "tea")
        await kernel.snapshot("a")
        await put(kernel, "a", "basket", "milk")
        (child,) = await kernel.fork(Moment(env="a", generation=2), ("b",))
        assert child.error is None
        await put(kernel, "b", "paid", True)
        result = await replay(house, kernel, "b", keep=True)
        assert result.exact
        assert result.actions == 2
        assert result.kept
        assert house.content(kernel, result.child) == house.content(kernel, "b")
        assert house.content(kernel, "b")["basket"] == "tea"


async def test_what_was_abandoned_is_not_done_again(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "basket", "tea")
        await kernel.snapshot("a")
        await put(kernel, "a", "basket", "milk")
        await kernel.restore("a", Moment(env="a", generation=2))
        await put(kernel, "a", "paid", True)
        result = await replay(house, kernel, "a", keep=True)
        assert result.exact
        assert house.content(kernel, result.child) == {"greeting": "hello", "basket": "tea", "paid": True}


async def test_it_stops_at_the_first_divergence_and_shows_both_sides(house: House) -> None:
    async def meddle(call: Call) -> None:
        """A world that is not deterministic: in replays the second action meets another content."""
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-r1"):
            seen.append(call)
            if len(seen) == 2:
                branch = kernel.branches("a-r1")["db"].id
                house.world.write(branch, "greeting", "goodbye")

    seen: list[Call] = []
    async with house.open(hook=meddle) as kernel:
        await kernel.create("a")
        for key in ("one", "two", "three"):
            await put(kernel, "a", key, 1)
        result = await replay(house, kernel, "a")
    assert result.verdict == "diverged"
    assert not result.exact
    assert (result.first_divergence, result.compared, len(seen)) == (2, 1, 2)
    assert result.divergence is not None
    assert result.divergence.recorded.digest != result.divergence.seen.digest
    assert result.divergence.position
    assert "action 2" in result.divergence.step


async def test_another_outcome_is_a_divergence(house: House) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-r1"):
            house.world.write(kernel.branches("a-r1")["db"].id, "count", "not a number")

    async with house.open(hook=meddle) as kernel:
        await kernel.create("a")
        await do(kernel, "a", "add", "count", amount=1)
        result = await replay(house, kernel, "a")
    assert result.divergence is not None
    assert (result.divergence.recorded.outcome, result.divergence.seen.outcome) == ("ok", "failed")


async def test_an_opaque_action_leaves_it_unverified(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        async with kernel.raw("a"):
            pass
        await put(kernel, "a", "two", 2)
        result = await replay(house, kernel, "a")
    assert result.verdict == "unverified"
    assert len(result.unverified) == 1
    assert "raw page" in result.unverified[0]


async def test_a_difference_behind_an_opaque_action_blames_nobody(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        async with kernel.raw("a") as content:
            content["basket"] = "tea"
        await do(kernel, "a", "get", "basket")
        result = await replay(house, kernel, "a")
    assert result.verdict == "unverified"


async def test_an_unknown_outcome_leaves_it_unverified(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await kernel.act("a", {"type": "wait", "in": "db", "key": "bell"}, timeout_s=0.01)
        house.world.signal("bell")
        result = await replay(house, kernel, "a")
    assert result.verdict == "unverified"
    assert "unknown" in result.unverified[0]


async def test_an_input_without_a_door_is_named_as_unverified(house: House) -> None:
    async with house.open(check=False) as kernel:
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        assert house.journal is not None
        house.journal.ride(
            activity_stream("a"),
            InputRecorded(
                at=0.0,
                env="a",
                generation=1,
                epoch=1,
                lease=99,
                after_action=1,
                method="POST",
                url="http://notes.example/poll",
                status=200,
            ),
        )
        result = await replay(house, kernel, "a")
    assert result.verdict == "unverified"
    assert "POST http://notes.example/poll" in result.unverified[0]


async def test_the_child_is_retired_when_something_breaks(house: House) -> None:
    async def die(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-r1"):
            raise OSError("the disk is gone")

    async with house.open(hook=die) as kernel:
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        with pytest.raises(OSError, match="the disk is gone"):
            await replay(house, kernel, "a")
        assert kernel.environments["a-r1"].phase.value == "retired"


async def test_the_origin_may_be_retired(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        await kernel.fork("a", ("b",))
        await kernel.retire("a")
        assert (await replay(house, kernel, "b")).exact


async def test_what_is_held_is_compared_where_it_was_kept(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        for key in ("one", "two"):
            await put(kernel, "a", key, 1)
        await kernel.snapshot("a")
        await put(kernel, "a", "three", 1)
        assert house.journal is not None
        to_two = await rollout(kernel, house.journal, MemoryBlobs(), parse_ref("a@2"))
        assert (to_two.verdict, to_two.states) == ("exact-state", {"db": True, "media": True, "page": True})
        without = await rollout(kernel, house.journal, MemoryBlobs(), parse_ref("a@2"), states=False)
        assert (without.verdict, without.states) == ("exact-observed", {})
        rest = await rollout(kernel, house.journal, MemoryBlobs(), parse_ref("a"), start=parse_ref("a#2"))
        assert (rest.source, rest.actions, rest.verdict) == (Moment(env="a", generation=2), 1, "exact-observed")
        with pytest.raises(UnknownRef, match="a@2 does not lie on the way to a#1"):
            await rollout(kernel, house.journal, MemoryBlobs(), parse_ref("a#1"), start=parse_ref("a@2"))


async def test_what_is_held_may_differ_though_all_looks_alike(house: House) -> None:
    async def meddle(call: Call) -> None:
        if (call.resource, call.method, call.when, call.env) == ("db", "act", "before", "a-r1"):
            house.world.write(kernel.branches("a-r1")["media"].id, "hidden", "word")

    async with house.open(hook=meddle) as kernel:
        await kernel.create("a")
        await put(kernel, "a", "one", 1)
        await kernel.snapshot("a")
        result = await replay(house, kernel, "a")
        assert result.verdict == "exact-observed"
        assert result.states == {"db": True, "media": False, "page": True}
