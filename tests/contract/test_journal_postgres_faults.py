"""The journal on PostgreSQL when the network is cut and the server restarts: what was acknowledged is there, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.to_thread import run_sync

from statefork.engine.capsule import Phase
from statefork.engine.errors import InDoubt
from statefork.engine.ledger import Ledger
from statefork.engine.settings import SystemClock
from statefork.journal.conformance import assert_sound, everything, note, take, texts, to
from statefork.journal.errors import AppendUnknown, ClaimLost, JournalUnavailable
from statefork.journal.log import Journal, Recorded, exactly
from statefork.journal.postgres import PostgresJournal, open_postgres_journal
from tests.contract.cutting_proxy import CuttingProxy, How
from tests.contract.engine_kit import SMALL, Hook, House, put, request
from tests.contract.postgres_server import PostgresServer, missing_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "-")]

DEADLINE_S = 60.0
TRIO = pytest.mark.parametrize("anyio_backend", ["trio"])  # the event loop is not what these are about
HOW = pytest.mark.parametrize("how", ["before", "after", "late"])


@pytest.fixture
def place(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from tests.contract.postgres_journal_kit import place_on

    monkeypatch.setattr("statefork.journal.postgres_watch.POLL_S", 3600.0)  # no test waits for the safety net
    with place_on(postgres_server) as place:
        yield place


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def through(place: Any, proxy: CuttingProxy) -> str:
    return str(place.through(proxy.port))


async def readable(journal: Journal) -> list[Recorded]:
    """Everything, as soon as it can be read."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            try:
                return await everything(journal)
            except JournalUnavailable:
                await anyio.lowlevel.checkpoint()


@HOW
async def test_an_append_whose_reply_is_lost_is_there_once(how: How, through: str, proxy: CuttingProxy) -> None:
    async with open_postgres_journal(through) as journal:
        await journal.append(to("env/a", "1"))
        trap = proxy.set(b"the very one", how)
        journal.ride("act/a", note("2"))
        assert await journal.append(to("env/a", "the very one", expected=exactly(1))) == 4
        assert trap.sprung.is_set()
        if how == "late":  # the old connection's bytes arrive after all
            assert b"ended" in await run_sync(trap.deliver)
        assert await journal.append(to("env/a", "3", expected=exactly(2))) == 5
        assert await texts(journal) == ["1", "2", "the very one", "3"]
        assert_sound(await everything(journal))


@HOW
async def test_what_nobody_could_ask_about_is_settled_later(how: How, through: str, proxy: CuttingProxy) -> None:
    async with open_postgres_journal(through, patience_s=0.05) as journal:
        await journal.append(to("env/a", "1"))
        trap = proxy.set(b"the very one", how, then_refuse=True)
        journal.ride("act/a", note("2"))
        with pytest.raises(AppendUnknown, match="gave no answer"):
            await journal.append(to("env/a", "the very one", expected=exactly(1)))
        with pytest.raises(JournalUnavailable):  # and it is not taken for absent
            await everything(journal)
        with pytest.raises(JournalUnavailable) as caught:  # of this one it is known that it was never sent
            await journal.append(to("env/b", "x"))
        assert not isinstance(caught.value, AppendUnknown)
        proxy.refusing = False
        kept = ["the very one"] if how == "after" else []
        await readable(journal)
        if how == "late":
            assert b"ended" in await run_sync(trap.deliver)
        await journal.append(to("env/a", "3", expected=exactly(1 + len(kept))))
        assert await texts(journal, stream="env/a") == ["1", *kept, "3"]
        assert await texts(journal, stream="act/a") == ["2"]
        assert await journal.stream_version("env/b") == 0
        assert_sound(await everything(journal))


