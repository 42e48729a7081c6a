"""The journal on PostgreSQL: several engines on one, claims and their tokens, no holes, and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.to_thread import run_sync
from hypothesis import given, settings
from hypothesis import strategies as st

from statefork.journal.conformance import assert_sound, everything, note, refused, take, texts, to
from statefork.journal.errors import (
    ClaimHeld,
    ClaimLost,
    ExpectationFailed,
    JournalCorrupt,
    JournalUnavailable,
    StateLocked,
    StateMissing,
)
from statefork.journal.log import NO_STREAM, Append, exactly
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.postgres import open_postgres_journal
from statefork.journal.postgres_link import parse_address
from statefork.journal.postgres_reading import open_postgres_reader
from statefork.journal.schema import VIEWS, create_schema
from tests.contract.postgres_server import PostgresServer, missing_postgres
from tests.unit.test_journal_equivalence import run, steps

pytestmark = pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "-")

DEADLINE_S = 60.0
GOLDEN = Path(__file__).parent.parent / "golden" / "journal-v1" / "journal.sqlite3"


@pytest.fixture
def place(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from tests.contract.postgres_journal_kit import place_on

    monkeypatch.setattr("statefork.journal.postgres_watch.POLL_S", 3600.0)  # no test waits for the safety net
    with place_on(postgres_server) as place:
        yield place


def expire(place: Any) -> None:
    """The database's clock has reached the end of every claim."""
    place.ask("UPDATE {s}.claims SET expires = clock_timestamp()")


@pytest.mark.anyio
async def test_engines_append_against_each_other_and_nobody_sees_a_hole(place: Any) -> None:
    """Each has a stream of its own, all share one, and one is fought for. A raw reader looks as fast as it can."""
    done = threading.Event()
    looks: list[int] = []

    def watch() -> None:
        import psycopg

        last = 0
        with psycopg.connect(place.server.dsn, autocommit=True) as connection:
            query = f"SELECT position FROM {place.schema}.events WHERE position > %s ORDER BY position".encode()
            while True:
                ended = done.is_set()
                found = [position for (position,) in connection.execute(query, (last,))]
                assert found == list(range(last + 1, last + 1 + len(found))), "a hole"
                last += len(found)
                looks.append(last)
                if ended and not found:
                    break

    async def engine(name: str) -> None:
        async with open_postgres_journal(place.dsn, whole=False) as journal:

            async def appender(number: int) -> None:
                own = f"env/{name}.{number}"
                for nth in range(12):
                    journal.ride("act/all", note(f"{own}.{nth}"))
                    await journal.append(to(own, str(nth), expected=exactly(nth)), to("env/all", f"{own}.{nth}"))
                    while True:
                        version = await journal.stream_version("env/fought")
                        try:
                            await journal.append(to("env/fought", f"{own}.{nth}", expected=exactly(version)))
                            break
                        except ExpectationFailed:
                            continue

            async with anyio.create_task_group() as group:
                for number in range(2):
                    group.start_soon(appender, number)
            await journal.flush()

    count = 3 * 2 * 12
    async with open_postgres_journal(place.dsn, whole=False) as journal:
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as group:
                group.start_soon(run_sync, watch)
                async with journal.subscribe() as events, anyio.create_task_group() as engines:
                    for name in "abc":
                        engines.start_soon(engine, name)
                    heard = await take(1 + 4 * count, events)
                done.set()
        found = await everything(journal)
        assert [r.position for r in heard] == [r.position for r in found] == list(range(1, 2 + 4 * count))
        assert_sound(found)
        for shared in ("env/all", "act/all", "env/fought"):
            assert len(set(await texts(journal, stream=shared))) == count
    assert looks[-1] == 1 + 4 * count


@pytest.mark.anyio
async def test_who_was_taken_for_dead_can_not_publish(place: Any) -> None:
    async with open_postgres_journal(place.dsn) as late:
        await late.append(to("env/a", "1"))
        with refused(StateLocked):
            async with open_postgres_journal(place.dsn):
                pass
        with refused(StateLocked):
            async with open_postgres_journal(place.dsn, whole=False):
                pass
        expire(place)
        await late.append(to("env/a", "2"))  # nobody took it: time alone fences nobody out
        async with open_postgres_journal(place.dsn) as journal:
            await journal.append(to("env/a", "3", expected=exactly(2)))
            for append in (to("env/a", "x"), to("env/new", "x")):
                with refused(ClaimLost, stream="*"):
                    await late.append(append)
            assert await texts(late) == ["1", "2", "3"]  # reading is welcome
            await journal.append(to("env/a", "4", expected=exactly(3)))
        with refused(ClaimLost):  # also when the other one has gone
            await late.append(to("env/a", "x", expected=exactly(4)))
        assert place.ask("SELECT count(*) FROM {s}.claims") == [(0,)]


