"""What people read after a crash: when the engine opens again, in the journal, and where no engine is to open."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from statefork.adapters.resources.files.mounts import detach, mounted_below
from tests.integration import test_cli
from tests.integration.test_cli import PROGRAM, READY_S, Commands, Engine, engine

commands = test_cli.commands

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.media]
adapter = "files"
base = "media"
[resources.page]
adapter = "memory"
"""
PUT = '{"type": "put", "key": "basket", "value": "tea"}'


def crash(folder: Path, state: Path, commands: Commands) -> Engine:
    """An engine that was killed while one environment had a tail and another had none."""
    (folder / "media").mkdir()
    (folder / "media" / "readme").write_text("base")
    with engine(folder, state, CONTRACT) as running:
        commands("create", "a")
        commands("act", "a", PUT)
        commands("act", "a", PUT)
        commands("create", "b")
        running.end(signal.SIGKILL)
    return running


def up_until_ready(running: Engine) -> list[str]:
    """What ``statefork up`` says to people, until it says how to close it."""
    process = subprocess.Popen(
        [*PROGRAM, "up", str(running.contract), "--state", str(running.state)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.rstrip())
            if line.startswith("Ctrl-C"):
                return said
        raise AssertionError(said)
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)


def test_opening_after_a_crash_says_what_was_found_and_done(tmp_path: Path, commands: Commands) -> None:
    running = crash(tmp_path, commands.state, commands)
    said = up_until_ready(running)
    (first,) = (number for number, line in enumerate(said) if line.startswith("recovered in "))
    assert re.fullmatch(r"recovered in \d+ ms what the engine before had left:", said[first])
    assert said[first + 1] == "  a@2 was recovered from a@1: lost actions 1, 2"
    assert said[first + 2] == "  b@2 was recovered from b@1: no action is lost"
    removed = [line for line in said if line.startswith("  removed branch ")]
    assert len(removed) == 4
    assert all(line.endswith(("of db, which nothing reached", "of media, which nothing reached")) for line in removed)
    told = commands("log")
    summary = r"recovery in \d+ ms: a@2 recovered without actions 1, 2; b@2 recovered; 4 orphans removed \(branch 4\)"
    assert re.search(summary, told), told
    assert len(re.findall("orphan removed: branch", told)) == 4
    again = up_until_ready(running)
    assert "nothing to recover" in again
    assert "nothing to recover" in commands("log").splitlines()[-2]
    assert commands.json("audit")["clean"]


def test_opening_after_a_crash_tells_scripts(tmp_path: Path, commands: Commands) -> None:
    running = crash(tmp_path, commands.state, commands)
    running.start()
    running.end()
    found = running.ready["recovered"]
    assert not found["clean"]
    assert found["lost"] == {"a": [1, 2], "b": []}
    assert found["environments"] == [
        {"moment": {"env": "a", "generation": 2}, "source": {"env": "a", "generation": 1}, "lost": [1, 2]},
        {"moment": {"env": "b", "generation": 2}, "source": {"env": "b", "generation": 1}, "lost": []},
    ]
    assert found["transitions"] == []
    assert {(one["resource"], one["kind"]) for one in found["collection"]["collected"]} == {
        ("db", "branch"),
        ("media", "branch"),
    }
    assert found["elapsed_ms"] > 0
    running.start()
    running.end()
    assert running.ready["recovered"]["clean"]


@pytest.mark.root
def test_what_a_killed_engine_left_can_be_taken_away_without_one(tmp_path: Path, commands: Commands) -> None:
    crash(tmp_path, commands.state, commands)
    mounted = mounted_below(commands.state)
    if not mounted:
        pytest.skip("no overlays here")
    try:
        with pytest.raises(OSError, match="busy"):
            shutil.rmtree(commands.state / "resources" / "media" / "branches")
        told = commands("release").splitlines()
        assert len(told) == 3
        assert all(line.startswith("detached resources/media/branches/") for line in told[:2])
        assert told[2] == f"2 mounts detached, 0 runtimes ended: {commands.state} can be moved or deleted"
        assert mounted_below(commands.state) == []
        assert "nothing of an engine is left" in commands("release")
        assert commands.json("release") == {"mounts": [], "runtimes": []}
        shutil.rmtree(commands.state)
    finally:
        with suppress(OSError):
            for place in mounted:
                detach(place)


@pytest.mark.root
def test_what_rm_left_of_a_directory_can_be_taken_away_too(tmp_path: Path, commands: Commands) -> None:
    crash(tmp_path, commands.state, commands)
    mounted = mounted_below(commands.state)
    if not mounted:
        pytest.skip("no overlays here")
    try:
        said = subprocess.run(["rm", "-rf", str(commands.state)], capture_output=True, text=True, check=False).stderr
        assert "Device or resource busy" in said
        assert not (commands.state / "journal.sqlite3").exists()
        assert f"2 mounts detached, 0 runtimes ended: {commands.state} can be moved or deleted" in commands("release")
        shutil.rmtree(commands.state)
        assert commands("release", status=2).startswith("error[state_missing]")
    finally:
        with suppress(OSError):
            for place in mounted:
                detach(place)


def test_releasing_changes_nothing_that_was_kept(tmp_path: Path, commands: Commands) -> None:
    running = crash(tmp_path, commands.state, commands)
    commands("release")
    running.start()
    assert running.ready["recovered"]["lost"] == {"a": [1, 2], "b": []}
    assert commands("release", status=2).startswith("error[state_locked]")
    running.end()
    assert commands.json("audit")["clean"]
    assert commands("release", "--state", str(tmp_path / "nowhere"), status=2).startswith("error[state_missing]")
