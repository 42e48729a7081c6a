"""What stays of an environment's history, as people say it at the command line."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.integration.test_cli import PUT, Commands, engine

TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


def test_generations_are_marked_and_pruned_and_a_pruned_one_is_made_again(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        for number in range(4):
            commands("act", "a", PUT.replace("tea", f"tea {number}"))
            commands("snapshot", "a")
        assert "a@3 is marked 'before checkout'" in commands("mark", "a@3", "before checkout")
        assert "--remove" in commands("mark", "a@3", status=2)
        would = commands.json("prune", "a", "--keep", "last 1", "--dry-run")
        assert commands("prune", "a") == "nothing goes (all)\n"
        gone = commands.json("prune", "a", "--keep", "last 1")
        assert gone["pruned"] == would["pruned"]
        assert [(one["generation"], one["nearest"]) for one in gone["pruned"]] == [(2, "a@1"), (4, "a@3")]
        shown = commands.json("show", "a")["generations"]
        assert [one["pruned"] for one in shown] == [False, True, False, True, False]
        assert shown[2]["mark"] == "before checkout"
        assert "its content was pruned" in commands("show", "a@4")
        assert commands.json("restore", "a", "a@9", status=2)["error"]["code"] == "unknown_ref"
        assert commands.json("prune", "a", "--keep", "some", status=2)["error"]["code"] == "contract_error"
        made = commands.json("fork", "a@4")["children"][0]["made"]
        assert (made["verdict"], made["source"]["generation"], made["actions"]) == ("exact-observed", 3, 1)
        told = commands("log", "a")
        assert "pruned (last 1): @2, @4; each can be made again" in told
        assert "a@3 is marked 'before checkout'" in told
        commands("mark", "a@3", "--remove")
        assert commands.json("prune", "a", "--keep", "forks and marks")["pruned"] == []
    assert commands.json("audit", "--world")["clean"]


def test_what_is_kept_of_one_environment_is_said_on_the_command_line(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        refused = commands.json("create", "a", "--snapshots", "sometimes", status=2)["error"]
        assert refused["code"] == "contract_error"
        assert "'on demand', 'every action', 'every 5 actions' or 'when changed'" in refused["message"]
        commands("create", "a", "--snapshots", "every action", "--retention", "last 1")
        for number in range(3):
            commands("act", "a", PUT.replace("tea", f"tea {number}"))
        shown = commands.json("show", "a")["generations"]
        assert [one["pruned"] for one in shown] == [False, True, True, False]
        said = commands("keep", "a").splitlines()
        assert re.fullmatch(rf"snapshots: every action  \(since {TIME} UTC; the contract says 'on demand'\)", said[0])
        assert re.fullmatch(rf"retention: last 1  \(since {TIME} UTC; the contract says 'all'\)", said[1])
        said = commands("keep", "a", "--snapshots", "contract").splitlines()
        assert re.fullmatch(rf"snapshots: on demand  \(since {TIME} UTC\)", said[0])
        commands("act", "a", PUT)
        assert len(commands.json("show", "a")["generations"]) == 4
        assert "a retention is 'all', 'last 20' or" in commands("keep", "a", "--retention", "none", status=2)
        assert commands.json("keep", "a")["retention"] == "last 1"


def kept(commands: Commands, env: str) -> list[int]:
    """The numbers of its generations that are there."""
    return [number for number, one in enumerate(commands.json("show", env)["generations"], 1) if not one["pruned"]]


def test_what_is_kept_of_one_environment_holds_when_the_engine_is_started_again(
    tmp_path: Path, commands: Commands
) -> None:
    both = ("create", "a", "b", "--snapshots", "every action", "--retention", "last 1", "--key", "both")
    with engine(tmp_path, commands.state) as running:
        commands(*both)
        commands("create", "c")
        commands("keep", "b", "--retention", "contract")
        for env in ("a", "b", "c"):
            for number in range(3):
                commands("act", env, PUT.replace("tea", f"tea {number}"))
        assert [kept(commands, env) for env in ("a", "b", "c")] == [[1, 4], [1, 2, 3, 4], [1]]
        since = commands.json("ls")["environments"][0]["policies"]
        assert [since[name]["policy"] for name in ("snapshots", "retention")] == ["every action", "last 1"]
        for how in (signal.SIGKILL, signal.SIGTERM):
            running.end(how)
            assert commands.json("ls")["environments"][0]["policies"] == since, "no engine runs"
            told = commands("show", "a")
            assert re.search(rf"snapshots: every action, since {TIME} UTC\n  retention: last 1, since {TIME} ", told)
            running.start()
            said = commands.json("keep", "a")
            assert said["since"] == {name: since[name]["since"] for name in since}
            assert (said["snapshots"], said["retention"]) == ("every action", "last 1")
            commands(*both)
            for env in ("a", "b"):
                commands("restore", env, f"{env}@1")
            newest = commands.json("ls")["environments"][0]["generation"]
            assert kept(commands, "a") == [1, newest]
            assert kept(commands, "b") == list(range(1, newest + 1))
        commands("keep", "c", "--snapshots", "every action", "--key", "often")
        commands("keep", "c", "--snapshots", "contract")
        assert commands.json("keep", "c", "--snapshots", "every action", "--key", "often")["snapshots"] == "on demand"
        told = commands("log", "b")
        assert "from now on: snapshots every action, retention last 1" in told
        assert "from now on: snapshots every action, retention as the contract says" in told
        assert "--key needs --snapshots or --retention" in commands("keep", "a", "--key", "asks", status=2)
        refused = commands.json("keep", "a", "--snapshots", "now", "--retention", "all", status=2)["error"]
        assert (refused["code"], refused["facts"]["key"]) == ("contract_error", "snapshots")
        assert commands.json("keep", "a")["retention"] == "last 1", "nothing of it was chosen"
        commands("retire", "c")
        assert commands.json("keep", "c", "--retention", "all", status=2)["error"]["code"] == "environment_retired"
    assert commands.json("audit", "--world")["clean"]


def test_whatever_speaks_of_a_pruned_generation_leads_around_it(tmp_path: Path, commands: Commands) -> None:
    with engine(tmp_path, commands.state):
        commands("create", "a")
        for number in range(1, 5):
            commands("act", "a", json.dumps({"type": "add", "key": "count", "amount": number}))
            commands("snapshot", "a")
        before = commands.json("diff", "a@2", "a@4", status=1)["resources"]
        blamed = commands.json("blame", "a", "--item", "count")
        commands("prune", "a", "--keep", "last 1")
        assert commands.json("diff", "a@2", "a@4", status=1)["resources"] == before
        assert commands.json("blame", "a", "--item", "count")["action"] == blamed["action"]
        assert commands.json("replay", "a", "--to", "a@4")["verdict"] == "exact-observed"
        assert commands.json("export", "a", "--at", "a@4", "-o", str(tmp_path / "a.statefork"))["size"]["actions"] == 3
        assert commands.json("clone", "a@3", "c")["made"]["verdict"] == "exact-observed"
        commands("restore", "a", "a@4")
        for env, count in (("a", 6), ("c", 3)):
            assert commands.json("act", env, "get", "--key", "count")["value"] == count
    assert commands.json("audit", "--world")["clean"]
