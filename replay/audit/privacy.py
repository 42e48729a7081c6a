"""I12 in the world: the doors to environments are private, and no ticket lies about in a file.

What a running server does with a ticket can't be seen from here; that tests and the simulation show.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.records import listed
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.secrecy import tickets

_DOORS = ("control.sock", "control.json", "http.token")
_TOLD = (("logs", ""), ("runtimes", ".json"))  # folders, and how the names in them end
_CHUNK_BYTES = 1 << 20
_OVERLAP_BYTES = 2048  # longer than any ticket


class Privacy(Checker):
    """Looks at the modes of doors, and through logs and records for tickets."""

    invariant = "I12"
    rule = "doors are private, and no ticket lies about in the state directory"

    def __init__(self, state: Path, heads: Heads) -> None:
        super().__init__(heads)
        self._state = state

    def finish(self) -> Iterator[str]:
        for name in _DOORS:
            try:
                status = (self._state / name).lstat()
            except OSError:
                continue
            self.looked_at += 1
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                yield f"{name} is open to other users (mode {mode:04o}): whoever may enter commands every environment"
        told = [path for folder, suffix in _TOLD for path in listed(self._state / folder, suffix)]
        for path in (*told, self._state / "control.json"):
            if path.is_file():
                self.looked_at += 1
                for identity in _tickets_in(path):
                    yield f"a ticket of {identity} stands in {path.relative_to(self._state)}"


def _tickets_in(path: Path) -> list[str]:
    """Each once, however often it stands there."""
    found: dict[str, None] = {}
    try:
        with path.open("rb") as file:
            kept = b""
            while chunk := file.read(_CHUNK_BYTES):
                found |= dict.fromkeys(tickets(kept + chunk))
                kept = chunk[-_OVERLAP_BYTES:]
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Unreadable(f"{path} can't be read: {error.strerror}") from None
    return list(found)
