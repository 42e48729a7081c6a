"""Engines that tasks share: opened by the first that needs one, closed by the last. Each has a thread of its own."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from statefork import sync


class _Shared:
    def __init__(self, contract: str, state: Path) -> None:
        self.users = 0
        self._stack = ExitStack()
        self.engine = self._stack.enter_context(sync.open_engine(contract, state=state))

    def close(self) -> None:
        self._stack.close()


class Engines:
    """By contract and state directory. All methods block, and may be called from any thread."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, Path], _Shared] = {}
        self._lock = threading.Lock()

    def hold(self, contract: str, state: Path) -> None:
        """Open it unless somebody has. Raises what ``open_engine`` raises."""
        with self._lock:
            key = (contract, state)
            if key not in self._shared:
                self._shared[key] = _Shared(contract, state)
            self._shared[key].users += 1

    def get(self, contract: str, state: Path) -> sync.Engine:
        """The engine that somebody holds. Raises KeyError."""
        with self._lock:
            return self._shared[contract, state].engine

    def release(self, contract: str, state: Path) -> None:
        """Close it if nobody else holds it. Idempotent."""
        with self._lock:
            shared = self._shared.get((contract, state))
            if shared is None:
                return
            shared.users -= 1
            if shared.users:
                return
            del self._shared[contract, state]
        shared.close()
