"""``statefork up`` beside other commands: slots, limits, and readers that leave."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration import test_cli
from tests.integration.test_cli import CONTRACT, PROGRAM, READY_S, Commands, Engine, engine, read_line

commands = test_cli.commands


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_has_gone_does_not_end_it(tmp_path: Path, commands: Commands, how: signal.Signals) -> None:
    """As in ``statefork up shop --json | head -1``."""
    with engine(tmp_path, tmp_path / "state") as running:
        assert running.process is not None
        assert running.process.stdout is not None
        running.process.stdout.close()
        commands("create", "a")
        running.process.send_signal(how)
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""
        assert running.process.wait(timeout=READY_S) == 0
    assert "1 action" not in commands("log", "a")
    commands("audit")


def test_an_action_whose_command_is_interrupted_goes_on_and_that_is_said(tmp_path: Path, commands: Commands) -> None:
    state = tmp_path / "state"
    with engine(tmp_path, state):
        commands("create", "a")
        words = ["act", "a", '{"type": "wait", "key": "bell"}', "--timeout", "60", "--state", str(state)]
        with subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True) as waiting:
            while "action.begun/1" not in commands("log", "a", "--json"):
                pass
            waiting.send_signal(signal.SIGINT)
            _, said = waiting.communicate(timeout=READY_S)
        assert waiting.returncode == 130
        assert f"goes on there: `statefork log a --state {state}` shows it" in said
        assert said.splitlines()[-1] == "interrupted"
        assert "action.ended/1" not in commands("log", "a", "--json")  # it waits in the engine


def test_more_children_than_a_fork_may_have(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state"):
        commands("create", "a")
        said = commands("fork", "a", "-n", "1000000", status=2)
        assert said.startswith("error[limit_reached]: one fork makes 1 to 1000 environments, not 1000000.")
        assert "children_max" in said
        assert [one["env"] for one in commands.json("ls")["environments"]] == ["a"]
        assert "[usage]" in commands("fork", "a", "-n", "0", status=2)


def test_more_environments_than_slots(tmp_path: Path, commands: Commands) -> None:
    contract = CONTRACT.replace("initial", 'slot = "desk"\ninitial')
    with engine(tmp_path, tmp_path / "state", contract, "--slots", "2") as running:
        assert running.ready["slots"] == {"kind": "desk", "limit": 2, "taken": [], "queue": []}
        for env in ("a", "b", "c"):
            commands("create", env)
            commands("act", env, f'{{"type": "put", "key": "name", "value": "{env}"}}')
        states = {one["env"]: one["phase"] for one in commands.json("ls")["environments"]}
        assert states == {"a": "parked", "b": "serving", "c": "serving"}
        assert "value: a" in commands("act", "a", '{"type": "get", "key": "name"}')
        assert "its slot was needed" in commands("log", "b")
    commands("audit")


def test_slots_of_a_contract_without_any_are_told(tmp_path: Path, commands: Commands) -> None:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    with engine(tmp_path, tmp_path / "state", CONTRACT, "--slots", "2") as running:
        assert running.ready["slots"] == {"kind": "", "limit": None, "taken": [], "queue": []}
    up = [*PROGRAM, "up", str(running.contract), "--state", str(commands.state), "--slots", "2"]
    process = subprocess.Popen(up, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any("--slots 2 changes nothing" in line for line in process.stdout)
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)


def test_an_engine_that_could_not_park_everything_says_so(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state") as running:
        commands("create", "a")
        (database,) = (tmp_path / "state/resources/db/branches").glob("a-*/db.sqlite3")
        with closing(sqlite3.connect(database, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            status, said = running.end()
    assert status == 1
    assert json.loads(said) == {"closed": True, "not_parked": ["a"]}


def test_a_second_interrupt_gives_up_on_closing(tmp_path: Path, commands: Commands) -> None:
    Engine(tmp_path, tmp_path / "state", CONTRACT, ())
    up = (*PROGRAM, "up", str(tmp_path / "notes.toml"), "--state", str(tmp_path / "state"))
    waiting = (*PROGRAM, "act", "a", '{"type": "wait", "key": "bell"}', "--state", str(tmp_path / "state"))
    with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        shown = read_line(process)
        while "Ctrl-C closes it" not in shown:
            shown += read_line(process)
        assert "the first one makes what all begin with" in shown  # a base that is broken is seen only there
        commands("create", "a")
        with subprocess.Popen(waiting, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
            while "wait key='bell'" not in commands("log", "a"):  # which parking waits for
                pass
            process.send_signal(signal.SIGINT)
            while "Closing" not in read_line(process):
                pass
            process.send_signal(signal.SIGINT)
            assert agent.wait(timeout=READY_S) in (2, 3)
        said, told = process.communicate(timeout=READY_S)
    assert (process.returncode, told, said) == (130, "interrupted\n", "Closed.\n")
    with engine(tmp_path, tmp_path / "state") as running:
        assert running.ready["recovered"]["lost"] == {"a": [1]}
    commands("audit")


def test_environments_of_another_contract_are_named(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state"):
        commands("create", "a")
    other = CONTRACT.replace('"hello"', '"bye"').replace('name = "notes"', 'name = "other"')
    with engine(tmp_path, tmp_path / "state", other) as running:
        assert [one["of_this_contract"] for one in running.ready["environments"]] == [False]
        said = commands("act", "a", "get", "--key", "greeting", status=2)
        assert "a was made under contract notes (" in said
        assert "this engine runs other (" in said


def test_mistakes_in_the_words_of_fork_and_act(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, tmp_path / "state"):
        commands("create", "a")
        assert "-n asks for 2 children, and --name names 1" in commands("fork", "a", "-n", "2", "--name", "b", status=2)
        assert "did you mean 'goto'?" in commands("act", "a", "got", "http://shop.example/", status=2)
        assert "go on with it" in commands("create", "a", status=2)
        commands("retire", "a")
        assert "never used twice" in commands("create", "a", status=2)
