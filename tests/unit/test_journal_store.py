"""State directories: one writer, any number of readers, and a file that people can read with SQLite's own tools."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.journal.conformance import everything, note, texts, to
from statefork.journal.errors import (
    BlobMissing,
    JournalCorrupt,
    JournalUnavailable,
    StateForeign,
    StateLocked,
    StateMissing,
)
from statefork.journal.eventfile import EventFile
from statefork.journal.lock import Holder, StateLock, holder_of, tell_closing
from statefork.journal.schema import VIEWS
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.store import open_state

GOLDEN = Path(__file__).parent.parent / "golden" / "journal-v1"

HOLDER = """
import os, sys, anyio
from statefork.journal.conformance import to
from statefork.journal.store import open_state

async def main():
    async with open_state(sys.argv[1], write=True) as state:
        await state.journal.append(to("env/a", "1"))
        print("ready", flush=True)
        for number in range(2, 1000):
            if not sys.stdin.readline():
                return
            await state.journal.append(to("env/a", str(number)))
            print("done", flush=True)

anyio.run(main, backend="trio")
"""

READER = """
import os, sys, anyio
from statefork.journal.conformance import texts
from statefork.journal.store import open_state

async def main():
    async with open_state(sys.argv[1], write=False) as view:
        print(",".join(await texts(view.journal)))

anyio.run(main, backend="asyncio")
"""


def held(state: Path) -> subprocess.Popen[str]:
    """Another process that has a state directory open for writing."""
    command = [sys.executable, "-c", HOLDER, str(state)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.anyio
async def test_another_process_may_read_but_not_write(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with held(state) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(StateLocked) as locked:
            async with open_state(state, write=True):
                pass
        assert locked.value.facts["pid"] == holder.pid
        assert str(holder.pid) in str(locked.value)
        assert "Reading is possible" in locked.value.hint
        async with open_state(state, write=False) as view:
            assert await texts(view.journal) == ["1"]
            for number in (2, 3):
                holder.stdin.write("go\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "done\n"
                assert await view.journal.stream_version("env/a") == number
                assert await texts(view.journal) == [str(n) for n in range(1, number + 1)]
            holder.stdin.close()
            holder.wait()
            assert await texts(view.journal) == ["1", "2", "3"]  # and its end disturbs nobody
    async with open_state(state, write=True) as again:
        assert await texts(again.journal) == ["1", "2", "3"]


def test_the_lock_ends_with_its_holder_and_not_with_its_file(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from statefork.journal.lock import StateLock;"
        "StateLock(Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert (tmp_path / "lock").read_text().strip().isdecimal()  # of the dead
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(StateLocked, match="is open in this program already") as locked, StateLock(tmp_path):
            pass
        assert "close that first" in locked.value.hint
        tell_closing(tmp_path)
        assert holder_of(tmp_path) == Holder(os.getpid(), closing=True)
        with pytest.raises(StateLocked, match=f"by process {os.getpid()}, which is closing") as locked:
            StateLock(tmp_path).__enter__()
        assert (locked.value.facts["pid"], locked.value.hint[:10]) == (os.getpid(), "Wait until")
    assert (tmp_path / "lock").read_text() == ""
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StateLocked, match="another process"), StateLock(tmp_path):
            pass


@pytest.mark.anyio
async def test_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    for place in (tmp_path / "none", tmp_path / "none" / "deeper"):
        with pytest.raises(StateMissing, match="no journal"):
            async with open_state(place, write=False):
                pass
        assert not place.exists()
    (tmp_path / "journal.sqlite3").touch()  # whoever made it died before its first event
    with pytest.raises(StateMissing):
        async with open_state(tmp_path, write=False):
            pass
    async with open_state(tmp_path, write=True) as state:
        assert await state.journal.head() == 1


@pytest.mark.anyio
async def test_an_unusable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalUnavailable, match="it is a file"):
        async with open_state(tmp_path / "file", write=True):
            pass
    with pytest.raises(JournalUnavailable, match="Not a directory"):
        async with open_state(tmp_path / "file" / "state", write=True):
            pass


@pytest.mark.anyio
async def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StateForeign, match=r"thesis\.tex"):
        async with open_state(tmp_path, write=True):
            pass
    assert {name for _, _, names in os.walk(tmp_path) for name in names} == {"thesis.tex"}


@pytest.mark.anyio
async def test_what_an_opening_that_was_cut_short_left_is_ours(tmp_path: Path) -> None:
    for name in ("worlds", "blobs", "resources", "logs", "runtimes"):
        (tmp_path / name).mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".gitignore").write_text("*")
    async with open_state(tmp_path, write=True) as state:
        await state.journal.append(to("env/a", "1"))
    (tmp_path / "notes.txt").write_text("about this state")
    async with open_state(tmp_path, write=True) as state:
        assert await texts(state.journal) == ["1"]


@pytest.mark.anyio
async def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE events (position INTEGER PRIMARY KEY, stream TEXT, version, event, hash)")
    connection.close()
    async with open_sqlite_journal(path) as journal:
        assert await journal.append(to("env/a", "1")) == 2


@pytest.mark.anyio
async def test_somebody_elses_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE diary (text)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalCorrupt, match="not a statefork journal"):
        async with open_sqlite_journal(path):
            pass
    assert path.read_bytes() == before


@pytest.mark.anyio
async def test_a_newer_format_is_refused_politely(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JournalUnavailable, match="upgrade"):
        async with open_sqlite_journal(path):
            pass


@pytest.mark.anyio
async def test_a_closed_journal_is_one_file(tmp_path: Path) -> None:
    async with open_state(tmp_path / "state", write=True) as state:
        await state.journal.append(to("env/a", "1"))
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "state" / "journal.sqlite3", tmp_path / "copy")
    async with open_state(tmp_path / "copy", write=False) as view:
        assert await texts(view.journal) == ["1"]
        with pytest.raises(BlobMissing):
            view.blobs.get("0" * 64)


@pytest.mark.root
@pytest.mark.parametrize("how", ["closed", "killed", "running"])
def test_a_directory_that_may_only_be_read(how: str, tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("a directory can be mounted read-only by root only, in a mount namespace")
    state = tmp_path / "state"
    with held(state) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        if how == "killed":
            holder.kill()
            holder.wait()
            (state / "journal.sqlite3-shm").unlink()  # as in a copy
        elif how == "closed":
            holder.communicate()
        before = sorted(path.name for path in state.iterdir())
        mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", str(state), sys.executable, "-c", READER, str(state)]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        assert result.stdout == "1\n"
        assert sorted(path.name for path in state.iterdir()) == before


@pytest.mark.anyio
async def test_another_tool_that_holds_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statefork.journal.writer.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalUnavailable, match="another program keeps the file locked"):
            await journal.append(to("env/a", "x"))
        other.execute("ROLLBACK")
        assert await journal.append(to("env/a", "1")) == 2
        other.close()


@pytest.mark.anyio
async def test_somebody_who_writes_behind_the_lock_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", "1"))
        other = sqlite3.connect(path)
        other.execute("INSERT INTO events VALUES (3, 'env/a', 2, '{}', 'x')")
        other.commit()
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match="behind the lock"):
                await journal.append(to("env/a", "x"))
        other.execute("DELETE FROM events WHERE position = 3")
        other.commit()
        other.close()


@pytest.mark.anyio
async def test_a_subscriber_that_is_slow_holds_nobody_up_and_the_log_is_copied_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statefork.journal.writer.CHECKPOINT_BYTES", 100_000)
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal, journal.subscribe() as events:
        assert (await anext(events)).position == 1
        for number in range(60):
            await journal.append(to("env/a", f"{number} " + "x" * 10_000))
        assert path.stat().st_size > 500_000
        assert path.with_name(path.name + "-wal").stat().st_size < 500_000
        assert [(await anext(events)).position for _ in range(60)] == list(range(2, 62))


@pytest.mark.anyio
async def test_riding_from_another_thread(tmp_path: Path) -> None:
    async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:

        def ride(name: str) -> None:
            for number in range(50):
                journal.ride(f"act/{name}", note(str(number)))

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(anyio.to_thread.run_sync, ride, name)
        await journal.flush()
        for name in "abc":
            assert await texts(journal, stream=f"act/{name}") == [str(number) for number in range(50)]


@pytest.mark.anyio
async def test_riders_reach_the_disk_without_anybody_waiting(tmp_path: Path) -> None:
    async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal, journal.subscribe(after=1) as events:
        journal.ride("act/a", note("1"), note("2"))
        with anyio.fail_after(30):
            assert [(await anext(events)).position for _ in range(2)] == [2, 3]
        assert journal.stats.commits == 2


def test_a_read_that_asyncio_cancels_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``asyncio.wait_for(anext(events))`` cancels the task while the thread reads; the events must still come."""
    reading, go_on = threading.Event(), threading.Event()
    chunk = EventFile.chunk

    def slow(*arguments: Any, **options: Any) -> Any:
        found = chunk(*arguments, **options)
        reading.set()
        assert go_on.wait(30)
        return found

    async def main() -> None:
        async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:
            await journal.append(to("env/a", "1", "2"))
            async with journal.subscribe() as events:
                with monkeypatch.context() as patch:
                    patch.setattr(EventFile, "chunk", slow)
                    task = asyncio.ensure_future(anext(events))
                    assert await asyncio.to_thread(reading.wait, 30)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    go_on.set()
                assert [(await anext(events)).position for _ in range(3)] == [1, 2, 3]

    asyncio.run(main())


