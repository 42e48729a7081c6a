"""What was reported as durable is there after a kill, a torn log and a full disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from statefork.journal.conformance import assert_sound, everything, texts, to
from statefork.journal.errors import JournalUnavailable
from statefork.journal.events import RequestRefused
from statefork.journal.reading import open_sqlite_reader
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.store import open_state

WRITER = """
import os, sys, anyio
from statefork.journal.conformance import note, to
from statefork.journal.log import exactly
from statefork.journal.store import open_state

async def main():
    async with open_state(sys.argv[1], write=True) as state:
        async def writer(name):
            stream = f"env/{name}"
            version = await state.journal.stream_version(stream)
            while True:
                blob = state.blobs.put(os.urandom(32))
                state.journal.ride("act/" + name, note(blob))
                await state.journal.append(to(stream, blob, expected=exactly(version)))
                version += 1
                os.write(1, f"{stream} {version} {blob}\\n".encode())

        async with anyio.create_task_group() as group:
            for name in "abcdef":
                group.start_soon(writer, name)

anyio.run(main, backend=sys.argv[2])
"""

FULL_DISK = """
import json, resource, subprocess, sys, anyio
from pathlib import Path
from statefork.journal.conformance import assert_sound, everything, note, texts, to
from statefork.journal.errors import JournalError
from statefork.journal.sqlite import open_sqlite_journal

folder, how = Path(sys.argv[1]), sys.argv[2]

def make_small():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

def make_big():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        subprocess.run(["mount", "-o", "remount,size=16m", folder], check=True)

async def main():
    acknowledged, error = [], None
    async with open_sqlite_journal(folder / "journal.sqlite3") as journal:
        await journal.append(to("env/a", "first"))
        make_small()
        for number in range(200):
            journal.ride("act/a", note(f"rider {number}"))
            try:
                await journal.append(to("env/a", f"{number} " + "x" * 10_000))
                acknowledged.append(str(number))
            except JournalError as failed:
                error = error or {"code": failed.code, "text": str(failed)}
        make_big()
        await journal.append(to("env/a", "last"))
    async with open_sqlite_journal(folder / "journal.sqlite3") as journal:
        assert_sound(await everything(journal))
        durable = [text.split()[0] for text in await texts(journal, stream="env/a")]
        riders = await texts(journal, stream="act/a")
    print(json.dumps({"acknowledged": acknowledged, "error": error, "durable": durable, "riders": riders}))

anyio.run(main, backend="trio")
"""


async def check_after_kill(state: Path, acknowledged: list[str]) -> None:
    async with open_state(state, write=False) as view:
        found = await everything(view.journal)
        assert_sound(found)
        events = {f"{r.stream} {r.version} {r.event.url}" for r in found if isinstance(r.event, RequestRefused)}
        assert set(acknowledged) <= events
        for recorded in found:  # and no event, acknowledged or not, points at a blob that is not there
            assert not isinstance(recorded.event, RequestRefused) or view.blobs.get(recorded.event.url)
    async with open_state(state, write=True) as again:
        head = await again.journal.head()
        assert await again.journal.append(to("env/after", again.blobs.put(b"after"))) == head + 1
        assert not list((state / "blobs" / "tmp").iterdir())


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(backend: str, tmp_path: Path) -> None:
    choose = random.Random(1)
    acknowledged: list[str] = []
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "state"), backend]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(choose.randrange(20, 150))]
            writer.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
        assert writer.returncode == -signal.SIGKILL
        anyio.run(check_after_kill, tmp_path / "state", acknowledged, backend=backend)


@pytest.mark.parametrize(
    ("how", "words"), [("limit", "disk failed"), pytest.param("tmpfs", "disk is full", marks=pytest.mark.root)]
)
def test_a_full_disk_refuses_and_recovers(how: str, words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), how]
    if how == "tmpfs":
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
            pytest.skip("a small file system can be mounted by root only, in a mount namespace")
        mount = 'mount -t tmpfs -o size=500k none "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", str(tmp_path), *command]
    result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert result["error"]["code"] == "journal_unavailable"
    assert words in result["error"]["text"]
    assert "tried again" in result["error"]["text"]
    assert 0 < len(result["acknowledged"]) < 200
    assert result["durable"] == ["first", *result["acknowledged"], "last"]
    assert result["riders"] == [f"rider {number}" for number in range(200)]


SUICIDE = """
import os, signal, sys, anyio
from statefork.journal.conformance import note, to
from statefork.journal.sqlite import open_sqlite_journal

