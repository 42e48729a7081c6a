"""Engines in processes of their own that share a journal in PostgreSQL: side by side, killed, stopped, replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.postgres_server import missing_postgres
from tests.integration.test_cli import CONTRACT, READY_S, Commands, engine, read_line

pytestmark = pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "-")

TREE = """
[resources.tree]
adapter = "files"
base = "base"
"""
STORES = CONTRACT[: CONTRACT.index("[resources.page]")] + TREE
QUICK = """
import sys
from statefork.journal import postgres
postgres.open_postgres_journal.__kwdefaults__["claim_s"] = 0.3
from statefork.adapters.interfaces.cli.main import invoke
sys.exit(invoke(sys.argv[1:]))
"""
"""The command line with claims that expire at once where nobody renews them."""


@pytest.fixture
def journal(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    server = postgres.address()
    schema = f"shared_{os.urandom(4).hex()}"
    options = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in server.items() if name != "dbname")
    address = f"postgresql:///{server['dbname']}?{options}&schema={schema}"
    monkeypatch.setenv("STATEFORK_JOURNAL", address)
    return address


class Both:
    """Two state directories of one journal, with a contract each (the same one)."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folders = {name: folder / name for name in ("one", "two")}
        self.commands = {name: Commands(place / "state", capsys) for name, place in self.folders.items()}
        for place in self.folders.values():
            (place / "base").mkdir(parents=True)
            (place / "base" / "note").write_text("hello")

    def up(self, name: str, contract: str = CONTRACT + TREE) -> Any:
        return engine(self.folders[name], self.folders[name] / "state", contract)


@pytest.fixture
def both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(tmp_path, capsys)


def put(value: str) -> str:
    return json.dumps({"type": "put", "key": "basket", "value": value})


def test_side_by_side_and_one_is_killed(journal: str, both: Both) -> None:
    one, two = both.commands["one"], both.commands["two"]
    with both.up("one") as first, both.up("two"):
        assert one.json("create", "a")["ref"] == "a@1"
        assert two.json("create", "b")["ref"] == "b@1"
        taken = two.json("create", "a", status=2)["error"]
        assert (taken["code"], taken["facts"]["place"]) == ("environment_exists", first.ready["place"])
        assert str(one.state) in taken["message"]
        for words in (("reset", "a"), ("act", "a", put("x")), ("fork", "a"), ("replay", "a"), ("restore", "b", "a@1")):
            elsewhere = two.json(*words, status=2)["error"]
            assert (elsewhere["code"], elsewhere["exit_status"]) == ("environment_elsewhere", 2), words
            assert str(one.state) in elsewhere["message"]
        for commands, env in ((one, "a"), (two, "b")):
            commands("act", env, put("tea"))
            commands("snapshot", env)
            commands("act", env, put("lost"))
        there = {env["env"]: env for env in two.json("ls")["environments"]}
        assert (there["a"]["here"], there["b"]["here"], there["a"]["phase"]) == (False, True, "serving")
        assert f"{one.state} on " in two("ls")
        assert f"lives in another state directory of this journal: {one.state}" in two("show", "a")
        assert two.json("show", "a@2")["operation"] == "snapshot"
        first.end(signal.SIGKILL)
        assert {env["phase"] for env in two.json("ls")["environments"] if not env["here"]} <= {"serving", "to recover"}
        assert two.json("reset", "b")["ref"] == "b@3"
        with both.up("one") as again:
            recovered = again.ready["recovered"]["recovered"]
            assert recovered == [{"env": "a", "generation": 3}]
            assert two.json("act", "b", put("goes on"))["value"] == "goes on"
            audited = one.json("audit", "--world")
            assert audited["clean"], audited
            (note,) = [note for note in audited["notes"] if "other state directories" in note]
            assert f"1 in {two.state} on " in note
    for commands in (one, two):
        audited = commands.json("audit", "--world")
        assert audited["clean"], audited


def test_an_engine_that_wakes_up_late_publishes_nothing(journal: str, both: Both, tmp_path: Path) -> None:
    one = both.commands["one"]
    both.folders["copy"] = tmp_path / "copy"
    with ExitStack() as running:
        contract = both.folders["one"] / "notes.toml"
        contract.write_text(STORES)
        (both.folders["one"] / "notes.sqlite3").touch()
        late = subprocess.Popen(
            [sys.executable, "-c", QUICK, "up", str(contract), "--state", str(one.state), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.callback(late.kill)
        place = json.loads(read_line(late))["place"]
        one("create", "a")
        late.send_signal(signal.SIGSTOP)
        waiting = subprocess.Popen(
            [sys.executable, "-m", "statefork", "snapshot", "a", "--state", str(one.state), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.callback(waiting.kill)
        shutil.copytree(both.folders["one"], both.folders["copy"], ignore=shutil.ignore_patterns("control.sock"))
        with both.up("copy", STORES) as heir:  # it waits for no claim: nobody renewed it
            assert heir.ready["place"] == place
            assert heir.ready["recovered"]["recovered"] == [{"env": "a", "generation": 2}]
            copy = Commands(both.folders["copy"] / "state", one.capsys)
            head = copy.json("reset", "a")
            late.send_signal(signal.SIGCONT)
            said, _ = late.communicate(timeout=READY_S)
            assert (late.returncode, json.loads(said)["error"]["code"]) == (2, "claim_lost"), said
            told, _ = waiting.communicate(timeout=READY_S)
            assert waiting.returncode in (2, 3), told  # refused, or the engine was gone before it answered
            assert copy.json("show", "a")["ref"] == head["ref"] == "a@3"
            assert copy.json("audit", "--world")["clean"]
