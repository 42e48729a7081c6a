"""The ledger of a resource whose layers are databases, on a server of all or in data directories of their own.

Where they are on a server, a layer's directory in the state directory is a token: it holds the database's name, so that
whatever reads the records (the audit, recovery) sees the same form as of file-backed stores.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from statefork.adapters.resources.ledger import PASSAGE, Ledger, remove_tree, write_whole
from statefork.journal.lock import LOCK_NAME

_TOKEN = "database"
_PLACE = "place"


class DatabaseLedger(Ledger):
    """Layers are named like their databases; what nothing names any more is told to ``unneeded``, before it goes."""

    def __init__(self, state: Path, resource: str, adapter: str, journal: str) -> None:
        super().__init__(state, resource, adapter, journal)
        self.rights = dict.fromkeys(self.rights, PASSAGE)  # a server's own user has its data in there, which it closes
        self.unneeded: Callable[[str], None] = lambda _: None

    def place(self) -> str:
        """What tells this state directory from others; made once."""
        with self._opened():
            path = self.root / _PLACE
            if not path.exists():
                write_whole(path, secrets.token_hex(16).encode())
            return path.read_text()

    def directory(self) -> str:
        """What tells the state directory from a copy: its inode and its lock's, which stay when it is moved."""
        with self._opened():
            lock = self.state / LOCK_NAME
            return f"{self.state.stat().st_ino} and {lock.stat().st_ino if lock.exists() else 0}"

    def put_token(self, database: str) -> None:
        """Before a version is recorded: its layer exists."""
        with self._opened():
            place = self.layer(database)
            place.mkdir(exist_ok=True)
            (place / _TOKEN).write_text(f"{database}\n")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new directory that nothing names, for as long as the body runs."""
        with self._opened():
            place = self.root / "tmp" / self.new_id("s")
            place.mkdir(parents=True)
        try:
            yield place
        finally:
            remove_tree(place)

    def needs(self, database: str) -> bool:
        """Whether a record names it, or work under way does."""
        with self._opened():
            return self._is_needed(database)

    def _collect(self, layers: Sequence[str]) -> None:
        for layer in layers:
            if layer and not self._is_needed(layer):
                self.unneeded(layer)
        super()._collect(layers)
