"""A durable append waits to the end, whatever is cancelled meanwhile; on asyncio only ``Task.cancel`` ends the wait."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from statefork.journal.batch import Entry
from statefork.journal.conformance import texts, to
from statefork.journal.conformance_faults import Gate
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.writer import Writer


@pytest.mark.anyio
async def test_a_cancelled_wait_goes_on_and_the_cancellation_comes_afterwards(tmp_path: Path) -> None:
    gate = Gate()
    seen: list[object] = []
    async with open_sqlite_journal(tmp_path / "journal.sqlite3", before_commit=gate.enter) as journal:
        gate.hold()

        async def append(scope: anyio.CancelScope) -> None:
            with scope:
                seen.append(await journal.append(to("env/a", "1")))
                seen.append("returned")
                await checkpoint()
                seen.append("went on")
            seen.append(scope.cancelled_caught)

        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            group.start_soon(append, scope)
            await gate.arrived()
            scope.cancel()
            for _ in range(20):
                await checkpoint()
            assert seen == []
            gate.release()
        assert seen == [2, "returned", True]


def test_task_cancel_ends_the_wait_and_the_append_may_be_there_all_the_same(tmp_path: Path) -> None:
    gate = Gate()

    async def main() -> list[str]:
        async with open_sqlite_journal(tmp_path / "journal.sqlite3", before_commit=gate.enter) as journal:
            gate.hold()
            cancelled = asyncio.ensure_future(journal.append(to("env/a", "1")))
            other = asyncio.ensure_future(journal.append(to("env/a", "2")))
            await gate.arrived()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            gate.release()
            await other
            return await texts(journal)

    assert asyncio.run(main()) == ["1", "2"]


def test_a_wake_and_a_cancellation_that_meet(tmp_path: Path) -> None:
    """The loop wakes the task, and before it runs its scope is cancelled: the append still reports what it did."""

    async def main() -> None:
        async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:
            tell = journal._tell
            scope = anyio.CancelScope()

            def meet(*arguments: object) -> None:
                tell(*arguments)  # type: ignore[arg-type]  # handed on as they are
                scope.cancel()

            journal._tell = meet  # type: ignore[method-assign]  # only there can they meet for certain
            with scope:
                assert await journal.append(to("env/a", "1")) == 2
                await checkpoint()
                pytest.fail("the cancellation was lost")
            assert scope.cancelled_caught

    for backend in ("trio", "asyncio"):
        anyio.run(main, backend=backend)
        (tmp_path / "journal.sqlite3").unlink()


@pytest.fixture
def always_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statefork.journal.commit.LEAD_S_MAX", 10.0)


@pytest.mark.anyio
@pytest.mark.usefixtures("always_quick")
async def test_who_is_alone_leads_and_who_has_company_shares_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led: list[int] = []
    lead = Writer.lead

    def counted(writer: Writer, entries: Sequence[Entry]) -> None:
        led.append(len(entries))
        lead(writer, entries)

    monkeypatch.setattr(Writer, "lead", counted)
    async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:
        await journal.append(to("env/a", "1"))
        journal.ride("act/a", *to("act/a", "2").events)
        assert await journal.append(to("env/a", "3")) == 4  # the rider is taken along
        assert led in ([1, 2], [1, 1], [1])  # or went before, if this took longer than riders linger
        before = journal.stats.commits
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(journal.append, to(f"env/{number}", "4"))
        assert journal.stats.commits - before < 20
        assert sum(led) <= 5
        assert (await texts(journal))[:3] == ["1", "2", "3"]


@pytest.mark.anyio
@pytest.mark.usefixtures("always_quick")
async def test_a_leader_that_fails_leaves_it_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:
        loop = threading.current_thread()
        store = Writer._store

        def failing_on_the_loop(writer: Writer, *arguments: Any) -> None:
            if threading.current_thread() is loop:
                raise OSError(5, "Input/output error")
            store(writer, *arguments)

        monkeypatch.setattr(Writer, "_store", failing_on_the_loop)
        journal.ride("act/a", *to("act/a", "1").events)
        await journal.append(to("env/a", "2"))
        assert await texts(journal) == ["1", "2"]
        assert journal.fault is None
        assert journal.stats.failures <= 1


@pytest.mark.anyio
@pytest.mark.usefixtures("always_quick")
async def test_the_event_loop_waits_for_no_other_program(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:
            group.start_soon(journal.append, to("env/a", "1"))
            await anyio.wait_all_tasks_blocked()  # the loop runs, so it is the thread that waits
            other.execute("ROLLBACK")
        assert await texts(journal) == ["1"]
        other.close()


@pytest.mark.parametrize("doing", ["blobs", "hook", "slow"])
def test_the_event_loop_does_nothing_that_may_take_long(doing: str, tmp_path: Path) -> None:
    """Blobs to force to the disk, a hook, a disk that is not known to be quick: each is a matter for the thread."""
    threads: set[str] = set()

    def told() -> None:
        threads.add(threading.current_thread().name)

    options: dict[str, Any] = {"sync_blobs": told}
    if doing == "blobs":
        options["blobs_wait"] = lambda: True
    elif doing == "hook":
        options["before_commit"] = told

    async def main() -> None:
        async with open_sqlite_journal(tmp_path / "journal.sqlite3", **options) as journal:
            if doing != "slow":
                journal._writer._pace_s = 0.0
            threads.clear()
            for number in range(3):
                await journal.append(to("env/a", str(number)))

    anyio.run(main, backend="trio")
    assert threads == {"statefork-journal"}
