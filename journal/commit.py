"""Group commit: one thread writes, and all who append meanwhile share its next trip to the disk.

Order is that of the queue. A batch that can't be written fails everybody who waits for it, and everybody queued behind
it, for the order would break otherwise; riders, for whom nobody waits, go back to the head of the queue and are tried
again, until the queue's limits are reached.
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

RETRY_S_FIRST = 0.1
RETRY_S_MAX = 2.0


class GroupCommit:
    """The queue and its thread.

    ``commit(entries)`` runs in the thread: it writes a batch whole or raises JournalError having written nothing.
    ``settled(entries)`` is called in the thread with entries whose fate is final, ``tidy()`` after each commit.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Entry]], None],
        settled: Callable[[Sequence[Entry]], None],
        tidy: Callable[[], None],
        limits: Limits,
    ) -> None:
        self._commit = commit
        self._settled = settled
        self._tidy = tidy
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
        self._writing = False
        self.fault: JournalError | None = None  # the last failure, while it lasts
        self._thread = threading.Thread(target=self._run, name="statefork-journal", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queue an entry. Raises LimitExceeded, JournalUnavailable when closed. Callable from any thread."""
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
            if self._sleeping and (entry.durable or len(queue) == 1):
                self._sleeping = False
                self._changed.notify()

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
                self._succeeded(batch)
                self._tidy()

    def _take(self) -> list[Entry]:
        """Wait for work and take the next batch. Empty: the journal closes and there is nothing more to try."""
        with self._changed:
            while self._given_up or not (self._queue and (self._waiting or self._closing)):
                if self._closing:
                    return []
                due = max(self._since + LINGER_S, self._retry_at) if self._queue else None
                left = None if due is None else due - monotonic()
                if left is not None and left <= 0:
                    break
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

    def _succeeded(self, batch: Sequence[Entry]) -> None:
        with self._changed:
            self.fault = None
            self._retry_s, self._retry_at = RETRY_S_FIRST, 0.0
            self._since = monotonic()
            self._writing = False
            self._load.drop(batch)
        self._settled(batch)

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
