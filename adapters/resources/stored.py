"""What every resource with a ledger does alike: ending, listing and looking at what the ledger records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator
from itertools import islice
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import failures_told, in_thread
from statefork.adapters.resources.ledger import Ledger
from statefork.adapters.resources.records import SealedRecord
from statefork.adapters.resources.sums import Summing
from statefork.engine.errors import ContractError
from statefork.engine.ports import Change, Usage
from statefork.journal.values import Binding, Branch, Handle, Sealed

BLOCK_BYTES = 512  # the unit of st_blocks
_CHANGES_AT_A_TIME = 200
_HANDLES_AT_A_TIME = 1_000


class StoredResource(ABC):
    """The half of :class:`statefork.engine.ports.Resource` that does not depend on what is stored.

    The abstract methods block; they are called in worker threads.
    """

    def __init__(self, name: str, ledger: Ledger, base: Path) -> None:
        self.name = name
        self._ledger = ledger
        self._base = base
        self._sums = Summing(name, ledger.layer)
        ledger.on_sealed = self._sums.want

    @abstractmethod
    def _drop_branch(self, branch: str) -> None:
        """Close a branch and remove what it has. Idempotent."""

    @abstractmethod
    def _content_digest(self, record: SealedRecord) -> str:
        """Of a version's content, however it is laid out on disk."""

    @abstractmethod
    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """What differs between two versions, in the user's terms."""

    @abstractmethod
    def _usage(self, handle: Sealed | Branch) -> Usage:
        """Bytes on disk."""

    def _bad_base(self, what: str) -> ContractError:
        key = f"resources.{self.name}.base"
        return ContractError(
            f"{key}: {what} at {str(self._base)!r}",
            hint="Make the base first, or name a build module that makes it",
            key=key,
            path=str(self._base),
        )

    async def discard(self, handle: Handle) -> None:
        """Remove a branch or a version. Idempotent."""
        self._ledger.check(handle)
        await in_thread(self._discard, handle)

    def _discard(self, handle: Handle) -> None:
        with failures_told(self.name, "discarding"):
            if isinstance(handle, Branch):
                self._drop_branch(handle.id)
            elif isinstance(handle, Sealed):
                self._ledger.drop_sealed(handle.version)

    async def inventory(self) -> AsyncIterator[Handle]:
        """Every version and branch of this journal."""
        found = await in_thread(self._ledger.handles)
        while batch := await in_thread(lambda: list(islice(found, _HANDLES_AT_A_TIME))):
            for handle in batch:
                yield handle

    async def digest(self, sealed: Sealed) -> str:
        """Of the content; computed once, then kept in the version's record."""
        return await in_thread(self._digest, sealed)

    def _digest(self, sealed: Sealed) -> str:
        record = self._ledger.sealed(sealed)
        if not record.digest:
            with failures_told(self.name, "reading a version"):
                record = msgspec.structs.replace(record, digest=self._content_digest(record))
                self._ledger.put_sealed(record)
        return record.digest

    async def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        """What differs, some hundreds of changes at a time. Nothing is read where both are one version."""
        found = self._changes(self._ledger.sealed(before), self._ledger.sealed(after))
        if before.version == after.version:
            return
        try:
            while batch := await in_thread(lambda: list(islice(found, _CHANGES_AT_A_TIME))):
                for change in batch:
                    yield change
        finally:
            found.close()

    async def usage(self, handle: Handle) -> Usage:
        """Bytes on disk that the handle has alone, and those that it shares with others."""
        if isinstance(handle, Binding):
            return Usage(private_bytes=0)
        return await in_thread(self._measure, handle)

    def _measure(self, handle: Sealed | Branch) -> Usage:
        with failures_told(self.name, "measuring"):
            return self._usage(handle)
