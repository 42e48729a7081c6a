"""The second conformance suite for journals: slow and full disks. See :mod:`statefork.journal.conformance`."""

from __future__ import annotations

import errno
import threading
from contextlib import AbstractAsyncContextManager

import anyio
from anyio.to_thread import run_sync

from statefork.journal.conformance import (
    DEADLINE_S,
    assert_sound,
    everything,
    note,
    refused,
    texts,
    to,
)
from statefork.journal.conformance_checkpoints import JournalCheckpointConformance
from statefork.journal.conformance_limits import NOTE_BYTES
from statefork.journal.errors import JournalError, JournalUnavailable, LimitExceeded
from statefork.journal.limits import Limits
from statefork.journal.log import Journal, exactly


class Gate:
    """Stands before each commit: counts them, holds them back, makes them fail as a full disk does."""

    def __init__(self) -> None:
        self.passed = 0
        self.full = False
        self._open = threading.Event()
        self._open.set()
        self._arrived = threading.Event()

    def enter(self) -> None:
        """For a backend whose commits run in a thread."""
        self._arrived.set()
        assert self._open.wait(DEADLINE_S)
        self.passed += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def enter_async(self) -> None:
        """For a backend whose commits run on the event loop."""
        await run_sync(self.enter)

    def hold(self) -> None:
        """From now on commits wait."""
        self._open.clear()
        self._arrived.clear()

    def release(self) -> None:
        """Let them go."""
        self._open.set()

    async def arrived(self) -> None:
        """Wait until a commit waits."""
        assert await run_sync(self._arrived.wait, DEADLINE_S)