commits = 0

def die_in_the_twentieth():
    global commits
    commits += 1
    if commits == 20:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_sqlite_journal(sys.argv[1], before_commit=die_in_the_twentieth) as journal:
        async def writer(name):
            for number in range(100):
                journal.ride("act/" + name, note(f"{name}.{number}"))
                await journal.append(to("env/" + name, f"{name}.{number}"), to("env/all", f"{name}.{number}"))
                os.write(1, f"{name}.{number}\\n".encode())

        async with anyio.create_task_group() as group:
            for name in "abcdef":
                group.start_soon(writer, name)

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_of_a_group_commit_that_the_kill_met_nothing_is_there(backend: str, tmp_path: Path) -> None:
    """Killed with all rows of the twentieth commit written, before COMMIT: those before are there, whole, in order."""
    path = tmp_path / "journal.sqlite3"
    command = [sys.executable, "-c", SUICIDE, str(path), backend]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    acknowledged = killed.stdout.split()
    assert acknowledged

    async def check() -> None:
        async with open_sqlite_journal(path) as journal:
            found = await everything(journal)
            assert_sound(found)
            at = {(r.stream, r.event.url): r.position for r in found if isinstance(r.event, RequestRefused)}
            durable = await texts(journal, stream="env/all")
            assert set(acknowledged) <= set(durable)
            for text in durable:  # an append is whole, and what rode before it is before it
                name = text[0]
                assert at[f"act/{name}", text] < at[f"env/{name}", text] < at["env/all", text]
            for name in "abcdef":
                riders = await texts(journal, stream=f"act/{name}")
                assert riders == [f"{name}.{number}" for number in range(len(riders))]

    anyio.run(check, backend=backend)


def copied(path: Path, folder: Path) -> Path:
    """The files as they are now, as if the process died."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(path.with_name(name), folder / name)
    return folder / path.name


async def after_crash(path: Path) -> list[str]:
    """What would be read if the process died now."""
    async with open_sqlite_reader(copied(path, path.with_name("crash"))) as reader:
        return await texts(reader)


@pytest.mark.anyio
async def test_a_failed_commit_cannot_come_back_after_a_crash(tmp_path: Path) -> None:
    """A commit may stand in the log whole while its fsync failed: it was reported as failed, so it must not stay."""
    path = tmp_path / "journal.sqlite3"
    log = path.with_name(path.name + "-wal")
    async with open_sqlite_journal(path) as journal:
        await journal.append(to("env/a", "1"))
        twin = copied(path, tmp_path / "twin")
        async with open_sqlite_journal(twin) as other:  # the same log, continued by one commit
            await other.append(to("env/a", "failed"))
            continued = twin.with_name(log.name).read_bytes()
        assert continued.startswith(log.read_bytes())
        log.write_bytes(continued)
        assert await after_crash(path) == ["1", "failed"]  # this is the danger
        journal._writer._revoke()
        assert await after_crash(path) == ["1"]
        assert await journal.append(to("env/a", "2")) == 3
        assert await after_crash(path) == ["1", "2"]


@pytest.mark.anyio
async def test_durable_means_forced_to_the_disk(tmp_path: Path) -> None:
    async with open_sqlite_journal(tmp_path / "journal.sqlite3") as journal:
        assert journal._writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert journal._writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.anyio
async def test_blobs_are_on_disk_before_the_events_that_name_them(tmp_path: Path) -> None:
    async with open_state(tmp_path / "state", write=True) as state, open_state(tmp_path / "state", write=False) as view:
        for number in range(5):
            digest = state.blobs.put(f"page {number}".encode())
            assert digest not in view.blobs
            await state.journal.append(to("act/a", digest))
            assert view.blobs.get(digest) == f"page {number}".encode()


@pytest.mark.anyio
async def test_a_blob_that_cannot_be_forced_stops_the_event(tmp_path: Path) -> None:
    failing = False

    def sync() -> None:
        if failing:
            raise OSError(5, "Input/output error")

    async with open_sqlite_journal(tmp_path / "journal.sqlite3", sync_blobs=sync) as journal:
        failing = True
        with pytest.raises(JournalUnavailable):
            await journal.append(to("env/a", "x"))
        failing = False
        await journal.append(to("env/a", "1"))
        assert await texts(journal) == ["1"]
