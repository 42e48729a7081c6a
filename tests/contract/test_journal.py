"""Both journals pass the public conformance suites, on trio and on asyncio."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from statefork.journal.conformance_faults import Gate, JournalFaultConformance
from statefork.journal.limits import Limits
from statefork.journal.log import Journal
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.postgres import open_postgres_journal
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.writer import nothing
from tests.contract.postgres_server import PostgresServer


@pytest.mark.anyio
class TestMemoryJournal(JournalFaultConformance):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.disk = MemoryDisk()

    def opened(self, *, limits: Limits | None = None, gate: Gate | None = None) -> AbstractAsyncContextManager[Journal]:
        return open_memory_journal(self.disk, limits=limits, before_commit=gate.enter_async if gate else None)


@pytest.mark.anyio
class TestSqliteJournal(JournalFaultConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "state" / "journal.sqlite3"

    def opened(self, *, limits: Limits | None = None, gate: Gate | None = None) -> AbstractAsyncContextManager[Journal]:
        before_commit = gate.enter if gate else nothing
        return open_sqlite_journal(self.path, limits=limits, before_commit=before_commit)


@pytest.mark.anyio
class TestPostgresJournal(JournalFaultConformance):
    whole = True

    @pytest.fixture(autouse=True)
    def place(self, postgres_server: PostgresServer) -> Iterator[None]:
        from tests.contract.postgres_journal_kit import place_on  # psycopg may be missing: then the fixture skips

        with place_on(postgres_server) as place:
            self.dsn = place.dsn
            yield

    def opened(self, *, limits: Limits | None = None, gate: Gate | None = None) -> AbstractAsyncContextManager[Journal]:
        before_commit = gate.enter if gate else nothing
        return open_postgres_journal(self.dsn, limits=limits, before_commit=before_commit, whole=self.whole)


class TestSqliteJournalWithLeaders(TestSqliteJournal):
    """Whoever appends alone commits on the event loop, however slow the disk is."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("statefork.journal.commit.LEAD_S_MAX", math.inf)
