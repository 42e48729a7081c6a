"""Several engines share one journal on PostgreSQL at the same time, each with a state directory of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.to_thread import run_sync
from msgspec.structs import replace

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.checkpoint import fold
from statefork.engine.contract import parse_contract
from statefork.engine.errors import (
    EnvironmentElsewhere,
    EnvironmentExists,
    TransitionAborted,
    UnknownEnvironment,
)
from statefork.engine.kernel import Kernel, Settings, open_kernel
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.checkpoint import Checkpoint
from statefork.journal.conformance import everything
from statefork.journal.errors import AppendUnknown, ClaimLost, JournalUnavailable
from statefork.journal.events import EnvironmentCreated, engine_stream
from statefork.journal.postgres import PostgresJournal, open_postgres_journal
from statefork.journal.values import Moment
from statefork.replay.audit import audit_recorded
from statefork.replay.rebuild import differences, rebuild
from tests.contract.cutting_proxy import CuttingProxy, How
from tests.contract.engine_kit import SETTINGS, SMALL, House, Pause, put, until
from tests.contract.postgres_server import PostgresServer, missing_postgres

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["trio"]),  # below anyio nothing differs here
    pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "-"),
]

DEADLINE_S = 60.0


@pytest.fixture
def database(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from tests.contract.postgres_journal_kit import place_on

    monkeypatch.setattr("statefork.journal.postgres_watch.POLL_S", 3600.0)  # no test waits for the safety net
    with place_on(postgres_server) as place:
        yield place


class SharingHouse(House):
    """One of several: a place of its own in a journal that others write, too."""

    def __init__(self, dsn: str, place: str) -> None:
        super().__init__(contract=SMALL)
        self.dsn = dsn
        self.place = place

    @asynccontextmanager
    async def opened(
        self, *, settings: Settings = SETTINGS, check: bool = True, dsn: str = "", **how: Any
    ) -> AsyncIterator[Kernel]:
        async with open_postgres_journal(dsn or self.dsn, place=self.place, **how) as journal:
            self.journal = journal
            async with open_kernel(
                journal=journal,
                contract=self.contract,
                resources={name: self.resource(name, self.place) for name in self.contract.order},
                blobs=MemoryBlobs(),
                settings=settings,
                place=self.place,
                where=f"/srv/{self.place} on a machine",
            ) as kernel:
                yield kernel
            if check:
                await self.verify(kernel)

    async def verify(self, kernel: Kernel) -> None:
        """The journal as a whole is sound, and the fold is that of this place."""
        assert self.journal is not None
        report = audit_recorded(await everything(self.journal))
        assert report.clean, report
        mine = await rebuild(self.journal, place=self.place)
        own = {"environments": dict(kernel.environments.items()), "bases": kernel.world.bases}
        assert own == {"environments": dict(mine.environments.items()), "bases": mine.bases}
        for env in mine.environments:
            assert kernel.world.versions[env] == mine.versions[env] == await self.journal.stream_version(f"env/{env}")
        assert self.unreached(kernel) == []


@pytest.fixture
def left(database: Any) -> SharingHouse:
    return SharingHouse(database.dsn, "left")


@pytest.fixture
def right(database: Any) -> SharingHouse:
    return SharingHouse(database.dsn, "right")


async def work(kernel: Kernel, env: str) -> None:
    """One environment's life, with everything that makes events."""
    await kernel.create(env)
    for number in range(3):
        await put(kernel, env, "greeting", f"{env} {number}")
        await kernel.snapshot(env)
    children = await kernel.fork(env, 2)
    assert [child.error for child in children] == [None, None]
    await put(kernel, children[0].env, "greeting", "a child")
    await kernel.reset(env)
    await kernel.restore(env, Moment(env=env, generation=3))
    await kernel.clone(env, f"{env}-clone", activate=False)
    await kernel.retire(children[1].env)
    await kernel.collect()


async def test_two_engines_interleaved(left: SharingHouse, right: SharingHouse) -> None:
    async with left.opened() as one, right.opened() as two:
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(work, one, f"l{number}")
                tasks.start_soon(work, two, f"r{number}")
        assert {env[0] for env in one.environments} == {"l"}
        assert {env[0] for env in two.environments} == {"r"}
    assert left.journal is not None
    async with left.opened() as one:  # the other closed in good order: nothing is recovered, and nothing is collected
        assert one.recovered.clean
        whole = await rebuild(left.journal)
        assert {capsule.place for capsule in whole.environments.values()} == {"left", "right"}
        assert whole.elsewhere.places == {place: f"/srv/{place} on a machine" for place in ("left", "right")}


