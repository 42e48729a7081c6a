"""Hearing that a journal's head moved, whoever moved it, through restarts of the server and cuts of the network.

A notification is only a hint that it is worth asking; what is asked for is the position, and what lies up to there is
read. So nothing is missed while there is no connection: the first thing done with a new one is to ask. Asking now and
then without a hint is the safety net for a connection that is dead without a word.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from statefork.journal.errors import JournalError
from statefork.journal.postgres_link import Address, connect, driver
from statefork.journal.postgres_schema import Sql

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

POLL_S = 5.0
RETRY_S_FIRST = 0.02
RETRY_S_MAX = 1.0


class Watcher:
    """A thread with a connection of its own.

    ``moved(position)`` is called in it when somebody else may have moved the head, ``errand(connection)`` every
    ``errand_s`` seconds; both also after each new connection. ``lost()`` when that ended, or none is made. ``writer``:
    whose commits need not be told. Without ``listening`` nobody else writes.
    """

    def __init__(
        self,
        address: Address,
        moved: Callable[[int], None],
        errand: Callable[[Connection], None] = lambda _: None,
        *,
        lost: Callable[[], None] = lambda: None,
        errand_s: float = POLL_S,
        writer: int = 0,
        listening: bool = True,
    ) -> None:
        self._address = address
        self._moved = moved
        self._errand = errand
        self._lost = lost
        self._errand_s = errand_s
        self._own = str(writer)
        self._listening = listening
        self._heard = False
        self._wait_s = RETRY_S_FIRST
        self._closing = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="statefork-journal-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            os.write(self._wake_write, b"x")
            self._thread.join()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with contextlib.closing(connect(self._address)) as connection:
                    self._watch(connection)
            except (driver().Error, JournalError):
                self._lost()
                self._closing.wait(self._wait_s)
                self._wait_s = min(self._wait_s * 2, RETRY_S_MAX)

    def _watch(self, connection: Connection) -> None:
        sql = Sql(self._address)
        connection.add_notify_handler(lambda notify: self._hear(notify.payload))
        if self._listening:
            connection.execute(sql("LISTEN {channel}"))
        ask_at = errand_at = monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._closing.is_set():
                if self._heard or monotonic() >= ask_at:
                    self._heard = False  # what is heard while we ask may be newer than the answer
                    row = connection.execute(sql("SELECT position FROM {s}.journal")).fetchone()
                    if row is not None:
                        self._moved(row[0])
                    ask_at = monotonic() + POLL_S
                if monotonic() >= errand_at:
                    self._errand(connection)
                    errand_at = monotonic() + self._errand_s
                self._wait_s = RETRY_S_FIRST  # it went well
                if not self._heard:
                    selector.select(max(min(ask_at, errand_at) - monotonic(), 0.0))
                    self._take_in(connection)

    def _take_in(self, connection: Connection) -> None:
        """Read the hints that have arrived. Raises OperationalError where the connection has ended."""
        connection.pgconn.consume_input()
        while (notify := connection.pgconn.notifies()) is not None:
            self._hear(notify.extra.decode(errors="replace"))

    def _hear(self, payload: str) -> None:
        if payload != self._own:
            self._heard = True
