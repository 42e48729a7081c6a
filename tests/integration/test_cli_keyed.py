"""Commands that are given again, and several environments by one command, as scripts do it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_cli import PROGRAM, PUT, Commands, engine

pytestmark = pytest.mark.usefixtures("tmp_path")


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


def test_what_is_given_again_is_answered_also_by_the_next_engine(tmp_path: Path, commands: Commands) -> None:
    asked = {
        "create": ("create", "a", "--key", "one"),
        "fork": ("fork", "a", "-n", "2", "--key", "two"),
        "snapshot": ("snapshot", "a", "--key", "three"),
        "reset": ("reset", "a", "--key", "four"),
        "restore": ("restore", "a", "a@1", "--key", "five"),
        "clone": ("clone", "a@1", "copy", "--key", "six"),
        "retire": ("retire", "a-f1", "--key", "seven"),
    }
    with engine(tmp_path, commands.state):
        first = {name: commands.json(*words)["ref" if name != "fork" else "children"] for name, words in asked.items()}
        commands("act", "a", PUT)
        commands("snapshot", "a")
        kept = {env["env"]: env["generation"] for env in commands.json("ls", "--all")["environments"]}
    with engine(tmp_path, commands.state):
        for name, words in asked.items():
            again = commands.json(*words)
            if name == "fork":
                assert [one["env"] for one in again["children"]] == [one["env"] for one in first[name]]
            elif name in ("snapshot", "reset", "restore"):
                assert again["ref"] == first[name], name
        assert {env["env"]: env["generation"] for env in commands.json("ls", "--all")["environments"]} == kept
        told = commands("snapshot", "a", "--key", "one", status=2)
        assert "key_reused" in told
        assert "'create a'" in told
        assert "the key 'three' (snapshot a) leads to a@" in commands("log", "a")


def test_a_repetition_says_what_has_been_retired(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a", "--key", "one")
        commands("fork", "a", "-n", "2", "--key", "two")
        commands("retire", "a-f1")
        forked, ready = commands("fork", "a", "-n", "2", "--key", "two").splitlines()
        assert forked.startswith("a-f1@1 was there, and is retired, forked from a@")
        assert ready.startswith("a-f2@1 is ready, forked from a@")
        commands("retire", "a")
        assert commands("create", "a", "--key", "one").startswith("a@2 was there, and is retired")


@pytest.mark.parametrize("words", [("create", "a\udcff"), ("create", "a", "--key", "\udcff"), ("show", "a\udcff")])
def test_bytes_that_are_no_text_are_told(tmp_path: Path, commands: Commands, words: tuple[str, ...]) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "b")
        said = commands(*words, status=2)
        assert re.match(r"error\[(usage|unknown_ref|invalid_key)\]: '.*\\udcff'", said), said
        assert commands("ls", "--json").count('"ref"') == 1


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii"])
def test_a_terminal_that_can_not_show_a_character_gets_its_number(tmp_path: Path, encoding: str) -> None:
    arguments = [*PROGRAM, "show", "--json", b"a\xff\xc3\xbc", "--state", str(tmp_path)]
    shown = subprocess.run(
        arguments, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False
    )
    assert shown.returncode == 2
    assert shown.stderr == b""
    assert json.loads(shown.stdout)["error"]["code"] == "unknown_ref"


def test_several_by_one_command(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        made = commands.json("create", "a", "b", "c", "--key", "k")["created"]
        assert [one["ref"] for one in made] == ["a@1", "b@1", "c@1"]
        assert commands("create", "d", "e").splitlines()[:2] == ["d@1 is ready", "e@1 is ready"]
        for env in "ab":
            commands("act", env, PUT)
        assert commands("reset", "a", "b", "c").splitlines() == [f"{env}@2 holds what its origin held" for env in "abc"]
        told = commands("create", "f", "a", status=1)
        assert "partial_failure" in told
        assert "(a)" in told
        first, *reasons = commands("create", "a", "b", "h", status=1).splitlines()
        assert "2 of 3 environments failed (a, b)" in first
        assert [reason.split("]")[0] for reason in reasons] == [
            "  a: error[environment_exists",
            "  b: error[environment_exists",
        ]
        failed = commands.json("fork", "a", "--name", "b", "--name", "i", "--name", "c", status=1)["error"]
        assert {name: part["code"] for name, part in failed["failed"].items()} == dict.fromkeys(
            ("b", "c"), "environment_exists"
        )
        assert failed["hint"].startswith("i serve")
        assert commands.json("show", "f")["lineage"] == ["f@1"], "one succeeds though another fails"
        assert "named twice" in commands("reset", "a", "a", status=2)
        assert [one["ref"] for one in commands.json("create", "a", "b", "c", "--key", "k")["created"]] == [
            "a@3",
            "b@2",
            "c@2",
        ]
