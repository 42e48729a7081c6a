"""The command line as people and scripts use it: an engine in a process of its own, and commands beside it."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.cli.main import VERBS, invoke
from statefork.adapters.interfaces.control.address import SOCKET_PATH_BYTES_MAX, socket_path
from statefork.adapters.interfaces.control.client import engine_runs

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.page]
adapter = "memory"
initial = { greeting = "hello" }
"""
PROGRAM = (sys.executable, "-m", "statefork")
READY_S = 60.0
LIVE = (
    "create",
    "act",
    "snapshot",
    "fork",
    "clone",
    "reset",
    "restore",
    "recover",
    "park",
    "retire",
    "replay",
    "bisect",
    "diff",
    "blame",
    "export",
    "import",
    "keep",
    "mark",
    "prune",
    "gc",
)


class Engine:
    """``statefork up`` in a process of its own, and the commands that use it."""

    def __init__(self, folder: Path, state: Path, contract: str, options: tuple[str, ...]) -> None:
        self.state = state
        self.options = options
        self.contract = folder / "notes.toml"
        self.contract.write_text(contract)
        (folder / "notes.sqlite3").touch()
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        """Return when it is ready."""
        self.process = subprocess.Popen(
            [*PROGRAM, "up", str(self.contract), "--state", str(self.state), "--json", *self.options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready = json.loads(read_line(self.process))

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it, and return its status and what it said meanwhile."""
        assert self.process is not None
        self.process.send_signal(how)
        said, _ = self.process.communicate(timeout=READY_S)
        return self.process.returncode, said


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line of a process, byte by byte, so that nothing of the one after it is taken away from ``select``."""
    assert process.stdout is not None
    file = process.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([file], [], [], READY_S)
        byte = os.read(file, 1) if readable else b""
        if not byte:
            process.kill()
            raise AssertionError(process.communicate()[1])
        line += byte
    return line.decode()


@contextmanager
def engine(folder: Path, state: Path, contract: str = CONTRACT, *options: str) -> Iterator[Engine]:
    """A running engine, ended whatever happens."""
    made = Engine(folder, state, contract, options)
    made.start()
    try:
        yield made
    finally:
        assert made.process is not None
        if made.process.poll() is None:
            made.process.terminate()
            made.process.communicate(timeout=READY_S)


class Commands:
    """Runs commands in this process, on one state directory."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self.capsys = capsys

    def __call__(self, *words: str, status: int = 0) -> str:
        """What it printed."""
        self.capsys.readouterr()
        got = invoke([words[0], "--state", str(self.state), *words[1:]])
        told = self.capsys.readouterr()
        assert got == status, told
        assert "Traceback" not in told.err
        return told.out if status == 0 or told.out else told.err

    def json(self, *words: str, status: int = 0) -> Any:
        """The same, for scripts."""
        return json.loads(self(words[0], "--json", *words[1:], status=status))


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


PUT = '{"type": "put", "key": "basket", "value": "tea"}'


def test_the_life_of_environments(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state) as running:
        assert running.ready["contract"] == "notes"
        assert stat.S_IMODE(socket_path(commands.state).stat().st_mode) == 0o600
        assert commands.json("create", "a")["ref"] == "a@1"
        assert commands.json("act", "a", PUT)["value"] == "tea"
        assert "value: tea" in commands("act", "a", "get", "--key", "basket")
        assert commands.json("act", "a", "look")["value"] == {"greeting": "hello", "basket": "tea"}
        assert commands.json("snapshot", "a") == {"ref": "a@2", "env": "a", "generation": 2}
        children = commands.json("fork", "a@2", "--name", "b", "--name", "c")["children"]
        assert [child["ref"] for child in children] == ["b@1", "c@1"]
        assert "d@1 is ready, cloned from a@2" in commands("clone", "a@2", "d")
        assert commands.json("restore", "b", "a@1")["ref"] == "b@2"
        assert commands.json("reset", "a", "--then", "revoke", "--deadline", "1")["ref"] == "a@3"
        commands("act", "c", PUT)
        assert commands.json("recover", "c") == {"ref": "c@2", "env": "c", "generation": 2}
        assert commands.json("park", "c")["ref"] == "c@2"
        assert "d is retired" in commands("retire", "d")
        assert commands.json("gc")["failed"] == []
        states = {env["env"]: env["phase"] for env in commands.json("ls")["environments"]}
        assert states == {"a": "serving", "b": "serving", "c": "parked"}
        assert [env["env"] for env in commands.json("ls", "--all")["environments"]] == ["a", "b", "c", "d"]
        audited = commands.json("audit")
        assert (audited["clean"], audited["exit_status"]) == (True, 0)
        status, said = running.end()
        assert (status, json.loads(said)) == (0, {"closed": True, "not_parked": []})
    assert not socket_path(commands.state).exists()
    states = {env["env"]: env["phase"] for env in commands.json("ls")["environments"]}
    assert states == {"a": "parked", "b": "parked", "c": "parked"}
    assert commands.json("audit")["clean"]


def test_replaying_says_what_it_compared(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        for number in range(3):
            commands("act", "a", json.dumps({"type": "add", "key": "count", "amount": number}))
        told = commands.json("replay", "a", "--keep")
        assert (told["verdict"], told["exact"], told["compared"]) == ("exact-observed", True, 3)
        assert "exact-observed: a from a@1, 3 of 3 steps compared (3 actions)" in commands("replay", "a")
        assert "kept" not in commands("replay", "a")
        assert told["child"] in {env["env"] for env in commands.json("ls")["environments"]}
        commands("snapshot", "a")
        told = commands.json("replay", "a", "--to", "a@2")
        assert (told["verdict"], told["states"]) == ("exact-state", {"db": True, "page": True})
        assert "exact-observed: a#2 from a@1, 2 of 2 steps" in commands("replay", "a", "--to", "a#2", "--no-states")
        assert commands.json("replay", "a", "--from", "a@2")["steps"] == 0


def test_an_environment_is_carried_in_a_file(tmp_path: Path, commands: Commands) -> None:
    file = tmp_path / "a.statefork"
    with engine(tmp_path, commands.state):
        commands("create", "a")
        commands("act", "a", PUT)
        sent = commands.json("export", "a", "-o", str(file))
        assert (sent["ref"], sent["size"]["actions"], sent["path"]) == ("a@2", 1, str(file))
        told = commands("import", str(file), "--name", "b")
        assert told.startswith("b@2 holds what a@2 held: 1 action, 2 generations, 3 components, ")
        assert f"SHA-256 {sent['sha256']}" in told
        assert commands.json("act", "b", "get", "--key", "basket")["value"] == "tea"
        shown = commands("show", "b#2")
        assert "\n  value: tea" in shown
        assert "''" not in shown
        told = commands("import", str(file))
        assert told.startswith("a-i1@2 holds what a@2 held")
        assert "it has a name of its own, as 'a' is taken here (--name gives another)" in told
        assert "imported up to generation 2: a@2 of journal" in commands("log", "b")
        assert commands.json("import", str(file), "--name", "b", status=2)["error"]["code"] == "environment_exists"
        assert "no moment of a" in commands("export", "a", "--at", "b@1", "-o", str(file), status=2)
        assert f"a#1 is in {file}: 1 action" in commands("export", "a", "--at", "a#1", "-o", str(file), "--force")
        file.write_bytes(file.read_bytes()[:-1])
        assert "cut off" in commands("import", str(file), status=2)
        assert commands.json("import", str(file), status=2)["error"]["code"] == "export_unreadable"
        assert commands.json("audit")["clean"]


def test_any_moment_is_forked_and_the_one_that_broke_it_is_found(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        for number in range(1, 8):
            commands("act", "a", json.dumps({"type": "add", "key": "count", "amount": number}))
        (child,) = commands.json("fork", "a#3")["children"]
        assert (child["actions"], child["parent"], child["made"]["verdict"]) == (3, "a@1", "exact-observed")
        assert commands.json("act", child["env"], "get", "--key", "count")["value"] == 6
        said = commands("fork", "a#2", "--name", "b")
        assert "a#2 made: exact-observed, 2 actions from a@1 done again in b, 2 of 2 compared" in said
        said = commands("restore", "b", "a#4")
        assert "b@2 holds what a#4 held\na#4 made: exact-observed, 4 actions from a@1 done again in a-d1" in said
        assert commands.json("clone", "a#1", "c")["made"]["verdict"] == "exact-observed"
        commands("retire", "c")
        program = shlex.join(PROGRAM)
        check = f'test "$({program} act $STATEFORK_ENV get --key count --state $STATEFORK_STATE --json | '
        check += f'{shlex.quote(sys.executable)} -c \'import json, sys; print(json.load(sys.stdin)["value"])\')" -lt 12'
        found = commands.json("bisect", "a#1", "a", "--check", check)
        assert (found["first"], found["exact"]) == ("a#5", True)  # 1 + 2 + 3 + 4 + 5
        assert found["checks"] <= 3
        assert [env["env"] for env in commands.json("ls")["environments"]] == ["a", "a-f1", "b"]
        failed = commands.json("bisect", "a#1", "a", "--check", "no-such-command-anywhere", status=2)
        assert failed["error"]["code"] == "usage"


def test_what_if_another_thing_had_been_done(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        for number in range(1, 6):
            commands("act", "a", json.dumps({"type": "add", "key": "count", "amount": number}))
        instead = '3: {"type": "put", "key": "count", "value": 100}'
        told = commands.json("replay", "a", "--inject", instead)
        assert [one["number"] for one in told["done"]] == [3]
        assert commands.json("act", told["env"], "get", "--key", "count")["value"] == 100
        said = commands("replay", "a", "--inject", instead, "--rest")
        assert "3  instead: put" in said
        assert "a-f2 goes on from a#2: 3 actions" in said
        assert commands.json("act", "a-f2", "get", "--key", "count")["value"] == 109
        file = tmp_path / "change.py"
        file.write_text(
            "def change(number, action, seen):\n"
            "    if seen is not None and seen['value'] == 3:\n"
            "        return [action, {'type': 'add', 'key': 'count', 'amount': 1000}]\n"
            "    return None if number < 4 else False\n"
        )
        told = commands.json("replay", "a", "--with", str(file))
        assert told["from"] == "a#2", "what comes before the change is not done again"
        assert [(one["number"], one["changed"], one["same"]) for one in told["done"]] == [(3, True, None)] * 2
        assert commands.json("act", told["env"], "get", "--key", "count")["value"] == 1006
        for words in (
            ("--inject", "press Enter"),
            ("--inject", "0: get"),
            ("--with", str(tmp_path / "none.py")),
            ("--inject", instead, "--with", str(file)),
        ):
            assert commands.json("replay", "a", *words, status=2)["error"]["code"] == "usage"


def test_reading_needs_no_engine(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        commands("act", "a", PUT)
        commands("snapshot", "a")
    assert not engine_runs(commands.state)
    shown = commands.json("show", "a@2")
    assert shown["operation"] == "snapshot"
    assert shown["timings_ms"]
    assert set(shown["manifest"]) == {"db", "page"}
    table = commands("show", "a@2")
    assert "resources/db/" in table
    assert "sqlite" in table
    environment = commands.json("show", "a")
    assert environment["lineage"] == ["a@2", "a@1"]
    assert [generation["operation"] for generation in environment["generations"]] == ["create", "snapshot"]
    action = commands.json("show", "a#1")
    assert (action["number"], action["outcome"], action["action"]["key"]) == (1, "ok", "basket")
    assert commands.json("show", "a@1+1") == action
    lines = commands("log", "a").splitlines()
    assert any("a@2 published by snapshot" in line for line in lines)
    assert all("engine" not in line.split()[3] for line in lines)
    last = [json.loads(line) for line in commands("log", "-n", "2", "--json").splitlines()]
    assert [event["event"]["type"] for event in last] == ["environment.parked/1", "engine.stopped/1"]
    assert [
        json.loads(line) for line in commands("log", "--after", str(last[0]["position"]), "--json").splitlines()
    ] == [last[1]]


def test_reading_does_not_wait_for_an_engine_that_hangs(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state) as running:
        commands("create", "a")
        assert commands.json("show", "a")["sites"] == {}
        assert running.process is not None
        running.process.send_signal(signal.SIGSTOP)
        try:
            shown = commands.json("show", "a")
            assert (shown["ref"], shown["sites"]) == ("a@1", None)
            assert "the engine does not answer" in commands("show", "a")
        finally:
            running.process.send_signal(signal.SIGCONT)


def test_output_in_a_pipe_is_plain(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
    command = [*PROGRAM, "ls", "--state", str(commands.state)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in said
    assert "─" not in said
    head, row = said.splitlines()
    assert head.split()[:3] == ["environment", "phase", "gen"]
    assert row.split()[:3] == ["a", "parked", "1"]


def test_following_shows_events_as_they_happen(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        command = [*PROGRAM, "log", "-f", "--json", "--state", str(commands.state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
            first = json.loads(read_line(following))
            assert first["event"]["type"] == "journal.created/1"
            commands("create", "a")
            kinds = []
            while not kinds or kinds[-1] != "environment.activated/1":
                kinds.append(json.loads(read_line(following))["event"]["type"])
            following.send_signal(signal.SIGINT)
            assert following.wait(READY_S) == 130
        assert "generation.published/1" in kinds


def test_a_crash_is_recovered_and_its_losses_named(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state) as running:
        commands("create", "a")
        commands("act", "a", PUT)
        commands("create", "b")  # is durable, and so is what was journaled before it
        running.end(signal.SIGKILL)
        assert {env["phase"] for env in commands.json("ls")["environments"]} == {"to recover"}
        assert "recovers what served" in commands("ls")
        assert commands.json("create", "c", status=2)["error"]["code"] == "no_engine"
        assert commands.json("audit")["clean"]
        running.start()
        assert running.ready["recovered"]["lost"] == {"a": [1], "b": []}
        shown = commands.json("show", "a@2")
        assert (shown["operation"], shown["lost_actions"]) == ("recover", [1])
        assert commands.json("audit")["clean"]


def test_a_state_directory_with_a_long_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / ("long" * 30) / "state"
    assert len(os.fsencode(socket_path(state))) > SOCKET_PATH_BYTES_MAX
    commands = Commands(state, capsys)
    with engine(tmp_path, state):
        assert commands.json("create", "a")["ref"] == "a@1"
        assert engine_runs(state)


@pytest.mark.parametrize("verb", LIVE)
def test_commands_that_need_an_engine_say_how_to_start_one(verb: str, commands: Commands) -> None:
    words = {
        "act": ("a", PUT),
        "restore": ("a", "a@1"),
        "clone": ("a@1", "b"),
        "bisect": ("a@1", "a", "--check", "true"),
        "diff": ("a@1", "a"),
        "blame": ("a", "--item", "basket"),
        "export": ("a", "-o", "a.statefork"),
        "import": ("a.statefork",),
        "mark": ("a@1", "here"),
        "gc": (),
    }.get(verb, ("a",))
    told = commands(verb, *words, status=2)
    assert told.startswith("error[no_engine]: no engine runs on the state directory")
    assert "statefork up CONTRACT --state" in told
    assert told.count("\n") == 1
    assert commands.json(verb, *words, status=2)["error"]["code"] == "no_engine"


def test_errors_of_the_engine_arrive_with_their_codes(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state) as running:
        commands("create", "a")
        for words, code, status in (
            (("create", "a"), "environment_exists", 2),
            (("create", "Not A Name"), "invalid_name", 2),
            (("act", "nobody", PUT), "unknown_environment", 2),
            (("act", "a", '{"type": "fly"}'), "invalid_action", 2),
            (("act", "a", '{"type": "fail", "key": "card"}'), "action_failed", 1),
            (("act", "a", '{"type": "wait", "key": "bell"}', "--timeout", "0.05"), "action_timeout", 3),
            (("act", "a", "look", "--screenshot", str(tmp_path / "now.png")), "usage", 2),
            (("restore", "a", "a@9"), "unknown_ref", 2),
            (("fork", "a@@1"), "unknown_ref", 2),
            (("reset", "a", "--then", "panic"), "usage", 2),
        ):
            assert commands.json(*words, status=status)["error"]["code"] == code, words
            assert commands(*words, status=status).startswith(f"error[{code}]: ")
        command = [*PROGRAM, "up", str(running.contract), "--state", str(commands.state)]
        second = subprocess.run(command, check=False, capture_output=True, text=True)
        assert second.returncode == 2
        assert "error[state_locked]" in second.stderr


def test_reading_what_is_not_there(tmp_path: Path, commands: Commands) -> None:
    for words in (("ls",), ("log",), ("show", "a")):
        assert commands.json(*words, status=2)["error"]["code"] == "state_missing"
    assert commands.json("audit", status=2)["unreadable"]
    with engine(tmp_path, commands.state):
        commands("create", "a")
    for words in (("log", "nobody"), ("show", "nobody"), ("show", "a@7"), ("show", "a#7"), ("show", "a#0")):
        assert commands.json(*words, status=2)["error"]["code"] in ("unknown_environment", "unknown_ref"), words


def test_usage_errors_are_one_line_and_status_2(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["frobnicate"], ["show"], ["log", "-n", "many"], ["ls", "--nope"]):
        assert invoke(words) == 2
        told = capsys.readouterr().err
        assert told.startswith("error[usage]: ")
        assert told.count("\n") == 1


def test_a_bad_contract_is_named_with_its_place(tmp_path: Path, commands: Commands) -> None:
    contract = tmp_path / "bad.toml"
    (tmp_path / "x").touch()
    contract.write_text('[contract]\nname = "bad"\n[resources.db]\nadapter = "sqlite"\nbase = "x"\nbsae = "y"\n')
    command = [*PROGRAM, "up", str(contract), "--state", str(commands.state)]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said.returncode == 2
    assert "error[contract_error]" in said.stderr
    assert "bad.toml:6" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_defect_is_one_line_unless_it_is_debugged(
    monkeypatch: pytest.MonkeyPatch, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr("statefork.adapters.interfaces.cli.ls.run", broken)
    told = commands("ls", status=1)
    assert told.startswith("error[internal]: ZeroDivisionError: nobody thought of it. This is a defect")
    monkeypatch.setenv("STATEFORK_DEBUG", "1")
    assert invoke(["ls", "--state", str(commands.state)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commands: Commands) -> None:
    Engine(tmp_path, commands.state, CONTRACT, ())
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    notes = commands.json("doctor", str(tmp_path / "notes.toml"))
    found = {finding["what"]: finding for finding in notes["findings"]}
    assert notes["ok"]
    assert "loopback address" in found["base URLs"]["found"]
    assert "add 127.0.0.0/8 to NO_PROXY" in found["HTTP proxy"]["advice"]
    assert found["db (sqlite)"]["found"]
    assert not commands.state.exists()
    assert not list(tmp_path.glob(".statefork-doctor-*"))
    (tmp_path / "less.toml").write_text((tmp_path / "notes.toml").read_text().replace('base = "', 'base = "no-'))
    less = commands.json("doctor", str(tmp_path / "less.toml"), status=2)
    assert [finding["what"] for finding in less["findings"] if finding["grade"] == "missing"] == ["base"]
    monkeypatch.setenv("STATEFORK_CHROMIUM", str(tmp_path / "nowhere"))
    shop = commands.json("doctor", status=2)
    (missing,) = [finding for finding in shop["findings"] if finding["grade"] == "missing"]
    assert missing["what"] == "browser (browser)"
    assert "apt-get install" in missing["advice"]


def test_every_verb_is_tried_here() -> None:
    tried = set(LIVE) | {"up", "ls", "log", "show", "audit", "doctor", "release"}
    others = {verb for verb in VERBS if " " not in verb} - tried
    assert others == {"demo", "rollout", "simulate"}, "these, and those of two words, have tests of their own"
