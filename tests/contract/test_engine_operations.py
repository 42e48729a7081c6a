"""The operations of the kernel, on both event loops and over both journals."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from statefork.engine.capsule import Phase
from statefork.engine.errors import (
    ActionFailed,
    ContractError,
    EnvironmentExists,
    EnvironmentRetired,
    InvalidAction,
    NotReady,
    UnknownEnvironment,
    UnknownRef,
)
from statefork.engine.kernel import EvaluationContext
from statefork.journal.events import (
    ActionBegun,
    ActionEnded,
    EngineStopped,
    EnvironmentForked,
    EvaluationRecorded,
    GenerationPublished,
)
from statefork.journal.values import Branch, Json, Moment, Sealed
from tests.contract.engine_kit import CONTRACT, House, put

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    return House(tmp_path / "journal.sqlite3" if request.param == "sqlite" else None)


async def test_create_act_and_observe(house: House) -> None:
    async with house.open() as kernel:
        assert str(await kernel.create("shop")) == "shop@1"
        first = await put(kernel, "shop", "basket", ["tea"])
        assert (first.number, first.outcome) == (1, "ok")
        assert house.content(kernel, "shop")["basket"] == ["tea"]
        seen = await kernel.observe("shop")
        assert seen.value == {"greeting": "hello", "basket": ["tea"]}
        assert [event.action["type"] for event in await house.events(ActionBegun)] == ["put"]
        (ended,) = await house.events(ActionEnded)
        assert ended.observation == first.observation


async def test_what_staging_wrote_is_rewound(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        for store in ("db", "media"):
            assert "visits" not in house.content(kernel, "shop", store)
        await put(kernel, "shop", "a", 1)
        await kernel.snapshot("shop")
        await kernel.restore("shop", Moment(env="shop", generation=2))
        assert house.content(kernel, "shop") == house.sealed(kernel, "shop", 2) == {"greeting": "hello", "a": 1}


async def test_a_snapshot_continues_and_an_unchanged_component_is_shared(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        before = kernel.bindings("shop")["page"]
        await put(kernel, "shop", "a", 1)
        assert str(await kernel.snapshot("shop")) == "shop@2"
        capsule = kernel.environments["shop"]
        assert (capsule.phase, capsule.epoch, capsule.activation) == (Phase.SERVING, 1, 1)
        assert kernel.bindings("shop")["page"] == before
        first, second = capsule.generations[1].manifest, capsule.generations[2].manifest
        assert first["media"] == second["media"]
        assert first["db"] != second["db"]


async def test_reset_and_restore_switch_and_history_grows(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        second = await kernel.snapshot("shop")
        await put(kernel, "shop", "a", 2)
        assert str(await kernel.reset("shop")) == "shop@3"
        assert house.content(kernel, "shop") == {"greeting": "hello"}
        assert kernel.environments["shop"].actions == 0
        assert str(await kernel.restore("shop", second)) == "shop@4"
        assert house.content(kernel, "shop")["a"] == 1
        capsule = kernel.environments["shop"]
        assert (capsule.epoch, capsule.actions) == (4, 1)
        assert capsule.generations[4].manifest == capsule.generations[2].manifest
        assert (await put(kernel, "shop", "b", 3)).number == 2
        assert [event.op for event in await house.events(GenerationPublished)] == [
            "create",
            "snapshot",
            "reset",
            "restore",
        ]


async def test_fifty_episodes_each_begin_empty(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        for episode in range(10 if house.path else 50):
            assert "basket" not in house.content(kernel, "shop")
            await put(kernel, "shop", "basket", episode)
            await kernel.reset("shop")


async def test_a_live_fork_is_one_snapshot_and_the_source_acts_at_once(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "basket", "tea")
        await put(kernel, "shop", "picture", "cat", where="media")
        results = await kernel.fork("shop", ["left", "right"])
        assert [str(result.moment) for result in results] == ["left@1", "right@1"]
        assert kernel.environments["shop"].generation == 2
        for name in ("left", "right", "shop"):
            await put(kernel, name, "unique", name)
        for name in ("left", "right", "shop"):
            assert house.content(kernel, name) == {"greeting": "hello", "basket": "tea", "unique": name}
            assert house.content(kernel, name, "media")["picture"] == "cat"
        assert (kernel.environments["left"].actions, kernel.environments["left"].head.actions) == (3, 2)
        assert kernel.environments["left"].origin == Moment(env="shop", generation=1)
        assert sorted(kernel.environments["shop"].children) == ["left", "right"]
        assert sorted(event.child for event in await house.events(EnvironmentForked)) == ["left", "right"]


async def test_a_store_hears_of_a_live_fork_before_it_is_sealed_and_of_nothing_else(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        db = kernel.resources["db"]
        told: list[str] = []
        seal = db.seal

        async def noted(branch: Branch) -> Sealed:
            told.append("seal")
            return await seal(branch)

        monkeypatch.setattr(db, "seal", noted)
        monkeypatch.setattr(db, "expect_fork", lambda branch: told.append(f"fork of {branch.env}"), raising=False)
        await kernel.snapshot("shop")
        await kernel.fork("shop", ["parked"], activate=False)
        assert told == ["seal", "seal"]
        await kernel.fork("shop", ["left", "right"])
        assert told[2:] == ["fork of shop", "seal"]
        await kernel.fork(kernel.environments["shop"].moment, ["later"])
        assert told[4:] == []


async def test_a_fork_of_the_past_and_of_the_retired(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        moment = await kernel.snapshot("shop")
        await put(kernel, "shop", "a", 2)
        await kernel.retire("shop")
        (result,) = await kernel.fork(moment, ["late"])
        assert result.error is None
        assert house.content(kernel, "late")["a"] == 1
        await kernel.reset("late")
        assert house.content(kernel, "late") == {"greeting": "hello"}


async def test_children_succeed_or_fail_each_on_its_own(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("taken")
        good, bad = await kernel.fork("shop", ["fresh", "taken"])
        assert (good.env, good.error) == ("fresh", None)
        assert isinstance(bad.error, EnvironmentExists)
        with pytest.raises(EnvironmentExists):
            await kernel.fork("shop", ["twin", "twin"])


async def test_concurrent_forks_of_one_source(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        async with anyio.create_task_group() as tasks:
            for group in range(4):
                tasks.start_soon(kernel.fork, "shop", [f"f{group}a", f"f{group}b"])
        names = [f"f{group}{one}" for group in range(4) for one in "ab"]
        assert sorted(kernel.environments["shop"].children) == names
        assert all(house.content(kernel, name)["a"] == 1 for name in names)


async def test_a_clone_is_its_own_origin(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        assert str(await kernel.clone("shop", "copy")) == "copy@1"
        copy = kernel.environments["copy"]
        assert (copy.origin, copy.actions) == (Moment(env="copy", generation=1), 0)
        await put(kernel, "copy", "a", 2)
        await kernel.reset("copy")
        assert house.content(kernel, "copy")["a"] == 1


async def test_park_and_activate_three_times_with_writes_between(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        for stay in range(3):
            await put(kernel, "shop", f"stay{stay}", stay)
            await kernel.park("shop", "for the test")
            await kernel.park("shop")
            assert kernel.environments["shop"].phase is Phase.PARKED
            assert house.world.branches == {}
            with pytest.raises(NotReady):
                kernel.bindings("shop")
        await kernel.activate("shop")
        await kernel.activate("shop")
        assert {f"stay{stay}": stay for stay in range(3)}.items() <= house.content(kernel, "shop").items()
        assert (kernel.environments["shop"].activation, kernel.environments["shop"].epoch) == (4, 1)


async def test_parking_what_is_clean_publishes_nothing(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.park("shop")
        assert kernel.environments["shop"].generation == 1
        assert str(await kernel.snapshot("shop")) == "shop@1"


async def test_a_parked_environment_is_forked_reset_and_restored_without_a_slot(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        await kernel.park("shop")
        (child,) = await kernel.fork("shop", ["child"], activate=False)
        assert child.error is None
        assert house.world.branches == {}
        assert str(await kernel.reset("shop")) == "shop@3"
        assert str(await kernel.restore("shop", Moment(env="shop", generation=2))) == "shop@4"
        assert kernel.environments["shop"].phase is Phase.PARKED
        assert house.world.branches == {}
        assert (await put(kernel, "child", "b", 2)).number == 2
        assert house.content(kernel, "child")["a"] == 1


async def test_restoring_the_moment_of_another_environment(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("one")
        await kernel.create("two")
        await put(kernel, "one", "a", 1)
        moment = await kernel.snapshot("one")
        await kernel.restore("two", moment)
        assert house.content(kernel, "two")["a"] == 1
        assert kernel.environments["two"].actions == 1


async def test_retire_ends_it(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.retire("shop")
        assert house.world.branches == {}
        for refused in (kernel.snapshot("shop"), kernel.reset("shop"), kernel.park("shop"), kernel.retire("shop")):
            with pytest.raises(EnvironmentRetired):
                await refused
        with pytest.raises(EnvironmentRetired):
            await put(kernel, "shop", "a", 1)
        with pytest.raises(EnvironmentExists):
            await kernel.create("shop")


async def test_unknown_names_and_moments(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(UnknownEnvironment):
            await kernel.snapshot("nobody")
        with pytest.raises(UnknownEnvironment):
            await put(kernel, "nobody", "a", 1)
        with pytest.raises(UnknownRef):
            await kernel.restore("shop", Moment(env="shop", generation=9))
        with pytest.raises(UnknownRef):
            await kernel.fork(Moment(env="nobody", generation=1), ["child"])
        for name in ("", "Shop", "a@1", "a#1", "x" * 64, "../x"):
            with pytest.raises(UnknownRef):
                await kernel.create(name)
        assert sorted(kernel.environments) == ["shop"]


async def test_how_actions_end(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(InvalidAction):
            await kernel.act("shop", {"type": "dance"})
        with pytest.raises(InvalidAction):
            await kernel.act("shop", {"type": "put", "key": "a"})
        failed = await kernel.act("shop", {"type": "fail", "key": "no such button"})
        assert (failed.number, failed.outcome, failed.code) == (1, "failed", ActionFailed.code)
        assert "no such button" in failed.error
        assert failed.observation is not None
        late = await kernel.act("shop", {"type": "wait", "key": "never"}, timeout_s=0.01)
        assert (late.number, late.outcome, late.code) == (2, "unknown", "action_timeout")
        assert (await put(kernel, "shop", "a", 1)).number == 3
        assert [event.outcome for event in await house.events(ActionEnded)] == ["failed", "unknown", "ok"]


async def test_an_action_is_not_nested_without_end(house: House) -> None:
    nested: Json = 1
    for _ in range(5000):
        nested = [nested]
    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(InvalidAction, match="32 levels"):
            await put(kernel, "shop", "k", nested)
        assert await house.events(ActionBegun) == []
        await put(kernel, "shop", "k", {"a": [{"b": [1]}]})
        await kernel.snapshot("shop")


async def test_a_cancelled_action_is_unknown(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        with anyio.move_on_after(0.01):
            await kernel.act("shop", {"type": "wait", "key": "never"})
        (ended,) = await house.events(ActionEnded)
        assert ended.outcome == "unknown"
        await kernel.snapshot("shop")


async def test_an_opaque_action_is_recorded_as_a_span(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        async with kernel.raw("shop") as content:
            content["by hand"] = True
        assert house.content(kernel, "shop")["by hand"] is True
        (begun,) = await house.events(ActionBegun)
        assert begun.action == {"type": "opaque"}
        await kernel.snapshot("shop")
        assert house.sealed(kernel, "shop", 2)["by hand"] is True


async def test_an_evaluation_is_of_one_generation(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)

        async def check(context: EvaluationContext) -> tuple[float, dict[str, object]]:
            content = house.world.read(str(context.bindings["db"].address["namespace"]))
            seen = await context.observation()
            assert seen.value == content
            return float(content["a"] == 1), {"read": content["a"]}

        assert await kernel.evaluate("shop", "has a", check) == 1.0
        (event,) = await house.events(EvaluationRecorded)
        assert (event.name, event.score, event.generation, event.after_action) == ("has a", 1.0, 1, 1)
        assert event.detail == {"read": 1}


async def test_closing_parks_and_opening_again_finds_everything(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
    assert house.world.branches == {}
    async with house.open() as kernel:
        assert kernel.recovered.clean
        assert kernel.environments["shop"].generation == 2
        assert (await put(kernel, "shop", "b", 2)).number == 2
        assert house.content(kernel, "shop")["a"] == 1
        assert len(await house.events(EngineStopped)) == 1


async def test_an_exception_in_the_body_is_the_one_that_is_raised(house: House) -> None:
    async def work() -> None:
        async with house.open() as kernel:
            await kernel.create("shop")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    async with house.open() as kernel:
        assert kernel.recovered.clean


async def test_a_state_directory_under_another_contract(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
    other = House(house.path, contract=CONTRACT.replace('"hello"', '"bye"'))
    other.world, other.disk = house.world, house.disk
    async with other.open() as kernel:
        with pytest.raises(ContractError) as caught:
            await kernel.activate("shop")
        assert caught.value.facts["environment"] == "shop"
        await kernel.create("new")
        with pytest.raises(ContractError):
            await kernel.restore("new", Moment(env="shop", generation=1))


async def test_two_hundred_snapshots_cost_what_the_first_did(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        for number in range(20 if house.path else 200):
            await put(kernel, "shop", "n", number)
            await kernel.snapshot("shop")
        assert len(house.world.branches) == 4
        published = await house.events(GenerationPublished)
        assert {"freeze", "drain", "quiesce", "seal"} <= published[-1].timings_ms.keys()
