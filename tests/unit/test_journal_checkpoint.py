"""A checkpoint beside a journal is used only if it is whole and belongs to the history that is there."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest

from statefork.journal.checkpoint import Checkpoint
from statefork.journal.conformance import note, texts, to
from statefork.journal.errors import JournalUnavailable
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.reading import open_sqlite_reader
from statefork.journal.sqlite import open_sqlite_journal

pytestmark = pytest.mark.anyio
KEPT = Checkpoint(fold="notes-1", position=3, data=b"1,2\n\x00\xff")


async def made(path: Path, *said: str) -> Path:
    """A journal with a checkpoint beside it; gives the checkpoint's file."""
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", *said))
        await journal.save_checkpoint(KEPT)
    return path.with_name("journal.sqlite3.notes-1.checkpoint")


async def test_readers_get_it_too(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.sqlite3"
    await made(path, "1", "2")
    async with open_sqlite_reader(path) as reader:
        assert await reader.checkpoint("notes-1") == KEPT
        assert await reader.checkpoint("notes-2") is None


async def test_a_torn_or_damaged_one_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.sqlite3"
    kept = await made(path, "1", "2")
    whole = kept.read_bytes()
    async with open_sqlite_journal(path) as journal:
        for cut in range(len(whole)):
            kept.write_bytes(whole[:cut])
            assert await journal.checkpoint("notes-1") is None, f"cut at byte {cut}"
        for at in range(len(whole)):
            kept.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert await journal.checkpoint("notes-1") is None, f"byte {at} flipped"
        kept.unlink()
        assert await journal.checkpoint("notes-1") is None
        kept.write_bytes(whole)
        assert await journal.checkpoint("notes-1") == KEPT


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "nowhere"])
async def test_what_is_no_file_is_as_good_as_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state" / "journal.sqlite3"
    kept = await made(path, "1", "2")
    kept.unlink()
    match kind:
        case "directory":
            kept.mkdir()
        case "pipe":
            os.mkfifo(kept)
        case "loop":
            kept.symlink_to(kept.name)
        case "nowhere":
            kept.symlink_to("nowhere")
    async with open_sqlite_journal(path) as journal:
        assert await journal.checkpoint("notes-1") is None
        if kind != "directory":
            await journal.save_checkpoint(KEPT)
            assert await journal.checkpoint("notes-1") == KEPT


async def test_one_of_another_journal_or_another_history_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", "1"))
    shutil.copytree(path.parent, tmp_path / "copy")
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", "2"))
        await journal.save_checkpoint(KEPT)
    stale = path.with_name("journal.sqlite3.notes-1.checkpoint")
    shutil.copy(stale, tmp_path / "copy")
    async with open_sqlite_journal(tmp_path / "copy" / "journal.sqlite3") as copy:
        assert await copy.checkpoint("notes-1") is None  # the copy ends before it
        await copy.append(to("env/a", "another 2"))
        assert await copy.checkpoint("notes-1") is None  # and now has something else there
    other = tmp_path / "other" / "journal.sqlite3"
    await made(other, "1", "2")
    shutil.copy(stale, other.parent)
    async with open_sqlite_reader(other) as reader:
        assert await reader.checkpoint("notes-1") is None


async def test_where_it_cannot_be_stored_the_last_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.sqlite3"
    kept = await made(path, "1", "2")
    async with open_sqlite_journal(path) as journal:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, limit[1]))
        try:
            with pytest.raises(JournalUnavailable, match="checkpoint"):
                await journal.save_checkpoint(Checkpoint(fold="notes-1", position=3, data=b"x" * 3_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert await journal.checkpoint("notes-1") == KEPT
        assert not kept.with_name(kept.name + ".new").exists()
        await journal.append(to("env/a", "3"))
        assert await texts(journal) == ["1", "2", "3"]


async def test_in_memory_a_crash_never_leaves_one_behind_the_end() -> None:
    disk = MemoryDisk()
    async with open_memory_journal(disk) as journal:
        journal.ride("act/a", note("1"), note("2"))
        await journal.save_checkpoint(KEPT)
        assert disk.synced == 3
        disk.crash()
    async with open_memory_journal(disk) as journal:
        assert await journal.checkpoint("notes-1") == KEPT