@pytest.mark.anyio
async def test_the_same_state_directory_takes_over_at_once(place: Any) -> None:
    async with open_postgres_journal(place.dsn, lock="one") as dead:
        with refused(StateLocked):
            async with open_postgres_journal(place.dsn, lock="other"):
                pass
        async with open_postgres_journal(place.dsn, lock="one") as journal:
            await journal.append(to("env/a", "1"))
            with refused(ClaimLost):
                await dead.append(to("env/a", "x"))


@pytest.mark.anyio
async def test_claims_on_streams(place: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        open_postgres_journal(place.dsn, whole=False) as late,
        open_postgres_journal(place.dsn, whole=False) as journal,
    ):
        old = await late.claim("env/a", "act/a")
        await late.append(to("env/a", "1"), to("act/a", "2"))
        with refused(ClaimHeld, stream="env/a"):
            await journal.claim("env/b", "env/a")
        with refused(ClaimLost, stream="act/a"):
            await journal.append(to("env/b", "x"), to("act/a", "x"))
        with refused(StateLocked):
            async with open_postgres_journal(place.dsn):
                pass
        expire(place)
        new = await journal.claim("env/a", "act/a")
        assert new.token > old.token
        with caplog.at_level(logging.WARNING):
            late.ride("act/a", note("x"))
            late.ride("act/b", note("3"))
            with refused(ClaimLost, stream="env/a"):
                await late.append(to("env/a", "x", expected=exactly(1)))
            await late.append(to("env/b", "4"))  # nobody else is disturbed
        assert "1 events for which nobody waits were given up" in caplog.text
        await journal.append(to("env/a", "5", expected=exactly(1)))
        await journal.release(new)
        with refused(ClaimLost):
            await late.append(to("env/a", "x"))
        await late.claim("env/a")
        await late.append(to("env/a", "6", expected=exactly(2)))
        assert await texts(journal) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.anyio
async def test_claims_are_renewed(place: Any) -> None:
    async with open_postgres_journal(place.dsn, claim_s=0.3):
        begun = place.ask("SELECT expires FROM {s}.claims")
        with anyio.fail_after(DEADLINE_S):
            while place.ask("SELECT expires FROM {s}.claims") == begun:
                await anyio.lowlevel.checkpoint()


STOPPED = """
import sys, anyio
from statefork.journal.conformance import to
from statefork.journal.errors import ClaimLost
from statefork.journal.postgres import open_postgres_journal

async def main():
    async with open_postgres_journal(sys.argv[1], claim_s=0.5) as journal:
        await journal.append(to("env/a", "1"))
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            await journal.append(to("env/a", "x"))
        except ClaimLost as error:
            print(error.code, flush=True)

anyio.run(main, backend="trio")
"""


def engine_of_its_own(dsn: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STOPPED, dsn]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_engine_that_was_stopped_wakes_up_late(place: Any) -> None:
    with engine_of_its_own(place.dsn) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        child.stdin.write("\n")
        child.stdin.flush()
        with anyio.fail_after(DEADLINE_S):
            while True:
                try:
                    async with open_postgres_journal(place.dsn) as journal:
                        await journal.append(to("env/a", "2", expected=exactly(1)))
                        os.kill(child.pid, signal.SIGCONT)
                        assert await run_sync(child.stdout.readline) == "claim_lost\n"
                        assert await texts(journal) == ["1", "2"]
                    break
                except StateLocked:
                    await anyio.lowlevel.checkpoint()


# --- what it refuses -------------------------------------------------------------------------------------------------


async def opened(dsn: str, **options: Any) -> None:
    async with open_postgres_journal(dsn, **options):
        pass


def test_a_schema_that_is_not_ours_is_left_alone(place: Any) -> None:
    place.ask("CREATE SCHEMA {s}; CREATE TABLE {s}.goods (id int)")
    with pytest.raises(JournalCorrupt, match="is not a statefork journal"):
        anyio.run(opened, place.dsn)
    assert place.ask("SELECT relname FROM pg_class WHERE relnamespace = '{s}'::regnamespace") == [("goods",)]


def test_another_format_is_refused(place: Any) -> None:
    anyio.run(opened, place.dsn)
    place.ask("UPDATE {s}.journal SET format = 2")
    with pytest.raises(JournalUnavailable, match="format 2; this statefork knows 1"):
        anyio.run(opened, place.dsn)


