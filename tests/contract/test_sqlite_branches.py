"""SQLite in particular: other processes in the way, journal modes, bases in any state, full disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.reflink import shared_bytes
from statefork.adapters.resources.sqlite import SqliteResource
from statefork.engine.errors import ContractError, ResourceBusy, ResourceFailed
from statefork.journal.values import Binding
from tests.contract.sqlite_kit import UPSERT, bench_in, make_base

pytestmark = pytest.mark.anyio

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement).fetchone()
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def holder(binding: Binding, *statements: str) -> AsyncIterator[int]:
    """Another process that has run these statements and still has its connection; its pid."""
    command = [sys.executable, "-c", HOLDER, str(binding.address["path"]), *statements]
    async with await anyio.open_process(command) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert (await process.stdout.receive()).startswith(b"open")
        yield process.pid
        await process.stdin.aclose()
        await process.wait()


def run(binding: Binding, *statements: str) -> None:
    connection = sqlite3.connect(str(binding.address["path"]), isolation_level=None)
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(bench_in(tmp_path / "state", tmp_path))
    yield driver
    await driver.resource.stop()


@pytest.mark.parametrize("second", ["INSERT INTO log VALUES ('uncommitted')", "SELECT * FROM log"])
async def test_an_open_transaction_of_another_process_is_named(one: Driver, second: str) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    async with holder(binding, "BEGIN", second) as pid:
        if second.startswith("SELECT"):
            await one.write(binding, "key", "newer than what it reads")
        with pytest.raises(ResourceBusy, match=f"pid {pid}") as caught:
            await one.resource.quiesce(branch)
        assert caught.value.facts["pids"] == str(pid)
        await one.resource.thaw(branch)
    sealed = await one.cut(branch)
    assert await one.seen(sealed, "key") == await one.read(binding, "key")


async def test_an_idle_connection_of_another_process_is_in_nobodys_way(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    async with holder(binding, "SELECT count(*) FROM log"):
        await one.write(binding, "key", "value")
        assert await one.seen(await one.cut(branch), "key") == "value"
        await one.write(binding, "key", "later")
        assert await one.read(binding, "key") == "later"


async def test_a_commit_between_two_marks_is_seen_whatever_its_connection_did(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    marks = [await one.resource.write_mark(branch)]
    for statements in (
        ("INSERT INTO log VALUES ('a')",),
        ("INSERT INTO log VALUES ('a')", "PRAGMA wal_checkpoint(TRUNCATE)"),
        ("BEGIN", "UPDATE log SET line = 'b' WHERE rowid = 1", "COMMIT"),
        ("DELETE FROM log", "VACUUM"),
    ):
        run(binding, *statements)
        marks.append(await one.resource.write_mark(branch))
    assert len(set(marks)) == len(marks)
    for statements in (
        ("SELECT * FROM log",),
        ("BEGIN", "INSERT INTO log VALUES ('no')", "ROLLBACK"),
        ("PRAGMA wal_checkpoint(TRUNCATE)",),
        ("BEGIN IMMEDIATE", "COMMIT"),
        ("UPDATE log SET line = line",),  # SQLite writes no page that stays as it is
    ):
        run(binding, *statements)
        assert await one.resource.write_mark(branch) == marks[-1]


async def test_an_application_may_leave_wal_mode(one: Driver) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    await one.resource.stop()  # lets go, or the mode could not be changed
    run(binding, "PRAGMA journal_mode = DELETE", "INSERT INTO log VALUES ('in rollback mode')")
    marks = []
    for number in range(3):
        marks.append(await one.resource.write_mark(branch))
        await one.write(binding, "key", str(number))
    assert len(set(marks)) == 3
    sealed = await one.cut(branch)
    assert await one.cut(branch) == sealed
    assert await one.seen(sealed, "key") == "2"
    async with holder(binding, "BEGIN IMMEDIATE") as pid:
        with pytest.raises(ResourceBusy, match=f"pid {pid}"):
            await one.resource.quiesce(branch)


async def test_a_replaced_file_is_noticed(one: Driver, tmp_path: Path) -> None:
    branch, binding = await one.open(await one.base())
    mark = await one.resource.write_mark(branch)
    make_base(tmp_path / "other.sqlite3")
    path = Path(str(binding.address["path"]))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    (tmp_path / "other.sqlite3").rename(path)
    assert await one.resource.write_mark(branch) != mark
    await anyio.Path(path).unlink()
    with pytest.raises(ResourceFailed, match="was removed by the application"):
        await one.resource.write_mark(branch)


async def test_a_sealed_file_is_one_file_without_a_wal(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    sealed = await one.cut(branch)
    path = one.bench.state / str(sealed.data["path"])
    assert [entry.name for entry in path.parent.glob("db*")] == [path.name]
    assert path.stat().st_mode & 0o222 == 0
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("SELECT value FROM pairs").fetchall() == [("value",)]
    connection.close()


async def test_what_an_aborted_cut_sealed_goes_with_the_next_seal(one: Driver, tmp_path: Path) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "0")
    await one.cut(branch)
    there = layers(tmp_path)
    for number in range(1, 4):
        await one.write(binding, "key", str(number))
        await one.resource.discard(await one.cut(branch))  # as an aborted transition does
    await one.write(binding, "key", "last")
    assert await one.seen(await one.cut(branch), "key") == "last"
    assert layers(tmp_path) == there + 1


def layers(place: Path) -> int:
    """How many layers the resource keeps."""
    return len(list(next(place.rglob("layers")).iterdir()))


async def test_a_base_with_a_wal_beside_it_is_taken_whole_and_left_alone(tmp_path: Path) -> None:
    bench = bench_in(tmp_path / "state", tmp_path)
    base = tmp_path / "base.sqlite3"
    connection = sqlite3.connect(base, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute(UPSERT, ("key", "only in the WAL"))
    for suffix in ("", "-wal"):  # as a killed application leaves them
        shutil.copy(f"{base}{suffix}", tmp_path / f"left{suffix}")
    connection.close()
    for suffix in ("", "-wal"):
        (tmp_path / f"left{suffix}").replace(f"{base}{suffix}")
    before = [(tmp_path / f"base.sqlite3{suffix}").read_bytes() for suffix in ("", "-wal")]
    one = Driver(bench)
    assert await one.seen(await one.base(), "key") == "only in the WAL"
    assert before == [(tmp_path / f"base.sqlite3{suffix}").read_bytes() for suffix in ("", "-wal")]


async def test_a_base_with_other_pages_and_the_same_rows_is_the_same_version(one: Driver, tmp_path: Path) -> None:
    old = await one.base()
    connection = sqlite3.connect(tmp_path / "base.sqlite3", isolation_level=None)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("VACUUM")
    connection.close()
    assert await one.resource.provision() == old
    make_another = sqlite3.connect(tmp_path / "base.sqlite3", isolation_level=None)
    make_another.execute(UPSERT, ("key", "new in the base"))
    make_another.close()
    new = await one.resource.provision()
    assert new.version != old.version
    assert await one.seen(old, "key") is None


@pytest.mark.parametrize("text", [None, "this is no database, but it is long enough to look like one " * 20])
async def test_a_base_that_can_not_be_used_names_the_key_and_the_path(
    one: Driver, tmp_path: Path, text: str | None
) -> None:
    (tmp_path / "base.sqlite3").unlink()
    if text:
        (tmp_path / "base.sqlite3").write_text(text)
    with pytest.raises(ContractError, match=r"resources\.db\.base: .*base\.sqlite3"):
        await one.base()
    assert await one.handles() == []


async def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, small_disk: Path) -> None:
    one = Driver(bench_in(small_disk / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "x" * 300_000)
    sealed = await one.cut(branch)
    await one.write(binding, "key", "y" * 300_000)
    await one.resource.quiesce(branch)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    before = await one.handles()
    for attempt in (lambda: one.resource.seal(branch), lambda: one.open(sealed)):
        with pytest.raises(ResourceFailed) as caught:
            await attempt()
        assert "full" in caught.value.hint
        assert await one.handles() == before
    ballast.unlink()
    assert await one.seen(await one.cut(branch), "key") == "y" * 300_000
    assert await one.seen(sealed, "key") == "x" * 300_000
    await one.resource.stop()


@pytest.mark.root
async def test_branches_share_their_extents_where_the_file_system_can(tmp_path: Path, xfs_place: Path) -> None:
    one = Driver(bench_in(xfs_place / "state", tmp_path))
    base = await one.base()
    branch, binding = await one.open(base)
    assert one.resource.strategy().name == "reflink"
    size = (await anyio.Path(str(binding.address["path"])).stat()).st_size
    assert shared_bytes(one.bench.state / str(base.data["path"])) >= size // 2
    await one.write(binding, "key", "value")
    sealed = await one.cut(branch)
    assert (await one.resource.usage(sealed)).shared_bytes > 0
    await one.resource.stop()


async def test_no_descriptor_is_left_open(one: Driver) -> None:
    base = await one.base()
    counts = []
    for _ in range(3):
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        await one.resource.discard(await one.cut(branch))
        await one.close(branch, binding)
        await one.settle()  # the sums of what was sealed are read behind its back
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - a count, of a place that changes meanwhile
    assert counts[0] == counts[-1]
    assert isinstance(one.resource, SqliteResource)
