"""What was chosen for one environment is journaled: it holds until something else is chosen, whichever engine runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from statefork.engine.capsule import Chosen, Phase
from statefork.engine.errors import ContractError, EnvironmentRetired, HeldByCaller, KeyReused
from statefork.engine.holding import retention_of, snapshots_of
from statefork.engine.kernel import Kernel
from statefork.engine.policy import DRAIN, ON_DEMAND, Choice
from statefork.engine.retention import KEEP_ALL, Retention
from statefork.journal.errors import JournalUnavailable
from statefork.journal.events import CommandAnswered, GenerationPublished, GenerationsPruned, PolicyChosen
from statefork.journal.log import Journal
from statefork.journal.memory import MemoryDisk
from statefork.journal.postgres import open_postgres_journal
from statefork.journal.values import Moment
from statefork.replay.rebuild import rebuild
from tests.contract.engine_kit import SMALL, Hook, House, put
from tests.contract.postgres_server import PostgresServer, missing_postgres

pytestmark = pytest.mark.anyio
OFTEN = Choice(snapshots="every action", retention="last 2")


class OnPostgres(House):
    """With the journal in a database."""

    def __init__(self, server: PostgresServer) -> None:
        from tests.contract.postgres_journal_kit import Place

        super().__init__(contract=SMALL)
        self.dsn = Place(server).dsn

    def _journal(self, before: Hook | None, after: Hook | None) -> AbstractAsyncContextManager[Journal]:
        assert before is None
        assert after is None
        return open_postgres_journal(self.dsn)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    """On every kind of journal."""
    if request.param == "postgres":
        if why := missing_postgres():
            pytest.skip(why)
        return OnPostgres(request.getfixturevalue("postgres_server"))
    return House(tmp_path / "journal.sqlite3" if request.param == "sqlite" else None, contract=SMALL)


@pytest.fixture
def small() -> House:
    """In memory, where nothing depends on the journal."""
    return House(contract=SMALL)


async def acted(kernel: Kernel, env: str, times: int) -> None:
    for number in range(times):
        await put(kernel, env, "k", number)


def holds(kernel: Kernel, env: str = "a") -> tuple[str, str]:
    """What holds for an environment."""
    return str(kernel.upkeep.snapshots_of(env)), str(kernel.upkeep.retention_of(env))


def kept(kernel: Kernel, env: str = "a") -> list[int]:
    return [number for number, one in kernel.environments[env].generations.items() if not one.pruned]


# --- from one engine to the next ----------------------------------------------------------------------------------


async def test_the_next_engine_goes_on_with_what_was_chosen(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await kernel.create("b")
        await kernel.upkeep.choose("a", OFTEN)
        await acted(kernel, "a", 2)
        since = kernel.environments["a"].retention.at
    async with house.open() as kernel:
        assert holds(kernel) == ("every action", "last 2")
        assert holds(kernel, "b") == ("on demand", "all")
        assert kernel.environments["a"].retention == Chosen(text="last 2", at=since)
        await acted(kernel, "a", 2)
        await acted(kernel, "b", 2)
        assert kept(kernel) == [1, 4, 5]
        assert kept(kernel, "b") == [1]
        assert house.journal is not None
        assert (await rebuild(house.journal)).environments["a"] == kernel.environments["a"]


async def test_what_an_environment_was_created_with_is_told_with_its_first_generation(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        results = await kernel.create_each(["b", "c"], choice=Choice(retention="last 1"), activate=False)
        assert [result.error for result in results] == [None, None]
        stream = [one.event for one in await house.recorded() if one.stream == "env/a"]
        published = next(index for index, event in enumerate(stream) if isinstance(event, GenerationPublished))
        assert isinstance(stream[published + 2], PolicyChosen), "behind the publish and the binding"
    async with house.open() as kernel:
        assert holds(kernel) == ("every action", "last 2")
        assert holds(kernel, "b") == holds(kernel, "c") == ("on demand", "last 1")


async def test_what_was_chosen_outlives_a_checkpoint(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        assert await kernel._ledger.save_checkpoint()
    async with house.open() as kernel:
        assert holds(kernel) == ("every action", "last 2")
        await kernel.upkeep.choose("a", Choice(snapshots=""))
    async with house.open() as kernel:
        assert holds(kernel) == ("on demand", "last 2")


async def test_a_crash_takes_nothing_of_it(small: House) -> None:
    async with small.open(check=False) as kernel:
        await kernel.create("a")
        await kernel.upkeep.choose("a", OFTEN)
        await put(kernel, "a", "k", 1)
        crashed = House(contract=SMALL)
        crashed.disk = MemoryDisk()
        crashed.disk.rows = list(small.disk.rows[: small.disk.synced])
        crashed.disk.synced = len(crashed.disk.rows)
        crashed.world = small.world.survivors()
    async with crashed.open() as kernel:
        assert not kernel.recovered.clean
        assert holds(kernel) == ("every action", "last 2")
        await acted(kernel, "a", 2)
        assert kernel.environments["a"].head.actions == kernel.environments["a"].actions


# --- what is told -------------------------------------------------------------------------------------------------


async def test_what_holds_already_is_not_told_again(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await kernel.upkeep.choose("a", Choice(snapshots="", retention=""))
        assert await house.events(PolicyChosen) == []
        await kernel.upkeep.choose("a", Choice(snapshots="every action"))
        await kernel.upkeep.choose("a", Choice(snapshots="every action"))
        await kernel.upkeep.choose("a", Choice(snapshots="every 1 actions", retention=""))
        await kernel.upkeep.choose("a", Choice())
        first = kernel.environments["a"].snapshots
        await kernel.upkeep.choose("a", Choice(retention="last 2"))
        assert kernel.environments["a"].snapshots == first, "it holds since it was chosen"
        told = await house.events(PolicyChosen)
        assert [(one.snapshots, one.retention) for one in told if isinstance(one, PolicyChosen)] == [
            ("every action", ""),
            ("every action", "last 2"),
        ]


async def test_what_lets_generations_go_is_told(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        await acted(kernel, "a", 4)
        await kernel.upkeep.prune("a", Retention(last=1))
        told = [one for one in await small.events(GenerationsPruned) if isinstance(one, GenerationsPruned)]
        assert [(one.retention, one.by) for one in told] == [("last 2", "policy")] * 2 + [("last 1", "command")]


@pytest.mark.parametrize("wrong", [Choice(snapshots="sometimes"), Choice(snapshots="every action", retention="some")])
async def test_a_text_that_is_no_policy_is_refused_before_anything_is_written(small: House, wrong: Choice) -> None:
    async with small.open() as kernel:
        await kernel.create("a")
        before = len(await small.recorded())
        for work in (
            lambda: kernel.upkeep.choose("a", wrong),
            lambda: kernel.create("b", choice=wrong),
            lambda: kernel.create_each(["b", "c"], choice=wrong),
        ):
            with pytest.raises(ContractError, match=r"a (snapshot policy|retention) is ") as caught:
                await work()
            assert caught.value.facts["key"] == ("retention" if wrong.retention else "snapshots")
        assert len(await small.recorded()) == before


async def test_what_has_ended_is_kept_as_it_was(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        await acted(kernel, "a", 2)
        await kernel.retire("a")
        with pytest.raises(EnvironmentRetired):
            await kernel.upkeep.choose("a", Choice(retention="last 9"))
        assert holds(kernel) == ("every action", "last 2")


async def test_a_caller_that_holds_a_lease_would_wait_for_itself(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a")
        async with kernel.lease("a", "evaluator"):
            with pytest.raises(HeldByCaller):
                await kernel.upkeep.choose("a", OFTEN)


async def test_a_parked_environment_stays_parked(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a", activate=False)
        await kernel.upkeep.choose("a", OFTEN)
        assert kernel.environments["a"].phase is Phase.PARKED
        await acted(kernel, "a", 1)
        assert kept(kernel) == [1, 2]


# --- what comes after ---------------------------------------------------------------------------------------------


async def test_it_stays_with_the_environment_and_does_not_go_over_to_its_children(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        await acted(kernel, "a", 1)
        await kernel.fork("a", ["f"])
        await kernel.clone("a", "c")
        await kernel.reset("a")
        await kernel.restore("a", Moment(env="a", generation=1))
        await kernel.park("a")
        await kernel.recover("a")
        assert holds(kernel) == ("every action", "last 2")
        assert holds(kernel, "f") == holds(kernel, "c") == ("on demand", "all")


async def test_what_is_there_for_one_command_keeps_to_itself(small: House) -> None:
    keys = 'name = "notes"\nsnapshots = "every action"\nretention = "last 1"'
    house = House(contract=SMALL.replace('name = "notes"', keys))
    async with house.open() as kernel:
        await kernel.create("a")
        (child,) = await kernel.fork("a", ["a-d1"], helps="looking at a@1")
        assert child.error is None
        await acted(kernel, "a-d1", 3)
        assert (holds(kernel, "a-d1"), kept(kernel, "a-d1")) == (("on demand", "all"), [1])
        await kernel.retire("a-d1")


async def test_a_policy_of_a_later_statefork_takes_no_snapshots_and_lets_nothing_go(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a", choice=OFTEN)
        later = replace(
            kernel.environments["a"], snapshots=Chosen(text="at noon"), retention=Chosen(text="the best of them")
        )
        assert (snapshots_of(later, kernel.contract), retention_of(later, kernel.contract)) == (ON_DEMAND, KEEP_ALL)


# --- commands that are repeated -------------------------------------------------------------------------------------


async def test_a_repetition_changes_nothing(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a")
        await kernel.upkeep.choose("a", OFTEN, key="k1")
        await kernel.upkeep.choose("a", Choice(retention="last 9"))
    async with house.open() as kernel:
        await kernel.upkeep.choose("a", OFTEN, key="k1")
        assert holds(kernel) == ("every action", "last 9")
        with pytest.raises(KeyReused, match="keep a snapshots=every action retention=last 2"):
            await kernel.upkeep.choose("a", Choice(retention="last 2"), key="k1")
        await kernel.upkeep.choose("a", Choice(retention="last 9"), key="k2")  # nothing changes: the key is told
        await kernel.upkeep.choose("a", Choice(retention="last 1"))
        await kernel.upkeep.choose("a", Choice(retention="last 9"), key="k2")
        assert holds(kernel) == ("every action", "last 1")
        assert len(await house.events(PolicyChosen)) == 3
        assert len(await house.events(CommandAnswered)) == 2


async def test_a_create_that_is_repeated_chooses_nothing_anew(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("a", key="k1", choice=OFTEN)
        await kernel.upkeep.choose("a", Choice(retention=""))
        assert await kernel.create("a", key="k1", choice=OFTEN) == Moment(env="a", generation=1)
        assert holds(kernel) == ("every action", "all")
        with pytest.raises(KeyReused):
            await kernel.create("a", key="k1")


async def test_a_lost_reply_is_settled(small: House) -> None:
    lost = False

    async def after() -> None:
        if lost:
            raise JournalUnavailable("no answer")

    async with small.open(after_commit=after) as kernel:
        await kernel.create("a")
        lost = True
        await kernel.upkeep.choose("a", OFTEN)  # the journal is read back
        lost = False
        assert holds(kernel) == ("every action", "last 2")
        assert len(await small.events(PolicyChosen)) == 1


async def test_of_an_append_that_failed_nothing_holds(small: House) -> None:
    full = False

    async def before() -> None:
        if full:
            raise JournalUnavailable("the disk is full")

    async with small.open(before_commit=before) as kernel:
        await kernel.create("a")
        full = True
        with pytest.raises(JournalUnavailable):
            await kernel.upkeep.choose("a", OFTEN)
        full = False
        assert holds(kernel) == ("on demand", "all")
        await kernel.upkeep.choose("a", OFTEN)
        assert holds(kernel) == ("every action", "last 2")


async def test_side_by_side_with_everything_else(small: House) -> None:
    async with small.open() as kernel:
        await kernel.create("a")

        async def repeated(times: int, work: Callable[[int], Awaitable[object]]) -> None:
            for number in range(times):
                await work(number)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repeated, 6, lambda n: put(kernel, "a", "k", n))
            tasks.start_soon(repeated, 6, lambda n: kernel.upkeep.choose("a", Choice(retention=f"last {n + 1}")))
            tasks.start_soon(repeated, 6, lambda _: kernel.snapshot("a", drain=DRAIN))
        assert holds(kernel) == ("on demand", "last 6")