def test_only_our_schema_is_touched(place: Any) -> None:
    count = "SELECT count(*) FROM pg_class WHERE relnamespace <> '{s}'::regnamespace AND oid >= 16384"
    toast = " AND relnamespace <> 'pg_toast'::regnamespace AND relnamespace::regnamespace::text NOT LIKE 't%'"
    before = place.ask("SELECT nspname FROM pg_namespace WHERE nspname = 'statefork'")
    anyio.run(opened, place.dsn)
    assert place.ask(count + toast) == [(0,)]
    assert place.ask("SELECT nspname FROM pg_namespace WHERE nspname = 'statefork'") == before == []


@pytest.mark.parametrize("name", ["public", "pg_journal", "No", "a-b", 'a"b', "x" * 49])
def test_names_of_schemas(name: str) -> None:
    with pytest.raises(JournalUnavailable, match="can't be the schema"):
        parse_address("postgresql://127.0.0.1/x", name)


def test_a_user_without_rights_is_told_what_is_missing(place: Any) -> None:
    place.ask("DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN")
    with pytest.raises(JournalUnavailable, match="permission denied") as caught:
        anyio.run(opened, place.dsn.replace("postgres@", "nobody_much@"))
    assert "GRANT CREATE ON DATABASE" in caught.value.hint


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:hush-hush@127.0.0.1:1/x",
        "postgresql://user:hush-hush@127.0.0.1:1/x?nonsense=1",
        "postgresql://user:hush%2Dhush@127.0.0.1:1/x?connect_timeout=hush-hush",
        "postgresql://user@127.0.0.1:1/x?password=hush-hush",
        "postgresql://user@127.0.0.1:hush-hush/x",
        "hush-hush",
    ],
)
def test_secrets_are_not_told(dsn: str) -> None:
    with pytest.raises(JournalUnavailable) as caught:
        anyio.run(opened, dsn)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hush" not in f"{error} {error!r} {getattr(error, 'facts', '')}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    with pytest.raises((JournalUnavailable, AssertionError)):
        assert "hush" in repr(parse_address(dsn))


@pytest.mark.parametrize(
    ("was", "now", "hint"), [("/postgres?", "/gone?", "createdb"), ("postgres@", "no-one@", "password")]
)
def test_who_is_not_let_in_is_told_why(was: str, now: str, hint: str, place: Any) -> None:
    with pytest.raises(JournalUnavailable) as caught:
        anyio.run(opened, place.dsn.replace(was, now))
    assert hint in caught.value.hint


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JournalUnavailable, match="psycopg") as caught:
        anyio.run(opened, "postgresql://127.0.0.1/x")
    assert "statefork[postgres]" in caught.value.hint


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_reading_from_elsewhere(place: Any) -> None:
    with refused(StateMissing):
        async with open_postgres_reader(parse_address(place.dsn)):
            pass
    async with open_postgres_journal(place.dsn) as journal:
        await journal.append(to("env/a", "1"), to("env/b", "2"))
        async with open_postgres_reader(parse_address(place.dsn)) as reader:
            assert reader.id == journal.id
            await journal.append(to("env/a", "3"))
            assert await texts(reader) == ["1", "2", "3"]
            assert await reader.head() == 4
            for at in range(5):
                assert await reader.heads_digest(at=at) == await journal.heads_digest(at=at)


