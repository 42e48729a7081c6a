"""What a way of branching file trees has to offer, and the values it is told by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from statefork.adapters.resources.records import BranchRecord
from statefork.engine.ports import Strategy


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What a seal made: the version's layers (top first), and how the branch goes on over them."""

    layers: tuple[str, ...]
    upper: str = ""
    below: tuple[str, ...] | None = None  # the layers under the branch from now on; None = the version's
    mark: str


Prepare = Callable[[Path], None]
"""What is to be done with a tree that was just opened, before anybody looks how it is."""


class TreeStrategy(Protocol):
    """One way of branching. All methods but the first block and are called from worker threads.

    A record is written before ``open``, so that a crash at any moment leaves nothing that nobody knows.
    """

    prepare: Prepare | None

    def described(self) -> Strategy:
        """Name and reason, for people."""
        ...

    def upper_for(self, branch: str) -> str:
        """The id of the layer that a new branch will write; empty where branches are whole trees of their own."""
        ...

    def tree(self, branch: str) -> Path:
        """Where the branch's tree is reachable."""
        ...

    def open(self, record: BranchRecord) -> str:
        """Make the tree over the record's layers; return the mark of its untouched state."""
        ...

    def ready(self, record: BranchRecord) -> None:
        """Return if the tree is reachable, making it so where it can be done again; raise OSError if not."""
        ...

    def hold(self, record: BranchRecord) -> None:
        """Quiesce: refuse stragglers. Raises ResourceBusy where a writer is in the way."""
        ...

    def release(self, record: BranchRecord) -> None:
        """Undo ``hold``. Idempotent."""
        ...

    def mark(self, record: BranchRecord) -> str:
        """Differs whenever the tree was written in between; sealing does not change it."""
        ...

    def seal(self, record: BranchRecord) -> Cut:
        """Make the present content a stack of sealed layers. The branch goes on."""
        ...

    def close(self, branch: str) -> None:
        """Take the tree out of reach (unmount). Idempotent; its files are removed by the ledger afterwards."""
        ...

    def shut(self) -> None:
        """Take every tree out of reach."""
        ...
