"""Golden journals stay readable for ever; damaged ones are caught, by position."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefork.journal.conformance import everything
from statefork.journal.errors import JournalCorrupt, JournalUnavailable
from statefork.journal.events import RequestRefused
from statefork.journal.log import Append, Recorded
from statefork.journal.reading import open_sqlite_reader
from statefork.journal.sqlite import open_sqlite_journal

GOLDEN = Path(__file__).parent.parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.glob("journal-v*"))


def expected(folder: str) -> list[Recorded]:
    lines = (GOLDEN / folder / "events.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Recorded) for line in lines]


def copied(name: str, tmp_path: Path) -> Path:
    """A copy to work on: SQLite makes files beside what it opens."""
    (tmp_path / "state").mkdir(exist_ok=True)
    return Path(shutil.copy(GOLDEN / name, tmp_path / "state" / "journal.sqlite3"))


async def read_until_damage(path: Path, stream: str | None = None) -> tuple[list[Recorded], JournalCorrupt | None]:
    found: list[Recorded] = []
    try:
        async with open_sqlite_reader(path) as reader:
            async for recorded in reader.read(stream=stream):
                found.append(recorded)  # noqa: PERF401 - what came before the damage counts
    except JournalCorrupt as error:
        return found, error
    return found, None


def test_there_is_a_golden_journal() -> None:
    assert "journal-v1" in FORMATS


@pytest.mark.anyio
@pytest.mark.parametrize("folder", FORMATS)
async def test_golden_journals_read_as_they_always_did(folder: str, tmp_path: Path) -> None:
    path = copied(f"{folder}/journal.sqlite3", tmp_path)
    async with open_sqlite_reader(path) as reader:
        assert await everything(reader) == expected(folder)
        for stream in await reader.streams():
            of_stream = [recorded for recorded in expected(folder) if recorded.stream == stream]
            assert await everything(reader, stream=stream) == of_stream


@pytest.mark.anyio
@pytest.mark.parametrize("folder", FORMATS)
async def test_golden_journals_can_be_continued(folder: str, tmp_path: Path) -> None:
    path = copied(f"{folder}/journal.sqlite3", tmp_path)
    old = expected(folder)
    event = RequestRefused(at=1, env="e", epoch=1, activation=1, status=503, code="c", method="GET", url="/")
    async with open_sqlite_journal(path) as journal:
        assert await journal.append(Append("act/shop-1", (event,))) == len(old) + 1
        found = await everything(journal)
        assert found[:-1] == old
    async with open_sqlite_reader(path) as reader:  # whose chain is checked on the bytes as they were written
        assert await everything(reader) == found


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "position", "words"),
    [
        ("flipped-byte", 9, "does not fit its hash"),
        ("gap", 5, "missing"),
        ("cut-tail", 26, "cut off"),
        ("cut-file", None, "broken"),
    ],
)
async def test_bad_golden_journals_are_caught(name: str, position: int | None, words: str, tmp_path: Path) -> None:
    path = copied(f"journal-v1/{name}.sqlite3", tmp_path)
    good = expected("journal-v1")
    found, error = await read_until_damage(path)
    assert error is not None
    assert words in str(error)
    assert "copy" in error.hint
    if position is not None:
        assert error.facts["position"] == position
        assert f"position {position}" in str(error)
        assert found == good[: position - 1]
    before = path.read_bytes()
    with pytest.raises(JournalCorrupt):
        async with open_sqlite_journal(path):
            pass
    assert path.read_bytes() == before


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_is_harmless_or_caught(tmp_path: Path, where: float, bit: int) -> None:
    good = expected("journal-v1")
    path = copied("journal-v1/journal.sqlite3", tmp_path)
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    path.write_bytes(data)
    for stream in (None, "engine", "act/shop-1"):
        wanted = [recorded for recorded in good if stream in (None, recorded.stream)]
        try:
            found, error = anyio.run(partial(read_until_damage, path, stream))
        except JournalUnavailable as unavailable:  # the bit that says which format it is
            found, error = [], JournalCorrupt(unavailable.message)
            assert "format" in error.message
        assert found == wanted[: len(found)]
        assert error is not None or found == wanted


@pytest.mark.anyio
@pytest.mark.parametrize("content", [b"not a database, but some text", b"SQLite format 3\0" + b"\xff" * 5000])
async def test_another_file_is_not_taken_for_a_journal(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    path.write_bytes(content)
    for opened in (open_sqlite_reader(path), open_sqlite_journal(path)):
        with pytest.raises(JournalCorrupt):
            async with opened:
                pass
    assert path.read_bytes() == content
