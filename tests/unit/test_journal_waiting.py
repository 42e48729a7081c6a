"""A durable append waits to the end, whatever is cancelled meanwhile; on asyncio only ``Task.cancel`` ends the wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from statefork.journal.conformance import texts, to
from statefork.journal.conformance_faults import Gate
from statefork.journal.sqlite import open_sqlite_journal


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