def query(view: str, tmp_path: Path) -> list[dict[str, object]]:
    """As a person would ask, with a plain SQLite tool."""
    path = Path(shutil.copy(GOLDEN / "journal.sqlite3", tmp_path))
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute(f"SELECT * FROM {view}")]
    connection.close()
    return rows


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_something(view: str, tmp_path: Path) -> None:
    rows = query(view, tmp_path)
    assert rows
    assert all("position" in row for row in rows)


def test_the_views_tell_the_history(tmp_path: Path) -> None:
    environments = query("environments", tmp_path)
    assert [(row["environment"], row["state"], row["parent"]) for row in environments] == [
        ("shop-1", "parked", None),
        ("shop-2", "retired", "shop-1@1"),
    ]
    assert environments[0]["created"] == "2025-10-09 08:53:22.250"
    assert [row["result"] for row in query("transitions", tmp_path)] == ["published", "aborted"]
    (action,) = query("actions", tmp_path)
    assert (action["kind"], action["outcome"], action["title"]) == ("fill", "ok", "Shop")
    assert json.loads(str(action["action"]))["label"] == "Search"
    (refusal,) = query("refusals", tmp_path)
    assert (refusal["status"], refusal["code"]) == (503, "environment_frozen")


@pytest.mark.anyio
async def test_views_are_brought_up_to_date_when_it_is_opened_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        before = await everything(journal)
    connection = sqlite3.connect(path)
    connection.execute("DROP VIEW log")
    connection.execute("CREATE VIEW log AS SELECT 1 AS old")
    connection.close()
    async with open_sqlite_journal(path) as journal:
        assert await everything(journal) == before
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT type FROM log").fetchall() == [("journal.created/1",)]
    connection.close()
