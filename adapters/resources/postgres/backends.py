"""What the resource asks of whoever keeps its databases: on one server, or each with a server of its own.

A *database* is a name that a record bears: of a branch (``BranchRecord.upper``) or of a version (its layer). The
methods block; several threads may call them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from statefork.adapters.resources.postgres.base import Source
from statefork.adapters.resources.postgres.cut import Closed
from statefork.adapters.resources.postgres.reading import Connection
from statefork.adapters.resources.postgres.roles import Opened
from statefork.adapters.resources.reflink import Pulse
from statefork.engine.ports import Strategy, Usage


class Databases(Protocol):
    """The databases of one resource."""

    def start(self) -> None:
        """Be ready; remove what a killed engine left. Idempotent."""
        ...

    def stop(self) -> None:
        """Leave nothing but what is recorded, and no server of ours. Idempotent."""
        ...

    def strategy(self) -> Strategy:
        """How it is done, and why. Touches nothing."""
        ...

    def process_ids(self) -> tuple[int, ...]:
        """The processes of our servers."""
        ...

    def tidy(self) -> None:
        """Remove what killed backends left."""
        ...

    def import_base(self, source: Source, pulse: Pulse) -> str:
        """A version with the content of a base. Raises ContractError."""
        ...

    def pool_of(self, version: str) -> None:
        """This is the version that most branches will be of."""
        ...

    def opened(self, version: str) -> Opened:
        """A new branch of a version."""
        ...

    def address(self, database: str) -> dict[str, str | int]:
        """Where applications find a branch: name, user, host, port."""
        ...

    def new_secret(self, database: str) -> str:
        """Let a branch's role log in, by another secret than before."""
        ...

    def lock_out(self, database: str) -> None:
        """Nobody can log in to the branch any more, and its sessions have ended."""
        ...

    def closed(self, database: str) -> Closed:
        """For a cut of a branch."""
        ...

    def mark(self, database: str) -> str:
        """The write mark of a branch that is not closed."""
        ...

    def copied(self, database: str, closed: Closed, mark: str) -> AbstractContextManager[str]:
        """A new version with the content of a closed branch; while the body runs it needs no record."""
        ...

    def reading(self, version: str) -> AbstractContextManager[Connection]:
        """A copy of a version, to be read; the version itself is never connected to."""
        ...

    def usage(self, database: str) -> Usage:
        """What a branch or a version costs on disk."""
        ...
