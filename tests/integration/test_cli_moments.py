"""Moments that nobody sealed, by the names under which people are told of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_cli import CONTRACT, Commands, engine


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


def add(commands: Commands, env: str, *amounts: int) -> None:
    for amount in amounts:
        commands("act", env, json.dumps({"type": "add", "key": "count", "amount": amount}))


def count(commands: Commands, env: str) -> int:
    value = commands.json("act", env, "get", "--key", "count")["value"]
    assert isinstance(value, int)
    return value


def test_a_child_is_called_by_the_moment_that_was_made_in_it(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        add(commands, "a", 1, 2, 3)
        commands("snapshot", "a")
        add(commands, "a", 4)
        commands("snapshot", "a")
        commands("prune", "a", "--keep", "last 1")  # @2 goes
        said = commands("fork", "a@2", "--name", "revived")
        assert said.startswith("revived@1+3 is ready, forked from a@2\n")
        assert commands("diff", "a@2", "revived@1+3").startswith("a@2 was made")
        child = commands.json("fork", "revived@1+3")["children"][0]
        assert (child["ref"], child["made"]["ref"]) == ("revived-f1@1+3", "revived-f1@1+3")
        assert count(commands, "revived-f1") == 6
        add(commands, "revived", 100)
        assert commands("restore", "revived", "revived@1+3").startswith("revived@2 holds what revived@1+3 held")
        assert count(commands, "revived") == 6
        many = commands.json("fork", "a#2", "-n", "2")["children"]
        assert [one["ref"] for one in many] == ["a-f1@2", "a-f2@2"], "where a generation stands there, it is that"
        assert all(count(commands, one["env"]) == 3 for one in many)
        said = commands("fork", "a#4", "--name", "same")
        assert said.startswith("same@1 is ready, forked from a@3")
        assert said.endswith("a#4 is a@3: nothing done again\n")
        assert "nothing done again" not in commands("fork", "a@3")


def test_a_moment_that_never_was_is_told_by_what_was_typed(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        add(commands, "a", 1, 2)
        never = commands.json("fork", "a#9", status=2)["error"]
        assert (never["message"], never["hint"]) == ("a#9: a has 2 actions", "The last moment is a#2")
        for words in (("--inject", "33: get"), ("--inject", "1: get", "--inject", "3: get", "--rest")):
            never = commands.json("replay", "a", *words, status=2)["error"]
            assert never["code"] == "usage"
            assert (never["message"].split(": …': ")[1], never["hint"]) == (
                "a has 2 actions",
                "The last one is action 2",
            )
        assert [one["env"] for one in commands.json("ls")["environments"]] == ["a"]


def test_an_environment_that_helped_does_not_give_its_name_to_moments(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        add(commands, "a", 1, 2, 3, 4, 5)
        commands("restore", "a", "a#4")
        assert "a#4 (made in a-d1)" in commands("show", "a")
        assert "from a#4 (made in a-d1)" in commands("show", "a@2")
        assert "a-d1 begins: fork of a@1, for one command: making a#4" in commands("log", "a-d1")
        told = commands("diff", "a#1", "a#2", status=1)
        assert "actions from a@1 done again" in told
        assert "a-d" not in told
        blamed = commands.json("blame", "a", "--item", "count")
        assert blamed["ref"] == "a#4"
        file = tmp_path / "a.statefork"
        assert commands.json("export", "a", "--at", "a#3", "-o", str(file))["ref"] == "a#3"
        assert commands("import", str(file)).startswith("a-i1@2 holds what a#3 held")
        whole = file.read_bytes()
        said = commands("export", "a", "-o", str(file), status=2)
        assert said == f"error[usage]: {file} is there already. Choose another name, or write over it with --force\n"
        assert file.read_bytes() == whole
        assert commands.json("export", "a", "-o", str(file), "--force")["ref"] != "a#3"
        assert file.read_bytes() != whole


def test_what_a_mark_needs_is_taught(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        add(commands, "a", 1, 2)
        hint = commands.json("mark", "a#1", "hello", status=2)["error"]["hint"]
        assert hint.startswith(
            "A mark is put on a generation: `statefork fork 'a#1'`, `statefork snapshot` of the child"
        )
        assert commands.json("mark", "a#9", "hello", status=2)["error"]["hint"] == "The last moment is a#2"


SITE = """
[resources.%s]
adapter = "process"
command = "{python} -m http.server {port} --bind 127.0.0.1"
host = "%s"
"""


def test_bisect_names_every_site_in_the_contracts_order(tmp_path: Path, commands: Commands) -> None:
    sites = [("wiki", "wiki.example"), ("zoo", "my-zoo.example:8080"), ("archive", "archive.example")]
    with engine(tmp_path, commands.state, CONTRACT + "".join(SITE % site for site in sites)):
        made = commands.json("create", "a")
        hosts = [host for _, host in sites]
        assert list(made["sites"]) == hosts
        add(commands, "a", 1)
        told = tmp_path / "told"
        found = commands.json("bisect", "a#0", "a", "--check", f'env >> {told}; test "$STATEFORK_REF" = "a#0"')
        assert found["first"] == "a#1"
    (env,) = [dict(line.partition("=")[::2] for line in told.read_text().splitlines() if "STATEFORK_S" in line)]
    names = ["WIKI_EXAMPLE", "MY_ZOO_EXAMPLE_8080", "ARCHIVE_EXAMPLE"]
    assert env["STATEFORK_SITE"] == env["STATEFORK_SITE_WIKI_EXAMPLE"]
    assert {name for name in env if name.startswith("STATEFORK_SITE_")} == {f"STATEFORK_SITE_{name}" for name in names}
    assert len({env[f"STATEFORK_SITE_{name}"] for name in names}) == len(sites)
