"""Others look at a state directory: with read rights, with some of them, with none, while an engine runs and after it.

Root may read everything, so commands run without that privilege here; that is what an ordinary user is like.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statefork import sync
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control.address import SOCKET_NAME
from statefork.journal.lock import Holder, holder_of, owner_of
from statefork.journal.store import JOURNAL_NAME
from tests.integration.test_cli import engine, read_line

ORDINARY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--") if os.geteuid() == 0 else ()
NOBODY = 65534
COMMAND_S = 60.0

pytestmark = pytest.mark.skipif(bool(ORDINARY) and shutil.which("setpriv") is None, reason="this needs setpriv")


SCRIPT = """
import contextlib, io, json, sys
from statefork.adapters.interfaces.cli.main import invoke
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = invoke(words)
    print(json.dumps([status, out.getvalue(), errors.getvalue()]), flush=True)
"""


def told(state: Path, *commands: str, status: int = 0) -> list[str]:
    """What commands print for an ordinary user: never a defect, and errors are one line."""
    words = [[*command.split(), "--state", str(state)] for command in commands]
    program = [*ORDINARY, sys.executable, "-c", SCRIPT, json.dumps(words)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer[0] for answer in answers] == [status] * len(commands), done
    for _, _, errors in answers:
        assert "Traceback" not in errors
        assert "error[internal]" not in errors
        assert not errors.startswith("error") or errors.count("\n") == 1
    return [out + errors for _, out, errors in answers]


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """A file or folder with other rights, for a while."""
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def names(state: Path) -> set[str]:
    return {path.name for path in state.iterdir()}


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A state directory with a history, whose engine was closed."""
    state = tmp_path / "state"
    with engine(tmp_path, state):
        told(state, "create shop")
    return state


def test_a_closed_directory_that_may_only_be_read(closed: Path) -> None:
    before = names(closed)
    with mode(closed, 0o555):
        listed, log, audit, world = told(closed, "ls", "log -n 1", "audit", "audit --world")
    assert "shop" in listed
    assert "engine stopped in good order" in log
    assert "clean: " in audit
    assert "clean: " in world
    assert names(closed) == before


def test_what_a_killed_engine_left_in_its_log_is_read_where_nothing_may_be_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with engine(tmp_path, state) as running:
        told(state, "create shop")
        running.end(signal.SIGKILL)
    (state / f"{JOURNAL_NAME}-shm").unlink()
    assert (state / f"{JOURNAL_NAME}-wal").stat().st_size
    before = names(state)
    with mode(state, 0o555):
        listed, audit = told(state, "ls", "audit")
    assert "to recover" in listed
    assert "clean: " in audit
    assert names(state) == before
    told(state, "release")


@pytest.mark.root
def test_who_does_not_own_a_journal_leaves_no_index_that_its_owner_could_not_open(
    closed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made by somebody else, it would keep the owner's next engine from opening. (For root SQLite gives it away.)"""
    os.chown(closed / JOURNAL_NAME, NOBODY, NOBODY)
    before = names(closed)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert [invoke([command, "--state", str(closed)]) for command in ("ls", "audit")] == [0, 0]
    assert "clean: " in capsys.readouterr().out
    assert names(closed) == before


def test_an_engine_of_somebody_else_is_seen_and_answers_to_nobody_else(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with engine(tmp_path, state) as running:
        told(state, "create shop")
        assert running.process is not None
        assert holder_of(state) == Holder(running.process.pid, closing=False)
        with mode(state / SOCKET_NAME, 0o000):
            assert all("serving" in text for text in told(state, "ls", "show shop"))
            (refused,) = told(state, "create other", status=2)
            assert refused.startswith("error[engine_foreign]")
            assert f"process {running.process.pid}" in refused
        with mode(state, 0o000):
            commands = ("ls", "show shop", "audit", "audit --follow", "create other", f"up {running.contract}", "demo")
            answers = told(state, *commands, status=2)
            assert [text for text in answers if "Permission denied" not in text] == []
        with mode(state / f"{JOURNAL_NAME}-shm", 0o000):
            answers = told(state, "ls", "audit", status=2)
            assert [text for text in answers if "Permission denied" not in text] == []
        with mode(state / "resources", 0o000):
            (world,) = told(state, "audit --world", status=2)
            assert "resources can't be read: Permission denied" in world
        assert "clean: " in told(state, "create other", "audit")[1]
    assert holder_of(state) is None


def test_log_follows_an_engine_that_opens_what_it_could_only_read(closed: Path, tmp_path: Path) -> None:
    with mode(closed, 0o555):
        command = [*ORDINARY, sys.executable, "-m", "statefork", "log", "-f", "--json", "--state", str(closed)]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            while "engine.stopped" not in read_line(follower):
                pass
            closed.chmod(0o755)
            with engine(tmp_path, closed):
                while "engine.started" not in read_line(follower):
                    pass
        finally:
            follower.kill()
            follower.communicate()


def test_a_released_directory_can_be_deleted_by_an_ordinary_user(closed: Path) -> None:
    """Overlays that were mounted without root leave folders of mode 0."""
    place = closed / "resources/media/layers/shop-e1/work/work"
    (place / "incompat/volatile").mkdir(parents=True)
    for folder in (place / "incompat", place):
        folder.chmod(0o000)
    assert subprocess.run([*ORDINARY, "rm", "-r", str(closed)], capture_output=True, check=False).returncode != 0
    assert "can be moved or deleted" in told(closed, "release")[0]
    subprocess.run([*ORDINARY, "rm", "-r", str(closed)], check=True)


def said(capsys: pytest.CaptureFixture[str], state: Path, *words: str, status: int = 0) -> str:
    """What a command prints here, in this process."""
    assert invoke([*words, "--state", str(state)]) == status
    told = capsys.readouterr()
    return " ".join((told.out + told.err).split())


def test_an_engine_within_a_program_is_seen_and_takes_no_commands(
    closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = closed.parent / "notes.toml"
    deaf = f"open in process {os.getpid()}, which takes no commands"
    with sync.open_engine(contract, state=closed) as running:
        running.create("more")
        listed = said(capsys, closed, "ls")
        assert deaf in listed
        assert "serving" in listed
        shown = json.loads(said(capsys, closed, "ls", "--json"))
        assert (shown["engine_runs"], shown["takes_commands"], shown["pid"]) == (True, False, os.getpid())
        assert deaf in said(capsys, closed, "doctor", str(contract))
        refused = said(capsys, closed, "create", "other", status=2)
        assert refused.startswith("error[engine_deaf]")
        assert deaf in refused
    assert "takes no commands" not in said(capsys, closed, "ls")


@pytest.mark.root
def test_it_is_said_to_whom_a_directory_belongs(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    assert owner_of(tmp_path) == "nobody"
    os.chown(tmp_path, 4_000_000_000, NOBODY)
    assert owner_of(tmp_path) == "user 4000000000"
    os.chown(tmp_path, os.geteuid(), os.getegid())
    assert owner_of(tmp_path) == ""
