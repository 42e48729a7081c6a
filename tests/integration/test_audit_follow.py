"""``statefork audit --follow`` and ``--world`` beside an engine in a process of its own."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.integration import test_cli
from tests.integration.test_cli import PROGRAM, READY_S, Commands, engine, read_line

commands = test_cli.commands


@contextmanager
def following(state: Path, *options: str, until: str = "following") -> Iterator[subprocess.Popen[str]]:
    """An audit that has caught up with the engine, or has come so far as to say ``until``."""
    process = subprocess.Popen(
        [*PROGRAM, "audit", "--state", str(state), "--follow", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(until):
                break
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=READY_S)


def end(process: subprocess.Popen[str], how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Status, and what it said from here on."""
    process.send_signal(how)
    said, _ = process.communicate(timeout=READY_S)
    return process.returncode, said


def plant(state: Path, **fields: object) -> int:
    """Somebody adds an event to the journal, every hash right. Returns its position."""
    with closing(sqlite3.connect(state / "journal.sqlite3", isolation_level=None, timeout=READY_S)) as journal:
        stream = f"act/{fields['env']}"
        journal.execute("begin immediate")
        (position,) = journal.execute("select max(position) + 1 from events").fetchone()
        version, before = journal.execute("select version, hash from streams where stream = ?", (stream,)).fetchone()
        raw = json.dumps({"type": "input.recorded/1", "at": 1.0, **fields}, separators=(",", ":"))
        link = hashlib.sha256(f"{before}\n{stream}\n{version + 1}\n{raw}".encode()).hexdigest()
        journal.execute("insert into events values (?, ?, ?, ?, ?)", (position, stream, version + 1, raw, link))
        journal.execute("update streams set version = ?, hash = ? where stream = ?", (version + 1, link, stream))
        journal.execute("commit")
    return int(position)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_sound_engine_is_followed_in_silence(tmp_path: Path, commands: Commands, how: signal.Signals) -> None:
    with engine(tmp_path, tmp_path / "state"):
        commands("create", "a")
        with following(tmp_path / "state", "--json") as audit:
            commands("act", "a", '{"type": "put", "key": "k", "value": 1}')
            commands("snapshot", "a")
            commands("fork", "a@2")
            commands("reset", "a")
            assert end(audit, how) == (0, "")


def test_it_can_be_started_before_there_is_a_journal(tmp_path: Path, commands: Commands) -> None:
    state = tmp_path / "state"
    with following(state, "--json", until="waiting for a journal") as audit:
        with engine(tmp_path, state):
            commands("create", "a")
            commands("act", "a", '{"type": "put", "key": "k", "value": 1}')
            commands("snapshot", "a")  # waits for the disk, and so for the action's events
            assert audit.stderr is not None
            assert any(line.startswith("following") for line in audit.stderr)
            plant(state, env="a", generation=9, epoch=1, lease=1, after_action=0, method="GET", url="/")
            assert audit.stdout is not None
            assert json.loads(audit.stdout.readline())["environment"] == "a"
            assert end(audit)[0] == 1
    with following(tmp_path / "other", until="waiting for a journal") as audit:
        assert end(audit)[0] == 2, "nothing was looked at"


def test_what_is_new_is_among_what_was_looked_at(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state"):
        with following(tmp_path / "state") as audit:
            commands("create", "a")
            told = len(commands("log", "--json").splitlines())
            status, said = end(audit)
    assert status == 0
    assert said.startswith(f"clean: {told} events of 1 environment keep every rule that was checked"), said


@pytest.mark.parametrize("as_json", [True, False])
def test_a_finding_is_told_at_once(tmp_path: Path, commands: Commands, as_json: bool) -> None:
    with engine(tmp_path, tmp_path / "state") as running:
        commands("create", "a")
        commands("act", "a", '{"type": "put", "key": "k", "value": 1}')
        with following(tmp_path / "state", *(["--json"] if as_json else [])) as audit:
            fields = {"env": "a", "generation": 7, "epoch": 1, "lease": 99, "after_action": 1, "method": "POST"}
            position = plant(tmp_path / "state", **fields, url="http://x.example/", headers={}, body="", status=200)
            line = read_line(audit)  # while both go on
            assert audit.poll() is None
            sentence = "the request http://x.example/ of a is of generation 7, while 1 is published"
            if as_json:
                assert json.loads(line) == {
                    "invariant": "I1",
                    "position": position,
                    "stream": "act/a",
                    "environment": "a",
                    "sentence": sentence,
                }
            else:
                assert line == f"I1 at position {position} (act/a): {sentence}\n"
            status, said = end(audit)
            assert status == 1
            assert said == "" if as_json else said.startswith("1 violation in ")
        assert running.process is not None
        running.process.kill()  # its journal is no longer its own


def test_options_that_exclude_each_other(commands: Commands) -> None:
    assert "--world can't be had with --follow" in commands("audit", "--world", "--follow", status=2)
    assert "--world can't be had with --journal-only" in commands("audit", "--world", "--journal-only", status=2)


def test_the_world_is_looked_at_beside_the_engine_and_after_it(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state") as running:
        commands("create", "a")
        commands("act", "a", '{"type": "put", "key": "k", "value": 1}')
        commands("snapshot", "a")
        beside = commands.json("audit", "--world")
        assert beside["clean"], beside
        assert running.end()[0] == 0
    after = commands.json("audit", "--world")
    assert after["clean"], after
    assert "versions of page are not on disk: nothing was compared" in after["notes"]
    (page,) = (tmp_path / "state").glob("resources/db/layers/base-*/db.sqlite3")
    page.chmod(0o644)
    data = bytearray(page.read_bytes() or b"\0")
    data[-1] ^= 1
    page.write_bytes(data)
    found = commands.json("audit", "--world", status=1)["findings"]
    assert len(found) == 1
    assert "was changed: resources/db/layers/base-" in found[0]["sentence"]
