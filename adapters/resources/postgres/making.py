"""When databases are being made on a server, by all who share it in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Making:
    """Many may make databases at once; whoever looks through the server's files does so while nobody does."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self._under_way = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Around the making of a database."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._lock.notify_all()

    def none(self, work: Callable[[], None]) -> None:
        """Run work while no database is being made; who wants to make one waits."""
        with self._lock:
            self._lock.wait_for(lambda: self._under_way == 0)
            work()
