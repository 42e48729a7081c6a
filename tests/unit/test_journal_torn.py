"""Torn and lost tails: whatever part of its last writes a disk kept, what was acknowledged is there or an error says
that it is not. See :mod:`tests.unit.torn_kit`."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from statefork.journal.conformance import everything, texts, to
from statefork.journal.errors import JournalCorrupt, StateMissing
from statefork.journal.sqlite import open_sqlite_journal
from tests.unit.torn_kit import PAGE_BYTES, Files, Story, check, made, mixtures, read, taken

FRAME_BYTES = 24 + PAGE_BYTES  # a page in the log, with its header
MIXTURES = 40  # for each pair of neighbouring points of sync


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All that happened since the journal was last closed is in the log alone."""
    return made(tmp_path_factory.mktemp("growing"), before=6, after=0)


@pytest.fixture(scope="module")
def anew(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The log was copied into the main file and then begun anew: what is behind its end is of before."""
    return made(tmp_path_factory.mktemp("anew"), before=4, after=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


def acknowledged(story: Story, cut: int) -> tuple[str, ...]:
    """What had been acknowledged by the last commit that lies wholly before a byte of the growing log."""
    return max((files.said for files in story.commits if len(files.log) <= cut), key=len)


def test_a_log_cut_at_every_byte_of_its_last_commit(growing: Story, path: Path) -> None:
    last = growing.last
    for cut in range(len(last.log), len(growing.commits[-2].log) - 1, -1):
        last._replace(log=last.log[:cut]).lay(path)
        assert check(path, acknowledged(growing, cut), last.said) is None, f"cut at byte {cut}"
    for cut in range(0, len(growing.commits[-2].log), 61):  # a prime: every place within a frame comes up
        last._replace(log=last.log[:cut]).lay(path)
        assert check(path, acknowledged(growing, cut), last.said) is None, f"cut at byte {cut}"


def test_zeros_and_rubbish_in_the_last_frames(growing: Story, path: Path) -> None:
    last, chance = growing.last, random.Random(1)
    for at in range(len(growing.commits[-2].log), len(last.log), 24):
        for rubbish in (bytes(64), chance.randbytes(64), bytes([last.log[at] ^ 1 << chance.randrange(8)])):
            log = (last.log[:at] + rubbish + last.log[at + len(rubbish) :])[: len(last.log)]
            last._replace(log=log).lay(path)
            assert check(path, growing.commits[-2].said, last.said) is None, f"{len(rubbish)} bytes at {at}"


def test_a_log_that_was_begun_anew_and_cut(anew: Story, path: Path) -> None:
    """Its frames hold the newest commits; behind them lie older ones, which are in the main file."""
    last = anew.last
    for cut in range(0, len(last.log), 47):
        last._replace(log=last.log[:cut]).lay(path)
        assert check(path, anew.copied.said, last.said) is None, f"cut at byte {cut}"


def test_a_log_cut_after_it_was_copied_into_the_main_file(tmp_path: Path, path: Path) -> None:
    """No crash does this, for the log was on disk before it was copied: its older pages now hide newer ones."""
    (tmp_path / "made").mkdir()
    story = made(tmp_path / "made", before=30, after=0, page_bytes=2048)
    copied = story.copied
    errors = 0
    for cut in range(0, len(copied.log), 24 + 2048):
        copied._replace(log=copied.log[:cut]).lay(path)
        errors += check(path, acknowledged(story, cut), copied.said) is not None
    assert errors, "a mixture of old and new pages was never met"


@pytest.mark.parametrize("name", ["growing", "anew"])
def test_any_sectors_of_what_was_written_between_two_points_of_sync(
    name: str, path: Path, request: pytest.FixtureRequest
) -> None:
    """The power goes while a commit is written: it is there or not, and all before it is."""
    story: Story = request.getfixturevalue(name)
    chance = random.Random(name)
    for before, after in pairwise(story.commits):
        started = story.copied if before.said == story.copied.said else before
        for files in mixtures(started, after, MIXTURES, chance):
            files.lay(path)
            assert check(path, before.said, after.said) is None


def test_any_sectors_of_the_main_file_while_the_log_is_copied_into_it(anew: Story, path: Path) -> None:
    before = next(files for files in anew.commits if files.said == anew.copied.said)
    assert before.main != anew.copied.main
    assert before.log == anew.copied.log
    for files in mixtures(before, anew.copied, 5 * MIXTURES, random.Random(3)):
        files.lay(path)
        assert check(path, before.said, before.said) is None


def test_a_main_file_cut_at_every_byte_of_its_last_pages(anew: Story, path: Path) -> None:
    whole = Files(anew.copied.main, b"", anew.copied.said)
    for cut in range(len(whole.main) - 1, len(whole.main) - 3 * PAGE_BYTES, -1):
        whole._replace(main=whole.main[:cut]).lay(path)
        assert isinstance(check(path, whole.said, whole.said), JournalCorrupt), f"cut at byte {cut}"
    for cut in range(0, len(whole.main), 257):
        whole._replace(main=whole.main[:cut]).lay(path)
        error = check(path, whole.said, whole.said)
        assert isinstance(error, StateMissing if cut == 0 else JournalCorrupt), f"cut at byte {cut}"


def test_what_is_left_can_be_continued(growing: Story, path: Path) -> None:
    """Writers, too, open what a torn log leaves, and what they add is there after the next tear."""

    async def go_on(kept: int) -> Files:
        async with open_sqlite_journal(path, lock=False) as journal:
            before = await texts(journal)
            assert len(before) >= kept
            await journal.append(to("env/next", "on we go"))
            return taken(path, (*before, "on we go"))

    last = growing.last
    for cut in range(32, len(last.log), 5 * FRAME_BYTES + 11):
        last._replace(log=last.log[:cut]).lay(path)
        now = anyio.run(go_on, len(acknowledged(growing, cut)), backend="trio")
        now.lay(path)
        assert check(path, now.said, now.said) is None


@pytest.mark.anyio
async def test_the_identity_is_in_the_main_file_from_the_first_moment(tmp_path: Path) -> None:
    """Or a lost log would make an empty journal, which the next engine would give another identity."""
    path = tmp_path / "journal.sqlite3"
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", "1"))
        Files(path.read_bytes(), b"", ()).lay(tmp_path / "copy.sqlite3")
        async with open_sqlite_journal(tmp_path / "copy.sqlite3", lock=False) as copy:
            assert copy.id == journal.id
            assert len(await everything(copy)) == 1


def test_reading_a_torn_journal_changes_nothing(growing: Story, path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    torn = growing.last._replace(log=growing.last.log[:-100])
    torn.lay(path)
    read(path)
    assert path.read_bytes() == torn.main
    assert log.read_bytes() == torn.log
