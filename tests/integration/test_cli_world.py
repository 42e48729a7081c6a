"""``statefork world``: an engine that outlives the command which started it, and its end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control.client import held
from statefork.adapters.resources.process.standing import started
from tests.integration.test_cli import PROGRAM, READY_S, Commands

CONTRACT = """
[contract]
name = "notes"

[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
"""


class Worldly(Commands):
    """Commands whose verb has two words; building a world is the user's, and no state directory's."""

    def __call__(self, *words: str, status: int = 0) -> str:
        here = () if "build" in words else ("--state", str(self.state))
        self.capsys.readouterr()
        got = invoke([*words, *here])
        told = self.capsys.readouterr()
        assert got == status, told
        return told.out if status == 0 or told.out else told.err

    def json(self, *words: str, status: int = 0) -> Any:
        return json.loads(self(*words, "--json", status=status))


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Worldly:
    return Worldly(tmp_path / "state", capsys)


@pytest.fixture
def notes(tmp_path: Path) -> str:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    (tmp_path / "notes.sqlite3").touch()
    return str(tmp_path / "notes.toml")


@pytest.fixture(autouse=True)
def _nothing_runs_on(commands: Commands) -> Iterator[None]:
    yield
    if (left := held(commands.state)) is not None and left.pid is not None:
        os.kill(left.pid, signal.SIGKILL)
        raise AssertionError(f"the test left an engine in process {left.pid}")


def test_it_serves_until_it_is_told_to_close(notes: str, commands: Commands) -> None:
    up = commands.json("world", "up", notes)
    assert up["contract"] == "notes"
    engine = psutil.Process(up["pid"])
    assert os.getsid(engine.pid) == engine.pid, "what ends the terminal does not end it"
    commands("create", "a")
    again = commands.json("world", "up", notes)
    assert again["pid"] == up["pid"]
    assert commands.json("world", "ls")["serving"]["contract"] == "notes"
    assert "serves 'notes' on" in commands("world", "up", "shop", status=2)
    assert commands.json("world", "down") == {"pid": up["pid"], "not_parked": []}
    assert not started(engine.pid), "who is told that it is closed may take its directory away"
    assert engine.wait(READY_S) == 0
    assert commands.json("world", "down") == {"pid": None, "not_parked": []}
    assert commands.json("world", "ls")["serving"] is None
    assert commands.json("world", "up", notes)["environments"][0]["env"] == "a"
    commands("world", "down")
    commands("audit")


def test_a_killed_one_is_found_gone_and_started_again(notes: str, commands: Commands) -> None:
    first = commands.json("world", "up", notes)["pid"]
    commands("create", "a")
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)  # here it is our child
    assert commands.json("world", "down") == {"pid": None, "not_parked": []}
    said = commands("world", "up", notes)
    assert f"(process {first}," not in said
    assert "recovered in" in said
    commands("reset", "a")
    commands("world", "down")


def test_one_that_can_not_start_says_why_in_its_own_words(notes: str, tmp_path: Path, commands: Commands) -> None:
    Path(notes).write_text(CONTRACT + '\n[resources.cache]\nadapter = "valkey"\nserver = "no-such-server"\n')
    said = commands("world", "up", notes, status=2)
    assert "error[world_not_up]: the engine of " in said
    assert "no-such-server" in said
    assert held(commands.state) is None


def test_one_that_could_not_park_everything_says_so(notes: str, commands: Commands) -> None:
    commands("world", "up", notes)
    commands("create", "a")
    (database,) = (commands.state / "resources/db/branches").glob("a-*/db.sqlite3")
    with closing(sqlite3.connect(database, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        assert "a could not be parked" in commands("world", "down", status=1)


def test_an_engine_within_a_program_is_left_alone(notes: str, commands: Commands) -> None:
    program = (
        "import sys, anyio, statefork\n"
        "async def main():\n"
        "    async with statefork.open_engine(sys.argv[1], state=sys.argv[2]):\n"
        "        print('open', flush=True); await anyio.sleep_forever()\n"
        "anyio.run(main, backend='trio')\n"
    )
    with subprocess.Popen([*PROGRAM[:1], "-c", program, notes, str(commands.state)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == b"open\n"
            assert "error[engine_deaf]" in commands("world", "down", status=2)
            assert "error[engine_deaf]" in commands("world", "up", notes, status=2)
            assert commands.json("world", "ls")["serving"] is None
            assert running.poll() is None
            (commands.state / "logs").mkdir(exist_ok=True)
            (commands.state / "logs" / "up.pid").write_text(str(running.pid))  # as of one that is still starting
            assert commands.json("world", "down")["pid"] == running.pid
            assert running.wait(READY_S) != 0
        finally:
            running.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_who_gives_up_waiting_leaves_no_engine(notes: str, commands: Commands, how: signal.Signals) -> None:
    starting = subprocess.Popen(
        [*PROGRAM, "world", "up", notes, "--state", str(commands.state)], stderr=subprocess.PIPE
    )
    assert starting.stderr is not None
    assert b"starting" in starting.stderr.readline()
    starting.send_signal(how)
    starting.communicate(timeout=READY_S)
    assert starting.returncode in (0, 130)  # 0: it had just become ready
    if starting.returncode == 0:
        commands("world", "down")
    assert held(commands.state) is None


def test_a_base_is_built_beforehand(commands: Commands, notes: str) -> None:
    assert "error[contract_error]" in commands("world", "build", notes, status=2)
    assert "error[contract_error]" in commands("world", "build", "nowhere", status=2)
    worlds = {one["name"]: one for one in commands.json("world", "ls")["worlds"]}
    assert worlds["office"]["sites"] == ["shop.example", "tracker.example", "wiki.example"]
    assert worlds["shop"]["sites"] == ["shop.example"]
