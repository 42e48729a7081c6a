"""Retention: which generations stay, that the others can be made again, and that what only they held is removed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import ContractError, GenerationPruned, InvalidName, ResourceFailed, UnknownRef
from statefork.engine.kernel import Kernel
from statefork.engine.policy import Choice
from statefork.engine.refs import Standing, nearest, parse_ref, resolve
from statefork.engine.retention import KEEP_ALL, Retention, parse_retention
from statefork.journal.events import GenerationsPruned
from statefork.journal.values import Moment, Pruned, Sealed
from tests.contract.engine_kit import SETTINGS, SMALL, House, put, until

pytestmark = pytest.mark.anyio
RETENTIONS = ("all", "last 1", "last 20", "forks and marks")
FORKS_AND_MARKS = Retention(forked=True)


def house(retention: str, path: Path | None = None) -> House:
    """A house whose contract says so, with a snapshot after every action."""
    keys = f'name = "notes"\nsnapshots = "every action"\nretention = "{retention}"'
    return House(path, contract=SMALL.replace('name = "notes"', keys))


def kept(kernel: Kernel, env: str = "a") -> list[int]:
    return [number for number, one in kernel.environments[env].generations.items() if not one.pruned]


async def versions(kernel: Kernel, resource: str = "db") -> int:
    """How many sealed versions there are."""
    return len([handle async for handle in kernel.resources[resource].inventory() if isinstance(handle, Sealed)])


async def acted(kernel: Kernel, times: int, env: str = "a") -> None:
    for number in range(times):
        await put(kernel, env, "k", number)


# --- what is written in a contract ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", RETENTIONS)
def test_a_retention_reads_as_it_is_written(text: str) -> None:
    assert str(parse_retention(text)) == text


@pytest.mark.parametrize("text", ["", "last", "last 0", "last -1", "last 99999999", "none", 20, None])
def test_another_text_is_none(text: object) -> None:
    assert parse_retention(text) is None


def test_a_contract_with_another_text_is_refused_at_its_place() -> None:
    with pytest.raises(ContractError, match=r"retention.*must be 'all', 'last 20' or 'forks and marks', not 'some'"):
        house("some")


def test_what_stays_is_no_part_of_what_a_contract_is() -> None:
    assert house("last 1").contract.digest == house("all").contract.digest
    assert House(contract=SMALL).contract.retention == KEEP_ALL


# --- what stays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "stay"),
    [("all", [1, 2, 3, 4, 5, 6, 7]), ("last 1", [1, 7]), ("last 3", [1, 5, 6, 7]), ("forks and marks", [1, 7])],
)
async def test_the_first_the_last_and_what_the_policy_says(retention: str, stay: list[int]) -> None:
    async with house(retention).open() as kernel:
        await kernel.create("a")
        await acted(kernel, 6)
        assert kept(kernel) == stay
        gone = [one for one in kernel.environments["a"].generations.values() if one.pruned]
        assert all(one.manifest == {} for one in gone)


async def test_forks_and_marks_stay() -> None:
    async with house("forks and marks").open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "k", 1)
        await kernel.fork(Moment(env="a", generation=2), ("b",))
        await put(kernel, "a", "k", 2)
        await kernel.upkeep.mark(Moment(env="a", generation=3), "before checkout")
        await acted(kernel, 3)
        assert kept(kernel) == [1, 2, 3, 6]
        assert kernel.environments["a"].generations[3].mark == "before checkout"
        await kernel.upkeep.mark(Moment(env="a", generation=3), "")
        await put(kernel, "a", "k", 9)
        assert kept(kernel) == [1, 2, 7]


async def test_a_mark_stays_under_every_policy() -> None:
    async with house("last 1").open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "k", 1)
        await kernel.upkeep.mark(Moment(env="a", generation=2), "here")
        await acted(kernel, 3)
        assert kept(kernel) == [1, 2, 5]


@pytest.mark.parametrize("text", ["x" * 201, "two\nlines", "\x1b[31m"])
async def test_what_can_be_no_mark(text: str) -> None:
    async with house("all").open() as kernel:
        await kernel.create("a")
        with pytest.raises(InvalidName, match="at most 200 printable characters"):
            await kernel.upkeep.mark(Moment(env="a", generation=1), text)


async def test_what_is_not_there_gets_no_mark() -> None:
    async with house("last 1").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 3)
        with pytest.raises(UnknownRef, match="a@9 was never published"):
            await kernel.upkeep.mark(Moment(env="a", generation=9), "here")
        with pytest.raises(GenerationPruned, match="a@2 was pruned"):
            await kernel.upkeep.mark(Moment(env="a", generation=2), "here")


async def test_what_cant_be_done_again_stays() -> None:
    async with house("last 1").open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "k", 1)  # @2
        async with kernel.raw("a"):  # nobody records what is done with it
            pass
        assert kernel.environments["a"].generation == 3
        await put(kernel, "a", "k", 2)  # @4
        assert kept(kernel) == [1, 3, 4]


async def test_what_was_restored_from_another_environment_stays() -> None:
    async with house("last 1").open() as kernel:
        for env in ("a", "b"):
            await kernel.create(env)
        await acted(kernel, 2, "b")
        await kernel.restore("a", kernel.environments["b"].moment)
        await acted(kernel, 3, "b")
        await acted(kernel, 3)
        assert (kept(kernel), kept(kernel, "b")) == ([1, 2, 5], [1, 6])


async def test_an_action_whose_outcome_is_unknown_cant_be_done_again() -> None:
    async with house("last 1").open() as kernel:
        await kernel.create("a")
        result = await kernel.act("a", {"type": "wait", "key": "never"}, timeout_s=0.05)
        assert result.outcome == "unknown"
        assert kernel.environments["a"].opaque
        await acted(kernel, 2)
        assert [kernel.environments["a"].generations[n].opaque for n in (1, 2, 3)] == [False, True, False]


async def test_one_environment_may_be_kept_otherwise() -> None:
    async with house("all").open() as kernel:
        for env in ("a", "b"):
            await kernel.create(env)
        await kernel.upkeep.choose("a", Choice(retention="last 1"))
        for env in ("a", "b"):
            await acted(kernel, 3, env)
        assert (kept(kernel, "a"), kept(kernel, "b")) == ([1, 4], [1, 2, 3, 4])
        await kernel.upkeep.choose("a", Choice(retention=""))
        await acted(kernel, 2)
        assert kept(kernel) == [1, 4, 5, 6]


# --- what goes --------------------------------------------------------------------------------------------------


async def test_what_only_they_held_is_removed() -> None:
    async with house("all").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 5)
        before = await versions(kernel)
        would = await kernel.upkeep.prune("a", Retention(last=2), only_say=True)
        assert await versions(kernel) == before
        assert kept(kernel) == [1, 2, 3, 4, 5, 6]
        gone = await kernel.upkeep.prune("a", Retention(last=2))
        assert gone == would
        assert [(one.generation, str(one.nearest), one.actions) for one in gone] == [
            (n, "a@1", n - 1) for n in (2, 3, 4)
        ]
        assert await versions(kernel) == before - 3
        assert (await kernel.collect()).collected == ()


async def test_what_somebody_else_holds_stays() -> None:
    there = house("all")
    async with there.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "k", "old")
        await kernel.fork(Moment(env="a", generation=2), ("child",), activate=False)
        await acted(kernel, 3)
        await kernel.upkeep.prune("a", Retention(last=1))
        assert kept(kernel) == [1, 5]
        await kernel.activate("child")
        assert there.content(kernel, "child")["k"] == "old"
        await kernel.reset("child")
        assert "k" not in there.content(kernel, "child")
        await kernel.restore("child", Moment(env="child", generation=1))
        assert there.content(kernel, "child")["k"] == "old"


async def test_a_retired_environment_is_pruned_when_asked() -> None:
    async with house("all").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 3)
        await kernel.retire("a")
        assert len(await kernel.upkeep.prune("a", FORKS_AND_MARKS)) == 2
        assert kept(kernel) == [1, 4]


async def test_much_is_removed_while_the_engine_runs() -> None:
    async with house("last 2").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 80)
        with anyio.fail_after(5):
            while await versions(kernel) > 40:
                await anyio.lowlevel.checkpoint()


async def test_what_was_not_removed_yet_goes_when_the_engine_closes(tmp_path: Path) -> None:
    there = house("last 2", tmp_path / "journal.sqlite3")
    async with there.open() as kernel:
        await kernel.create("a")
        await acted(kernel, 10)
        assert await versions(kernel) == 11
    async with there.open() as kernel:
        assert kernel.recovered.clean
        assert await versions(kernel) == 3
        assert kept(kernel) == [1, 10, 11]


async def test_nothing_begins_on_what_went() -> None:
    async with house("last 1").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 3)
        gone = Moment(env="a", generation=2)
        with pytest.raises(GenerationPruned, match="the content of a@2 was pruned"):
            await kernel.restore("a", gone)
        with pytest.raises(GenerationPruned):
            await kernel.clone(gone, "c")
        with pytest.raises(GenerationPruned):
            await kernel.fork(gone, 1)
        assert "a-f1" not in kernel.environments


async def test_a_fork_that_waits_while_its_source_goes_is_refused() -> None:
    seated = House(contract=SMALL.replace('visits = "visits"', 'visits = "visits"\nslot = "browser"'))
    async with seated.open(settings=replace(SETTINGS, max_slots={"browser": 1})) as kernel:
        middle = Moment(env="a", generation=2)
        await kernel.create("a")
        for number in range(2):
            await put(kernel, "a", "k", number)
            await kernel.snapshot("a")
        errors: list[BaseException | None] = []

        async def fork() -> None:
            (made,) = await kernel.fork(middle, ("child",))
            errors.append(made.error)

        async with anyio.create_task_group() as tasks:
            with kernel.pinned("a"):
                tasks.start_soon(fork)
                await until(lambda: len(kernel.slots.queue) == 1)
                tasks.start_soon(kernel.upkeep.prune, "a", Retention(last=1))
                await until(lambda: len(kept(kernel)) == 2)
        assert isinstance(errors[0], GenerationPruned)
        assert "child" not in kernel.environments


async def test_reading_keeps_it_there_until_it_ends() -> None:
    async with house("all").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 3)
        before = await versions(kernel)
        async with anyio.create_task_group() as tasks:
            async with kernel.upkeep.reading():
                tasks.start_soon(kernel.upkeep.prune, "a", Retention(last=1))
                await anyio.wait_all_tasks_blocked()
                assert await versions(kernel) == before
        assert await versions(kernel) == before - 2


# --- how people name them ---------------------------------------------------------------------------------------


async def test_refs_lead_around_what_went() -> None:
    async with house("all").open() as kernel:
        await kernel.create("a")
        await acted(kernel, 4)
        await kernel.restore("a", Moment(env="a", generation=2))  # @6: what @2 holds
        await acted(kernel, 2)
        await kernel.upkeep.prune("a", Retention(last=1))
        assert kept(kernel) == [1, 8]
        a1 = Moment(env="a", generation=1)

        def through(number: int, after: int) -> Standing:
            return Standing(a1, after, Moment(env="a", generation=number))

        world = kernel.environments
        assert nearest(parse_ref("a@4"), world) == through(4, 3)
        assert nearest(parse_ref("a@5"), world) == through(5, 4)
        assert nearest(parse_ref("a@6"), world) == through(6, 1)
        assert nearest(parse_ref("a@6+1"), world) == through(7, 2)
        assert nearest(parse_ref("a#1"), world) == through(2, 1)
        assert nearest(parse_ref("a#3"), world) == Standing(Moment(env="a", generation=8), 0)
        with pytest.raises(GenerationPruned, match=r"a@4: the content of a@4 was pruned"):
            resolve(parse_ref("a@4"), world)


# --- what the journal says --------------------------------------------------------------------------------------


async def test_the_journal_says_from_where_they_are_made_again() -> None:
    there = house("last 2")
    async with there.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "k", 1)
        async with kernel.raw("a"):
            pass
        await acted(kernel, 3)
        told = [event for event in await there.events(GenerationsPruned) if isinstance(event, GenerationsPruned)]
    assert [event.retention for event in told] == ["last 2"] * len(told)
    pruned = [one for event in told for one in event.pruned]
    assert pruned == [
        Pruned(generation=2, nearest=Moment(env="a", generation=1), actions=1),
        Pruned(generation=4, nearest=Moment(env="a", generation=3), actions=1),
    ]


@pytest.mark.parametrize("again", ["the same engine", "the next"])
async def test_what_a_command_with_a_key_has_still_to_make_children_of_stays_until_they_are_there(again: str) -> None:
    there = house("last 1")

    async def refuse(call: Call) -> None:
        if (call.method, call.env) == ("bind", "y"):
            raise ResourceFailed("not now", resource=call.resource)

    async def repeated(kernel: Kernel) -> None:
        there.world.hook = None
        assert kept(kernel) == [1, 4, 7]
        results = await kernel.fork("a", ["x", "y"], key="k")
        assert [str(one.moment) for one in results] == ["x@1", "y@1"]
        contents = [there.sealed(kernel, env, 1)["k"] for env in ("x", "y")]
        assert contents == [1, 1]
        await acted(kernel, 1)
        assert kept(kernel) == [1, 8], "nothing is to be made of it any more"

    async with there.open(hook=refuse) as kernel:
        await kernel.create("a")
        await acted(kernel, 2)
        results = await kernel.fork("a", ["x", "y"], key="k")
        assert [one.error is None for one in results] == [True, False]
        await acted(kernel, 3)
        if again == "the same engine":
            await repeated(kernel)
    if again == "the next":
        async with there.open() as kernel:
            await repeated(kernel)