class JournalFaultConformance(JournalCheckpointConformance):
    """What must hold when the disk is slow or full, for backends whose commits can be made to pass a gate."""

    def opened(self, *, limits: Limits | None = None, gate: Gate | None = None) -> AbstractAsyncContextManager[Journal]:
        """Open the test's journal for writing, so that every commit passes the gate."""
        raise NotImplementedError

    async def test_appends_that_meet_share_a_commit(self) -> None:
        gate = Gate()
        async with self.opened(gate=gate) as journal:
            await journal.append(to("env/a", "1"))
            gate.hold()
            passed = gate.passed
            async with anyio.create_task_group() as group:
                group.start_soon(journal.append, to("env/a", "2"))
                await gate.arrived()
                for number in range(20):
                    group.start_soon(journal.append, to(f"env/{number}", "x"))
                await anyio.wait_all_tasks_blocked()
                journal.ride("act/a", note("last"))
                gate.release()
            await journal.flush()
            assert gate.passed - passed <= 3
            assert (await texts(journal))[-1] == "last"
            assert_sound(await everything(journal))

    async def test_a_full_disk_fails_those_who_wait_and_keeps_those_who_ride(self) -> None:
        gate = Gate()
        async with self.opened(gate=gate) as journal:
            await journal.append(to("env/a", "1"))
            gate.full = True
            journal.ride("act/a", note("2"))
            with refused(JournalUnavailable):
                await journal.append(to("env/a", "x", expected=exactly(1)))
            journal.ride("act/a", note("3"))
            with refused(JournalUnavailable):
                await journal.append(to("env/a", "x"))
            with refused(JournalUnavailable):
                await journal.flush()
            gate.full = False
            await journal.append(to("env/a", "4", expected=exactly(1)))
            assert await texts(journal) == ["1", "2", "3", "4"]
            assert_sound(await everything(journal))

    async def test_those_queued_behind_a_failed_write_fail_too(self) -> None:
        gate = Gate()
        failed: list[str] = []
        async with self.opened(gate=gate) as journal:
            gate.hold()
            gate.full = True

            async def append(text: str) -> None:
                with refused(JournalUnavailable):
                    await journal.append(to(f"env/{text}", text))
                failed.append(text)

            async with anyio.create_task_group() as group:
                group.start_soon(append, "1")
                await gate.arrived()
                for text in "234":
                    group.start_soon(append, text)
                await anyio.wait_all_tasks_blocked()
                journal.ride("act/a", note("5"))
                gate.release()
            assert sorted(failed) == ["1", "2", "3", "4"]
            gate.full = False
            await journal.flush()
            assert await texts(journal) == ["5"]

    async def test_the_queue_is_bounded_and_nothing_accepted_is_lost(self) -> None:
        gate = Gate()
        async with self.opened(gate=gate, limits=Limits(queue_events_max=5)) as journal:
            gate.full = True
            with refused(JournalUnavailable):
                await journal.append(to("env/a", "x"))
            for text in ("1", "2"):
                journal.ride("act/a", note(text), note("and more"))
            with refused(LimitExceeded, limit="queue_events_max", maximum=5):
                journal.ride("act/a", note("x"), note("x"))
            gate.full = False
            await journal.flush()
            assert await texts(journal) == ["1", "and more", "2", "and more"]
            journal.ride("act/a", note("again"))
            await journal.flush()
            assert (await texts(journal))[-1] == "again"

    async def test_who_waits_for_the_disk_is_counted(self) -> None:
        gate = Gate()
        async with self.opened(gate=gate, limits=Limits(waiters_max=3)) as journal:
            for _ in range(2):  # and counted out again
                gate.hold()
                async with anyio.create_task_group() as group:
                    group.start_soon(journal.append, to("env/a", "1"))
                    await gate.arrived()
                    group.start_soon(journal.append, to("env/b", "2"))
                    group.start_soon(journal.flush)
                    await anyio.wait_all_tasks_blocked()
                    for one_more in (journal.append(to("env/c", "x")), journal.flush()):
                        with refused(LimitExceeded, limit="waiters_max", value=4, maximum=3):
                            await one_more
                    journal.ride("act/a", note("3"))  # who rides does not wait
                    gate.release()
                await journal.flush()
            assert await texts(journal) == ["1", "2", "3"] * 2
            assert_sound(await everything(journal))

    async def test_the_bytes_in_the_queue_are_bounded(self) -> None:
        gate = Gate()
        size = 3 * (NOTE_BYTES + 1)
        async with self.opened(gate=gate, limits=Limits(queue_bytes_max=size)) as journal:
            gate.hold()
            async with anyio.create_task_group() as group:
                group.start_soon(journal.append, to("env/a", "1"))
                await gate.arrived()
                journal.ride("act/a", note("2"))
                with refused(LimitExceeded, limit="queue_bytes_max", value=size + 1, maximum=size):
                    journal.ride("act/a", note("xx"))
                journal.ride("act/a", note("3"))
                with refused(LimitExceeded, limit="queue_bytes_max"):
                    await journal.append(to("env/a", "x"))
                gate.release()
            await journal.flush()
            assert await texts(journal) == ["1", "2", "3"]

    async def test_an_append_cancelled_while_it_is_written_reports_what_happened(self) -> None:
        gate = Gate()
        async with self.opened(gate=gate) as journal:
            for full in (False, True):
                head = await journal.flush()
                gate.full = full
                gate.hold()
                outcome: list[int | JournalError] = []

                async def append(outcome: list[int | JournalError] = outcome) -> None:
                    try:
                        outcome.append(await journal.append(to("env/a", "1")))
                    except JournalError as error:
                        outcome.append(error)

                async with anyio.create_task_group() as group:
                    group.start_soon(append)
                    await gate.arrived()
                    group.cancel_scope.cancel()
                    gate.release()
                if full:
                    assert isinstance(outcome[0], JournalUnavailable)
                else:
                    assert outcome == [head + 1]
            assert await texts(journal) == ["1"]
            gate.full = False

    async def test_closing_on_a_full_disk_says_how_much_was_lost(self) -> None:
        gate = Gate()
        with refused(JournalUnavailable, events=2):
            async with self.opened(gate=gate) as journal:
                await journal.append(to("env/a", "1"))
                gate.full = True
                with refused(JournalUnavailable):
                    await journal.append(to("env/a", "x"))
                journal.ride("act/a", note("2"), note("3"))
        gate.full = False
        async with self.opened() as journal:
            assert await texts(journal) == ["1"]