async def test_a_name_is_given_once(left: SharingHouse, right: SharingHouse) -> None:
    async with left.opened() as one, right.opened() as two:
        await one.create("a")
        await two.create("b")
        for refused in (partial(two.create, "a"), partial(two.clone, "b", "a")):
            with pytest.raises(EnvironmentExists, match="/srv/left") as caught:
                await refused()
            assert caught.value.facts["place"] == "left"
        (child,) = await two.fork("b", ["a"])
        assert isinstance(child.error, EnvironmentExists)
        await two.create("a-f1")  # and those that are chosen for children
        (child,) = await one.fork("a", 1)
        assert (child.env, child.error) == ("a-f2", None)
        await one.create("c")
        first = Moment(env="c", generation=1)
        for command in (
            *(partial(two.fork, first, 1), partial(two.restore, "b", first), partial(two.reset, "a")),
            *(partial(put, two, "a", "greeting", "x"), partial(two.activate, "a"), partial(two.retire, "a")),
        ):
            with pytest.raises(EnvironmentElsewhere, match="/srv/left") as elsewhere:
                await command()
            assert elsewhere.value.facts["where"] == "/srv/left on a machine"
        with pytest.raises(UnknownEnvironment):
            await two.find("d")


async def test_a_race_for_a_name_has_one_winner_and_the_others_leave_nothing(
    left: SharingHouse, right: SharingHouse
) -> None:
    async with left.opened() as one, right.opened() as two:
        won: list[str] = []

        async def found(kernel: Kernel, name: str) -> None:
            with suppress(EnvironmentExists):
                await kernel.create(name)
                won.append(name)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                for kernel in (one, two) if number % 2 else (two, one):
                    tasks.start_soon(found, kernel, f"n{number}")
        assert sorted(won) == [f"n{number}" for number in range(8)]
        assert not set(one.environments) & set(two.environments)
        branches = [branch for kernel in (one, two) for env in kernel.environments for branch in kernel.branches(env)]
        assert len(branches) == len(left.world.branches) + len(right.world.branches)
        assert len(await left.events(EnvironmentCreated)) == 8


async def test_a_name_whose_founding_failed_is_free_for_the_others(left: SharingHouse, right: SharingHouse) -> None:
    async def fails(call: Call) -> None:
        if call.method == "bind":
            raise OSError("no")

    async with left.opened() as one, right.opened() as two:
        left.world.hook = fails
        for _ in range(2):
            with pytest.raises(TransitionAborted, match="create of a was aborted"):
                await one.create("a")
        await two.create("a")
        left.world.hook = None
        with pytest.raises(EnvironmentExists, match="/srv/right"):
            await one.create("a")
        right.world.hook = fails
        with pytest.raises(TransitionAborted, match="create of b was aborted"):
            await two.create("b")
        await one.create("b")
        right.world.hook = None
    async with left.opened() as one:
        assert list(one.environments) == ["b"]


async def test_what_became_of_a_name_is_found_by_the_append(left: SharingHouse, right: SharingHouse) -> None:
    async def fails(call: Call) -> None:
        if call.method == "bind":
            raise OSError("no")

    async with left.opened() as one, right.opened() as two:
        right.world.hook = fails
        with pytest.raises(TransitionAborted, match="create of a was aborted"):
            await two.create("a")
        right.world.hook = None
        await two.create("b")
        assert one.world.elsewhere.names == {}
        await one.create("a")  # given up by the other: begun anew, under a name that no transition had
        with pytest.raises(EnvironmentExists, match="/srv/right"):
            await one.create("b")
        assert left.world.branches.keys() == {branch.id for branch in one.branches("a").values()}


async def test_nobody_waits_for_a_slot_to_hear_that_a_name_is_taken(left: SharingHouse, right: SharingHouse) -> None:
    slotted = SMALL.replace('visits = "visits"', 'visits = "visits"\nslot = "page"')
    left.contract = right.contract = parse_contract(slotted, "notes.toml")
    async with left.opened(settings=replace(SETTINGS, max_slots={"page": 1})) as one, right.opened() as two:
        await one.create("a")
        await two.create("b")
        async with one.lease("a", "somebody"):
            with anyio.fail_after(DEADLINE_S), pytest.raises(EnvironmentExists, match="/srv/right"):
                await one.create("b")


async def test_a_crash_of_one_is_recovered_by_its_own_engine_alone(left: SharingHouse, right: SharingHouse) -> None:
    async with right.opened() as two:
        await two.create("r")
        await put(two, "r", "greeting", "kept")
        async with left.opened(check=False, lock="left") as one:
            await one.create("l")
            await put(one, "l", "greeting", "lost")
            crashed = SharingHouse(left.dsn, "left")
            crashed.world = left.world.survivors()
            async with crashed.opened(
                lock="left"
            ) as again:  # as after a kill: the world and the claim are as they were
                assert again.recovered.recovered == (Moment(env="l", generation=2),)
                assert again.recovered.orphans
                assert "r" not in again.environments
                assert two.environments["r"].phase is Phase.SERVING
                await put(two, "r", "greeting", "goes on")
                await two.snapshot("r")
        await two.reset("r")
        assert right.content(two, "r") == {"greeting": "hello"}


