"""Snapshot policies: when the present is published by itself, and that an agent is never disturbed by it."""

from __future__ import annotations

import logging

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import ContractError
from statefork.engine.policy import ON_DEMAND, Choice, SnapshotPolicy, parse_policy
from statefork.journal.values import Moment
from tests.contract.engine_kit import SMALL, House, put

pytestmark = pytest.mark.anyio
POLICIES = ("on demand", "every action", "every 3 actions", "when changed")


def house(policy: str) -> House:
    """A house whose contract says so."""
    return House(contract=SMALL.replace('name = "notes"', f'name = "notes"\nsnapshots = "{policy}"'))


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_reads_as_it_is_written(text: str) -> None:
    assert str(parse_policy(text)) == text


@pytest.mark.parametrize(
    "text", ["", "every", "every 0 actions", "every -1 actions", "every 99999999 actions", 5, None]
)
def test_another_text_is_none(text: object) -> None:
    assert parse_policy(text) is None


def test_a_contract_with_another_text_is_refused_at_its_place() -> None:
    with pytest.raises(ContractError, match=r"snapshots.*must be 'on demand', 'every action'"):
        house("sometimes")


def test_when_snapshots_are_taken_is_no_part_of_what_a_contract_is() -> None:
    assert house("every action").contract.digest == house("on demand").contract.digest
    assert house("every action").contract.snapshots == SnapshotPolicy(every=1)
    assert House(contract=SMALL).contract.snapshots == ON_DEMAND


@pytest.mark.parametrize(
    ("policy", "published"), list(zip(POLICIES, ((), (1, 2, 3, 4, 5), (3,), (1, 3, 5)), strict=True))
)
async def test_generations_stand_where_the_policy_says(policy: str, published: tuple[int, ...]) -> None:
    async with house(policy).open() as kernel:
        await kernel.create("a")
        epoch = kernel.environments["a"].epoch
        for number in range(1, 6):
            if number % 2:
                await put(kernel, "a", "k", number)
            else:  # writes nothing
                await kernel.act("a", {"type": "fail", "in": "db", "key": "k"})
        capsule = kernel.environments["a"]
        assert tuple(generation.actions for generation in capsule.generations.values())[1:] == published
        assert capsule.epoch == epoch


async def test_one_environment_may_be_kept_otherwise() -> None:
    async with house("on demand").open() as kernel:
        for env in ("a", "b"):
            await kernel.create(env)
        await kernel.upkeep.choose("a", Choice(snapshots="every 2 actions"))
        for env in ("a", "b"):
            for number in range(4):
                await put(kernel, env, "k", number)
        assert [kernel.environments[env].generation for env in ("a", "b")] == [3, 1]
        await kernel.upkeep.choose("a", Choice(snapshots=""))
        await put(kernel, "a", "k", 5)
        await put(kernel, "a", "k", 6)
        assert kernel.environments["a"].generation == 3


async def test_agents_side_by_side_wait_and_are_not_refused() -> None:
    async with house("every action").open() as kernel:
        await kernel.create("a")

        async def agent(number: int) -> None:
            for turn in range(5):
                result = await put(kernel, "a", f"k{number}", turn)
                assert result.outcome == "ok"

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(agent, number)
        assert kernel.environments["a"].actions == 20


async def test_a_snapshot_that_fails_does_not_fail_the_action(caplog: pytest.LogCaptureFixture) -> None:
    async def full(call: Call) -> None:
        if (call.resource, call.method, call.when) == ("db", "seal", "before") and broken:
            raise OSError("no space left on device")

    broken = True
    async with house("every action").open(hook=full) as kernel:
        await kernel.create("a")
        with caplog.at_level(logging.WARNING):
            assert (await put(kernel, "a", "k", 1)).outcome == "ok"
        assert "no snapshot of a after action 1" in caplog.text
        assert kernel.environments["a"].moment == Moment(env="a", generation=1)
        broken = False
        assert (await put(kernel, "a", "k", 2)).outcome == "ok"
        assert kernel.environments["a"].head.actions == 2


async def test_an_action_within_a_lease_of_its_caller_is_no_moment_of_its_own() -> None:
    async with house("every action").open() as kernel:
        await kernel.create("a")
        async with kernel.lease("a", "evaluator"):
            await put(kernel, "a", "k", 1)
        assert kernel.environments["a"].generation == 1
        await put(kernel, "a", "k", 2)
        assert kernel.environments["a"].head.actions == 2
