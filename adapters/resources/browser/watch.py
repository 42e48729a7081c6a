"""Learning at once that a process has ended, whoever ends it. Lives on an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable


class Watch:
    """Calls back, once, when one of some processes has ended."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._watching = False
        self._descriptors: set[int] = set()

    def begin(self, *pids: int) -> None:
        """Watch these processes too. One that has ended already is told of soon."""
        loop = asyncio.get_running_loop()
        self._watching = True
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                loop.call_soon(self._tell)
                continue
            self._descriptors.add(descriptor)
            loop.add_reader(descriptor, self._tell)

    def _tell(self) -> None:
        if self._watching:
            self.end()
            self._ended()

    def end(self) -> None:
        """Watch no more. Idempotent."""
        self._watching = False
        descriptors, self._descriptors = self._descriptors, set()
        for descriptor in descriptors:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
