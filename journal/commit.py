"""Group commit: one thread writes, and all who append meanwhile share its next trip to the disk.

Order is that of the queue. A batch that can't be written fails everybody who waits for it, and everybody queued behind
it, for the order would break otherwise; riders, for whom nobody waits, go back to the head of the queue and are tried
again, until the queue's limits are reached.

Two threads that hand something to each other cost more than a quick disk. So who appends alone, while commits are
known to be quick, *leads*: it lets others come first, and if nobody does, it commits on the event loop itself. What
the loop stands still for is bounded by what commits took lately; a slower disk, a big event, or company, and the thread
does it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from statefork.journal.batch import Entry, Load, own_copy
from statefork.journal.errors import JournalError, JournalUnavailable, closed
from statefork.journal.limits import Limits

LINGER_S = 0.02
"""How long riders wait for somebody with whom to share a commit."""

LEAD_S_MAX = 0.001
"""Who appends alone commits on the event loop itself only where commits took less lately."""

LEAD_BYTES_MAX = 64 * 1024
LEAD_ENTRIES_MAX = 64

RETRY_S_FIRST = 0.1
RETRY_S_MAX = 2.0


class GroupCommit:
    """The queue and its thread.

    ``commit(entries)`` runs in the thread: it writes a batch whole or raises JournalError having written nothing.
    ``settled(entries)`` is called in the thread with entries whose fate is final, ``tidy()`` after each commit.
    ``lead(entries)`` is called on the event loop instead of ``commit``, never at the same time, and waits for nobody.
    ``pace()`` tells how many seconds a commit takes now, as far as is known; infinitely many where it may block.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Entry]], None],
        lead: Callable[[Sequence[Entry]], None],
        settled: Callable[[Sequence[Entry]], None],
        tidy: Callable[[], None],
        pace: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._commit = commit
        self._commit_leading = lead
        self._settled = settled
        self._tidy = tidy
        self._pace = pace
        self._limits = limits
        self._queue: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._load = Load(limits)
        self._waiting = 0  # durable entries in the queue
        self._sleeping = False  # the thread will not look at the queue before it is told, or a time is over
        self._since = 0.0  # when the oldest rider in the queue came
        self._retry_at = 0.0
        self._retry_s = RETRY_S_FIRST
        self._closing = False
        self._given_up = False
        self._writing = False  # somebody uses the writer
        self._leader: Entry | None = None  # queued, and the thread was not told: lead() is to follow
        self.fault: JournalError | None = None  # the last failure, while it lasts
        self._thread = threading.Thread(target=self._run, name="statefork-journal", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Queue an entry. Raises LimitExceeded, JournalUnavailable when closed. Callable from any thread.

        True: the entry is to lead, and whoever put it calls ``lead`` very soon, come what may.
        """
        with self._changed:
            if self._closing:
                raise closed()
            self._load.add(entry, self.fault)
            queue = self._queue
            if not queue:
                self._since = monotonic()
            queue.append(entry)
            if entry.durable:
                self._waiting += 1
                if self._leader is not None:
                    return False
                if self._waiting == 1 and not self._writing and self._may_lead(entry):
                    self._leader = entry
                    return True
            if self._sleeping and (entry.durable or len(queue) == 1):
                self._sleeping = False
                self._changed.notify()
            return False

    def _may_lead(self, entry: Entry) -> bool:
        return (
            not self.fault
            and entry.size_bytes <= LEAD_BYTES_MAX
            and len(self._queue) <= LEAD_ENTRIES_MAX
            and self._pace() < LEAD_S_MAX
        )

    def lead(self, entry: Entry) -> bool:
        """Commit an entry that is to lead, with the riders before it, if nobody came meanwhile; else tell the thread.

        True: it is on disk and settled. False: it will be.
        """
        with self._changed:
            self._leader = None
            alone = self._waiting == 1 and self._queue and self._queue[-1] is entry
            if not alone or self._writing or self._closing or not self._may_lead(entry):
                self._changed.notify()
                return False
            batch = list(self._queue)
            self._queue.clear()
            self._waiting = 0
            self._writing = True
        try:
            self._commit_leading(batch)
        except BaseException as error:
            with self._changed:  # the thread tries again, and says what is wrong
                self._queue.extendleft(reversed(batch))
                self._waiting += 1
                self._writing = False
                self._changed.notify()
            if not isinstance(error, Exception):
                raise
            return False
        self._succeeded(batch)
        return True

    @property
    def idle(self) -> bool:
        """Nothing is queued and nothing is being written."""
        return not (self._queue or self._writing)

    def close(self) -> int:
        """Write what is queued, end the thread; return how many events could not be written. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        return self._load.events

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._commit(batch)
            except JournalError as error:
                self._failed(batch, error)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the thread and hang everybody
                self._failed(batch, JournalUnavailable(f"The journal's writer failed: {error!r}"))
            else:
                self._succeeded(batch, tidying=True)
                self._settled(batch)
                self._tidy()
                self._writing = False

    def _take(self) -> list[Entry]:
        """Wait for work and take the next batch. Empty: the journal closes and there is nothing more to try."""
        with self._changed:
            while (left := self._wait_s()) is None or left > 0:
                if self._closing and not self._led and (self._given_up or not self._queue):
                    return []
                self._sleeping = True
                self._changed.wait(left)
                self._sleeping = False
            batch: list[Entry] = []
            events = 0
            while self._queue and (not batch or events + self._queue[0].events <= self._limits.batch_events_max):
                entry = self._queue.popleft()
                events += entry.events
                self._waiting -= entry.durable
                batch.append(entry)
            self._writing = True
            return batch

    def _wait_s(self) -> float | None:
        """How long the thread has to wait for the next batch; None: until it is told."""
        if self._led or self._given_up or not self._queue:
            return None
        if self._waiting or self._closing:
            return 0.0
        return max(self._since + LINGER_S, self._retry_at) - monotonic()

    @property
    def _led(self) -> bool:
        """Somebody is about to lead, or does: asked by the thread, which itself does not write then."""
        return self._writing or self._leader is not None

    def _succeeded(self, batch: Sequence[Entry], *, tidying: bool = False) -> None:
        with self._changed:
            self.fault = None
            self._retry_s, self._retry_at = RETRY_S_FIRST, 0.0
            self._since = monotonic()
            self._writing = tidying
            self._load.drop(batch)
            if self._queue and not tidying:
                self._changed.notify()

    def _failed(self, batch: Sequence[Entry], error: JournalError) -> None:
        with self._changed:
            self.fault = error
            everybody = [*batch, *self._queue]
            failed = [entry for entry in everybody if entry.durable]
            self._queue = deque(entry for entry in everybody if not entry.durable)
            self._waiting = 0
            self._given_up = self._closing
            self._retry_at = monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)
            self._writing = False
            self._load.drop(failed)
        for entry in failed:
            entry.error = own_copy(error)
        self._settled(failed)