@pytest.mark.anyio
async def test_the_heads_digest_is_that_of_the_memory_journal(place: Any) -> None:
    async with open_postgres_journal(place.dsn) as journal, open_memory_journal() as memory:
        for one in (journal, memory):
            for number in range(6):
                await one.append(to(f"env/{number % 3}", str(number)))
        assert await journal.heads_digest(at=0) == await memory.heads_digest(at=0)
        place.ask("UPDATE {s}.streams SET hash = %s WHERE stream = 'engine'", (await everything(memory))[0].hash)
        for at in range(1, 8):
            digest = await memory.heads_digest(at=at)
            assert await journal.heads_digest(at=at) == digest


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize(
    ("damage", "position"),
    [
        ("UPDATE {s}.events SET event = replace(event, '\"5\"', '\"7\"') WHERE position = 5", 5),
        ("DELETE FROM {s}.events WHERE position = 4", 4),
        ("DELETE FROM {s}.events WHERE position = 6", 6),
        ("UPDATE {s}.streams SET version = 9 WHERE stream = 'env/b'", 6),
        ("UPDATE {s}.events SET hash = repeat('0', 64) WHERE position = 2", 2),
    ],
)
async def test_damage_is_seen_and_named(place: Any, damage: str, position: int) -> None:
    async with open_postgres_journal(place.dsn) as journal:
        for number in range(2, 7):
            await journal.append(to(f"env/{'ab'[number % 2]}", str(number)))
    place.ask(damage)
    async with open_postgres_reader(parse_address(place.dsn)) as reader:
        with refused(JournalCorrupt, position=position):
            await everything(reader)
    with refused(JournalCorrupt, position=position):
        await opened(place.dsn)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_big_events_come_in_small_chunks(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statefork.journal.postgres_reading.CHUNK_BYTES", 1000)
    async with open_postgres_journal(place.dsn) as journal:
        await journal.append(to("env/a", *("x" * size for size in (10, 2000, 10, 500, 500, 500, 10))))
        assert_sound(await everything(journal))
        assert [len(text) for text in await texts(journal, stream="env/a")] == [10, 2000, 10, 500, 500, 500, 10]


@pytest.mark.parametrize("golden", ["journal-v1", "journal-v1-import", "journal-v1-kept"])
def test_the_views_are_those_of_the_file(place: Any, tmp_path: Path, golden: str) -> None:
    import psycopg

    anyio.run(opened, place.dsn)
    create_schema(file := sqlite3.connect(shutil.copy(GOLDEN.parents[1] / golden / GOLDEN.name, tmp_path)))
    place.ask("TRUNCATE {s}.events, {s}.streams")
    with psycopg.connect(place.server.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        insert = f"INSERT INTO {place.schema}.events VALUES (%s, %s, %s, %s, %s)"
        cursor.executemany(insert.encode(), file.execute("SELECT * FROM events"))
        for view in VIEWS:
            old, new = file.execute(f"SELECT * FROM {view}"), cursor.execute(f"TABLE {place.schema}.{view}".encode())
            assert [column[0] for column in new.description or ()] == [column[0] for column in old.description]
            assert [plain(row) for row in new] == [plain(row) for row in old], view
    file.close()


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that two databases write differently, in one form."""

    def one(value: Any) -> Any:
        if isinstance(value, str) and value[:1] in "[{" and value:
            return json.loads(value)
        return round(value, 3) if isinstance(value, float) else value

    return tuple(one(value) for value in row)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_views_show_events_with_zero_characters(place: Any) -> None:
    async with open_postgres_journal(place.dsn) as journal:
        await journal.append(to("env/a", "a\0b", "\\u0000"))
        assert await texts(journal) == ["a\0b", "\\u0000"]
    assert place.ask("SELECT url FROM {s}.refusals")[0] == ("a\ufffdb",)


# --- the same as the others ------------------------------------------------------------------------------------------


@given(st.lists(steps, min_size=2, max_size=10), st.booleans())
@settings(max_examples=6, deadline=None)
def test_the_same_script_gives_the_same_journal(
    postgres_server: PostgresServer, script: list[tuple[str, Any]], whole: bool
) -> None:
    from tests.contract.postgres_journal_kit import place_on

    disk = MemoryDisk()
    in_memory = anyio.run(run, lambda: open_memory_journal(disk), script, backend="trio")
    with place_on(postgres_server) as place:
        kept = anyio.run(run, lambda: open_postgres_journal(place.dsn, whole=whole), script, backend="trio")
    assert kept == in_memory


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_expectations_are_of_what_is_there_and_not_of_what_is_remembered(place: Any) -> None:
    async with (
        open_postgres_journal(place.dsn, whole=False) as journal,
        open_postgres_journal(place.dsn, whole=False) as other,
    ):

        async def both(*appends: Append) -> None:
            for one in (journal, other):
                with refused(ExpectationFailed):
                    await one.append(*appends)

        await journal.append(to("env/a", "1", expected=NO_STREAM))
        await other.append(to("env/a", "2", expected=exactly(1)))
        await journal.append(to("env/a", "3", expected=exactly(2)))
        await other.append(to("env/b", "4"), Append("env/a", (), exactly(3)))
        await both(to("env/c", "x"), Append("env/a", (), exactly(2)))
        await both(to("env/c", "x"), Append("env/b", (), NO_STREAM))
        await journal.append(to("env/c", "5"), Append("env/b", (), exactly(1)))
        assert await texts(other) == ["1", "2", "3", "4", "5"]


def test_of_two_that_make_a_journal_at_once_one_does(place: Any) -> None:
    identities: list[str] = []
    begin = threading.Barrier(3)

    async def make() -> None:
        async with open_postgres_journal(place.dsn, whole=False) as journal:
            identities.append(journal.id)
            await journal.append(to("env/a", "1"))

    def engine() -> None:
        begin.wait()
        anyio.run(make)

    threads = [threading.Thread(target=engine) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def read() -> int:
        async with open_postgres_reader(parse_address(place.dsn)) as reader:
            return len(await everything(reader))

    assert len(set(identities)) == 1
    assert anyio.run(read) == 4