@HOW
@TRIO
async def test_the_commit_of_a_contested_append(
    how: How, through: str, proxy: CuttingProxy, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another engine was quicker it is done under the lock, in a transaction of several statements.

    ``late``: the server hears nothing of a client that has gone, and ends its transaction after a while.
    """
    monkeypatch.setattr("statefork.journal.postgres_link.IDLE_TIMEOUT_S", 0.1)
    async with (
        open_postgres_journal(through, whole=False) as journal,
        open_postgres_journal(place.dsn, whole=False) as other,
    ):
        await journal.append(to("env/a", "1"))
        await other.append(to("env/a", "2"))
        trap = proxy.set(b"COMMIT", how)
        assert await journal.append(to("env/a", "3"), to("env/b", "4")) == 5
        assert trap.sprung.is_set()
        if how == "late":
            await run_sync(trap.deliver)
        assert await texts(other) == ["1", "2", "3", "4"]
        assert_sound(await everything(other))


class PostgresHouse(House):
    """Engines whose journal is on PostgreSQL."""

    def __init__(self, dsn: str, *, patience_s: float = 0.05) -> None:
        super().__init__(contract=SMALL)
        self.dsn = dsn
        self.patience_s = patience_s

    def _journal(self, before: Hook | None, after: Hook | None) -> AbstractAsyncContextManager[Journal]:
        return open_postgres_journal(self.dsn, patience_s=self.patience_s)


async def cut_off(proxy: CuttingProxy, journal: Journal | None) -> PostgresJournal:
    """The server is out of reach, and the journal has noticed that at rest."""
    assert isinstance(journal, PostgresJournal)
    proxy.refusing = True
    proxy.cut()
    with anyio.fail_after(DEADLINE_S):
        while not journal.away:
            await anyio.lowlevel.checkpoint()
    return journal


async def tried(journal: PostgresJournal) -> None:
    """Return when the writer has asked for the server in vain."""
    with anyio.fail_after(DEADLINE_S):
        while not journal.stats.failures:
            await anyio.lowlevel.checkpoint()


@TRIO
async def test_nothing_begins_of_which_nothing_can_be_journaled(through: str, proxy: CuttingProxy) -> None:
    house = PostgresHouse(through)
    async with house.open() as kernel:
        await kernel.create("a")
        journal = await cut_off(proxy, house.journal)
        with pytest.raises(JournalUnavailable, match="Nothing was begun"):
            await put(kernel, "a", "refused", 1)
        with pytest.raises(JournalUnavailable):
            async with kernel.lease("a", "somebody"):
                pass
        with pytest.raises(JournalUnavailable):
            async with kernel.admit(request(kernel, "a")):
                pass
        assert "refused" not in house.content(kernel, "a")
        proxy.refusing = False
        await put(kernel, "a", "greeting", "goes on")
        assert not journal.away


@TRIO
async def test_who_comes_while_the_server_is_away_waits_for_it(through: str, proxy: CuttingProxy) -> None:
    house = PostgresHouse(through, patience_s=DEADLINE_S)
    async with house.open() as kernel:
        await kernel.create("a")
        journal = await cut_off(proxy, house.journal)
        async with anyio.create_task_group() as group:
            group.start_soon(put, kernel, "a", "greeting", "late")
            await tried(journal)
            assert house.content(kernel, "a")["greeting"] == "hello"
            proxy.refusing = False
        assert house.content(kernel, "a")["greeting"] == "late"


@TRIO
async def test_whose_a_name_is_is_asked_as_patiently_as_an_append(through: str, proxy: CuttingProxy) -> None:
    async with open_postgres_journal(through, place="here", patience_s=DEADLINE_S) as journal:
        ledger = await Ledger.load(journal, SystemClock(), settle_s=0.0, place="here")
        await cut_off(proxy, journal)
        async with anyio.create_task_group() as group:
            group.start_soon(ledger.look_up, "unknown")
            await tried(journal)
            proxy.refusing = False


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("by", ["recover", "act"])
@TRIO
async def test_what_is_in_doubt_is_asked_again(how: How, by: str, through: str, proxy: CuttingProxy) -> None:
    house = PostgresHouse(through)
    async with house.open() as kernel:
        await kernel.create("a")
        await put(kernel, "a", "greeting", "changed")
        proxy.set(b"generation.published", how, then_refuse=True)
        with pytest.raises(InDoubt):
            await kernel.snapshot("a")
        with pytest.raises(InDoubt):
            await kernel.recover("a")
        assert kernel.in_doubt("a")
        proxy.refusing = False
        await (kernel.recover("a") if by == "recover" else put(kernel, "a", "more", 1))
        assert not kernel.in_doubt("a")
        assert kernel.environments["a"].generation == (2 if how == "after" else 1)
        assert house.content(kernel, "a")["greeting"] == "changed", "and nothing of the tail is lost"
        await kernel.snapshot("a")


@pytest.mark.parametrize("how", ["before", "after"])
@TRIO
async def test_an_environment_is_frozen_until_its_publication_is_settled(
    how: How, through: str, proxy: CuttingProxy
) -> None:
    from statefork.engine.settings import Settings

    house = PostgresHouse(through)
    async with house.open(settings=Settings(settle_s=DEADLINE_S)) as kernel:
        await kernel.create("a")
        await put(kernel, "a", "greeting", "changed")
        trap = proxy.set(b"generation.published", how, then_refuse=True)
        outcome: list[object] = []

        async def snapshot() -> None:
            try:
                outcome.append(await kernel.snapshot("a"))
            except JournalUnavailable as error:
                outcome.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(snapshot)
            assert await run_sync(trap.sprung.wait, DEADLINE_S)
            journal = house.journal
            assert isinstance(journal, PostgresJournal)
            with anyio.fail_after(DEADLINE_S):
                while not isinstance(journal.fault, AppendUnknown):
                    await anyio.lowlevel.checkpoint()
            assert kernel.environments["a"].phase is not Phase.SERVING
            assert outcome == []
            proxy.refusing = False
        published = how == "after"
        assert isinstance(outcome[0], JournalUnavailable) is not published
        assert kernel.environments["a"].generation == (2 if published else 1)
        assert kernel.environments["a"].phase is Phase.SERVING
        await put(kernel, "a", "greeting", "goes on")


@TRIO
async def test_an_engine_that_was_taken_for_dead_publishes_nothing(place: Any) -> None:
    house = PostgresHouse(place.dsn)
    async with house.open(check=False) as kernel:
        await kernel.create("a")
        await put(kernel, "a", "greeting", "changed")
        before = await house.recorded()
        place.ask("UPDATE {s}.claims SET expires = clock_timestamp()")
        async with open_postgres_journal(place.dsn) as other:
            await other.append(to("env/b", "1"))
            with pytest.raises(ClaimLost):
                await kernel.snapshot("a")
            found = await everything(other)
            assert found[: len(before)] == before
            assert len(found) == len(before) + 1
            assert kernel.environments["a"].generation == 1
    assert kernel.not_parked == ("a",)


@TRIO
async def test_the_server_restarts_while_many_append(place: Any, postgres_server: PostgresServer) -> None:
    acknowledged: list[str] = []
    async with (
        open_postgres_journal(place.dsn, whole=False, patience_s=DEADLINE_S) as journal,
        open_postgres_journal(place.dsn, whole=False, patience_s=DEADLINE_S) as other,
    ):

        async def appender(writer: Journal, name: int, restarted: anyio.Event) -> None:
            for number in range(1000):
                text = f"{name}.{number}"
                await writer.append(to(f"env/{name}", text, expected=exactly(number)), to("env/all", text))
                acknowledged.append(text)
                if restarted.is_set() and number >= 20:
                    break

        async def follower(seen: list[int]) -> None:
            async with other.subscribe() as events:
                async for recorded in events:
                    seen.append(recorded.position)
                    if recorded.stream == "env/end":
                        break

        restarted, seen = anyio.Event(), list[int]()
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as group:
                group.start_soon(follower, seen)
                async with anyio.create_task_group() as appenders:
                    for name in range(6):
                        appenders.start_soon(appender, (journal, other)[name % 2], name, restarted)
                    while len(acknowledged) < 30:
                        await anyio.lowlevel.checkpoint()
                    await run_sync(postgres_server.restart, "immediate")
                    restarted.set()
                await journal.append(to("env/end", "end"))
        found = await everything(other)
        assert_sound(found)
        assert sorted(await texts(other, stream="env/all")) == sorted(acknowledged)
        assert seen == list(range(1, len(found) + 1))


async def test_a_subscription_outlives_cuts(through: str, proxy: CuttingProxy, place: Any) -> None:
    async with (
        open_postgres_journal(place.dsn, whole=False) as journal,
        open_postgres_journal(through, whole=False) as other,
        other.subscribe(after=1) as events,
    ):
        position = 1
        for number in range(6):
            for _ in range(3):
                await journal.append(to("env/a", str(number)))
            if number % 2:
                proxy.refusing = True
                proxy.cut()
                await journal.append(to("env/a", "nobody hears it"))
                proxy.refusing = False
            found = await take(4 if number % 2 else 3, events)
            assert [r.position for r in found] == list(range(position + 1, position + 1 + len(found)))
            position = found[-1].position


@asynccontextmanager
async def stopped(server: PostgresServer) -> AsyncIterator[None]:
    await run_sync(server.stop, "fast")
    try:
        yield
    finally:
        await run_sync(server.start)


@TRIO
async def test_a_server_that_is_away(place: Any, postgres_server: PostgresServer) -> None:
    async with open_postgres_journal(place.dsn, patience_s=0.0) as journal:
        await journal.append(to("env/a", "1"))
        async with stopped(postgres_server):
            journal.ride("act/a", note("2"))
            with pytest.raises(JournalUnavailable):
                await journal.append(to("env/a", "x", expected=exactly(1)))
            with pytest.raises(JournalUnavailable, match=r"127\.0\.0\.1"):
                async with open_postgres_journal(place.dsn):
                    pass
        await readable(journal)
        with anyio.fail_after(DEADLINE_S):
            while True:  # the server may still be starting
                try:
                    await journal.append(to("env/a", "3", expected=exactly(1)))
                    break
                except JournalUnavailable:
                    await anyio.lowlevel.checkpoint()
        assert await texts(journal) == ["1", "2", "3"]