async def test_checkpoints_are_of_one_place(left: SharingHouse, right: SharingHouse) -> None:
    settings = replace(SETTINGS, checkpoint_events=5)
    async with left.opened(settings=settings) as one, right.opened(settings=settings) as two:
        for number in range(4):
            await one.create(f"l{number}")
            await two.create(f"r{number}", activate=False)
    for house in (left, right):
        assert house.journal is not None
    async with open_postgres_journal(left.dsn, place="third") as journal:
        for place in ("left", "right"):
            kept = await journal.checkpoint(f"world-{place}")
            assert kept is not None
            folded = await fold(journal, place=place)
            assert folded.begun == kept.position > 0
            mine = await rebuild(journal, place=place)
            assert differences(folded.world, mine) == ()
            assert folded.world.runs == mine.runs == 1
        assert (await fold(journal)).begun == 0
    async with right.opened(settings=settings) as two:
        assert two.recovered.clean
        with pytest.raises(EnvironmentElsewhere):
            await two.reset("l0")


async def test_who_is_fenced_out_serves_nothing(left: SharingHouse, database: Any) -> None:
    """Another process took the place: noticed at rest, before anything is tried."""
    async with left.opened(check=False, claim_s=0.2) as one:
        await one.create("a")
        await one.create("b")
        await put(one, "a", "greeting", "changed")
        database.ask("UPDATE {s}.claims SET writer = 0, token = token + 1000")
        with anyio.fail_after(DEADLINE_S):
            assert (await one.fenced()).facts["stream"] == engine_stream("left")
        for refused in (partial(one.snapshot, "a"), partial(put, one, "a", "greeting", "x"), partial(one.create, "c")):
            with pytest.raises(ClaimLost):
                await refused()
        assert left.world.branches, "nothing is discarded: it may be somebody else's now"
        assert left.journal is not None
        with pytest.raises(ClaimLost):
            await left.journal.save_checkpoint(Checkpoint(fold="world-left", position=1, data=b""))
    assert set(one.not_parked) == {"a", "b"}


async def test_a_publication_of_one_who_was_taken_over_is_refused(left: SharingHouse, database: Any) -> None:
    async with left.opened(check=False) as one:
        await one.create("a")
        await put(one, "a", "greeting", "changed")
        pause = Pause("db", "seal")
        left.world.hook = pause
        outcome: list[BaseException] = []

        async def snapshot() -> None:
            try:
                await one.snapshot("a")
            except ClaimLost as error:
                outcome.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(snapshot)
            await pause.reached.wait()
            database.ask("UPDATE {s}.claims SET expires = clock_timestamp()")
            heir = SharingHouse(left.dsn, "left")
            heir.world = left.world.survivors()
            async with heir.opened() as two:
                await put(two, "a", "greeting", "by the heir")
                pause.go_on.set()
                await until(lambda: bool(outcome))
                await two.snapshot("a")
        assert one.environments["a"].generation == 1
        published = {version for _, version in one.world.reachable()}
        assert left.world.versions.keys() - published, "what was sealed is not discarded: it may be somebody else's now"
        with pytest.raises(ClaimLost):
            await one.reset("a")


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_lost_reply_is_settled_while_others_write(
    how: How, left: SharingHouse, right: SharingHouse, database: Any, postgres_server: PostgresServer
) -> None:
    settings = replace(SETTINGS, settle_s=DEADLINE_S)
    with CuttingProxy(postgres_server.port) as proxy:
        through = database.through(proxy.port)
        async with right.opened() as two, left.opened(settings=settings, dsn=through, patience_s=0.05) as one:
            await one.create("a")
            await two.create("b")
            await put(one, "a", "greeting", "changed")
            trap = proxy.set(b"generation.published", how, then_refuse=True)
            outcome: list[object] = []

            async def snapshot() -> None:
                try:
                    outcome.append(await one.snapshot("a"))
                except JournalUnavailable as error:
                    outcome.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(snapshot)
                assert await run_sync(trap.sprung.wait, DEADLINE_S)
                journal = left.journal
                assert isinstance(journal, PostgresJournal)
                with anyio.fail_after(DEADLINE_S):
                    while not isinstance(journal.fault, AppendUnknown):
                        await anyio.lowlevel.checkpoint()
                await put(two, "b", "greeting", "meanwhile")
                await two.snapshot("b")
                with pytest.raises(JournalUnavailable, match="Nothing was begun"):
                    await put(one, "a", "greeting", "too early")
                assert outcome == []
                proxy.refusing = False
            assert isinstance(outcome[0], JournalUnavailable) is (how == "before")
            assert one.environments["a"].generation == (2 if how == "after" else 1)
            await put(one, "a", "greeting", "goes on")
