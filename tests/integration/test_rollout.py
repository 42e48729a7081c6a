"""``statefork rollout``: trajectories as trainers read them; killed, given again, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.journal.events import EnvironmentRetired
from statefork.journal.store import open_state
from tests.integration.rollout_kit import lines, task, written

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _agents_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a module ``agent`` of its own, in its own directory."""
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


class Rolling:
    """The command, in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._capsys = capsys
        monkeypatch.chdir(folder)

    def words(self, *more: str, policy: str = "agent:act") -> list[str]:
        given = ["--policy", policy, "--tasks", "tasks.json", "--out", "out", "--world", "numbers.toml"]
        return ["rollout", *given, *more]

    def __call__(self, *more: str, status: int = 0, policy: str = "agent:act") -> Any:
        self._capsys.readouterr()
        got = invoke([*self.words(*more, policy=policy), "--json"])
        told = self._capsys.readouterr()
        assert got == status, told
        return json.loads(told.out)

    @property
    def ids(self) -> list[str]:
        return [one["id"] for one in lines(self.out / "trajectories.jsonl")]


@pytest.fixture
def rolling(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rolling:
    return Rolling(written(tmp_path, task(1, "count to 2"), task("b/x", "count badly to 1")), capsys, monkeypatch)


@pytest.mark.parametrize("policy", ["agent:act", "agent:act_async", "agent:Agent"])
def test_what_was_done_seen_and_rewarded_is_a_line(rolling: Rolling, policy: str) -> None:
    told = rolling("-n", "2", policy=policy)
    assert (told["complete"], told["wanted"], told["done"], told["skipped"], told["reward"]) == (True, 2, 2, 0, 1.0)
    first, second = lines(rolling.out / "trajectories.jsonl")
    assert (first["id"], first["task"], first["attempt"], first["goal"]) == ("1/1", "1", 1, "count to 2")
    assert first["actions"] == [{"type": "add", "key": "count", "amount": 1}] * 2
    assert [one["value"] for one in first["observations"]] == [{"count": 0}, 1, 2]
    assert (first["rewards"], first["reward"], first["answer"], first["stopped"]) == ([0, 1], 1.0, "It is 2", "policy")
    env = first["env"]
    assert first["refs"] == [f"{env}@1", f"{env}#1", f"{env}#2"]
    assert first["end"] == f"{env}@2"
    roles = [message["role"] for message in first["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert first["messages"][0]["content"].startswith("count to 2\n\n")
    assert json.loads(first["messages"][-1]["content"]) == {"type": "stop", "answer": "It is 2"}
    assert [step["outcome"] for step in second["steps"]] == ["invalid", "failed", "ok"]
    assert "There are: " in second["steps"][0]["error"]
    assert (second["steps"][0]["number"], second["steps"][0]["ref"]) == (0, "")
    assert second["refs"] == [f"{second['env']}@1", f"{second['env']}#1", f"{second['env']}#2"]
    assert rolling("-n", "2", policy=policy)["skipped"] == 2
    assert (rolling.out / "parts").joinpath("b%2Fx-1.json").exists()


def test_several_of_each_and_the_best_of_them(rolling: Rolling) -> None:
    written(rolling.folder, task(1, "count wrongly to 3"), task(2, "count to 1"))
    told = rolling("--best-of", "3", "--steps-max", "5", "-n", "4", "--slots", "2")
    assert (told["done"], told["reward"]) == (6, round(5 / 6, 4))
    assert rolling.ids == ["1/1", "1/2", "1/3", "2/1", "2/2", "2/3"]
    assert [one["id"] for one in lines(rolling.out / "best.jsonl")] == ["1/2", "2/1"]
    told = rolling("--best-of", "4")
    assert (told["done"], told["skipped"]) == (2, 6), "more of each go on from what is there"
    assert len(rolling.ids) == 8


def test_at_the_most_steps_it_is_judged_as_it_is(rolling: Rolling) -> None:
    told = rolling("--steps-max", "1")
    assert told["reward"] == 0.0
    assert {(one["stopped"], len(one["steps"])) for one in lines(rolling.out / "trajectories.jsonl")} == {
        ("steps_max", 1)
    }


def test_one_that_fails_keeps_no_other_and_is_tried_again(rolling: Rolling) -> None:
    written(rolling.folder, task(1, "raise at 1"), task(2, "count to 1"))
    told = rolling(status=1)
    (failure,) = told["failed"]
    assert (failure["task"], failure["attempt"], failure["code"]) == ("1", 1, "policy_failed")
    assert "ValueError: no idea" in failure["message"]
    assert rolling.ids == ["2/1"]
    (rolling.folder / "go").touch()
    told = rolling()
    assert (told["done"], told["skipped"], told["failed"]) == (1, 1, [])
    assert rolling.ids == ["1/1", "2/1"]


def test_killed_in_the_middle_it_goes_on(rolling: Rolling) -> None:
    wanted = [task(number, f"count to {number}") for number in (1, 2, 3)]
    written(rolling.folder, *wanted, task("slow", "halt on the way to 2"), task("late", "halt on the way to 3"))
    command = [sys.executable, "-m", "statefork", *rolling.words("-n", "5")]
    with subprocess.Popen(command, cwd=rolling.folder, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            parts = rolling.out / "parts"
            while not (rolling.folder / "halted").exists() or len(list(parts.glob("*.json"))) < 3:
                assert process.poll() is None, process.stderr and process.stderr.read()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    complete = {path.name: path.read_bytes() for path in parts.glob("*.json")}
    assert sorted(complete) == ["1-1.json", "2-1.json", "3-1.json"]
    torn = [parts / "slow-1.json.abcd.partial", rolling.out / "trajectories.jsonl.abcd.partial"]
    for path in torn:  # as if it had been killed a moment later
        path.write_bytes(complete["1-1.json"][:20])
    (rolling.folder / "go").touch()
    told = rolling("-n", "5")
    assert (told["complete"], told["done"], told["skipped"], told["reward"]) == (True, 2, 3, 1.0)
    assert rolling.ids == ["1/1", "2/1", "3/1", "slow/1", "late/1"]
    assert {name: (parts / name).read_bytes() for name in complete} == complete
    assert not any(path.exists() for path in torn)
    envs = [one["env"] for one in lines(rolling.out / "trajectories.jsonl")]
    assert len(set(envs)) == 5
    assert len(retired(rolling.out / "state")) == 7, "also the two that the killed run left"


def retired(state: Path) -> set[str]:
    import anyio

    async def read() -> set[str]:
        async with open_state(state, write=False) as view:
            events = [recorded.event async for recorded in view.journal.read()]
        return {event.env for event in events if isinstance(event, EnvironmentRetired)}

    return anyio.run(read)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--policy", "agent:nothing"), "policy_failed", "no attribute 'nothing'"),
        (("--policy", "nowhere:act"), "policy_failed", "No module named 'nowhere'"),
        (("--policy", "act"), "policy_failed", "module:function"),
        (("--judge", "who"), "policy_failed", "there is no judge 'who'"),
        (("--tasks", "numbers.toml"), "tasks_unreadable", "not valid JSON"),
        (("--site", "shopping"), "usage", "is not NAME=HOST"),
        (("--world", "nowhere.toml"), "contract_error", "no contract at"),
        (("--out", "agent.py"), "rollouts_differ", "is a file"),
        (("--at", "nobody@2"), "unknown_environment", "nobody"),
    ],
)
def test_what_can_not_be_begun_is_told(rolling: Rolling, more: tuple[str, str], code: str, said: str) -> None:
    error = rolling(*more, *(("--state", "state") if more[0] == "--out" else ()), status=2)["error"]
    assert error["code"] == code
    assert said in f"{error['message']} {error['hint']}"


def test_a_directory_holds_the_rollouts_of_one_policy_and_one_file(rolling: Rolling) -> None:
    rolling()
    error = rolling(policy="agent:Agent", status=2)["error"]
    assert (error["code"], "of the policy agent:act" in error["message"]) == ("rollouts_differ", True)
    assert "of new environments" in rolling("--at", "other@2", status=2)["error"]["message"]
    written(rolling.folder, task(1, "count to 4"))
    assert "another task file" in rolling(status=2)["error"]["message"]


def test_tasks_that_can_not_be_rolled_out_are_told_all_at_once(rolling: Rolling) -> None:
    wrong = [{"intent": "x"}, task(1, ""), task(2, "go", eval_types=["url_match"], reference_url="__MARS__/x"), 3]
    (rolling.folder / "tasks.json").write_text(json.dumps([*wrong, task(5, "a"), task(5, "b")]))
    message = rolling(status=2)["error"]["message"]
    for said in ("task_id must be", "intent must be", "__MARS__ stands for no host", "is an object", "is there twice"):
        assert said in message
    (rolling.folder / "tasks.json").write_text(json.dumps([task(1, "a", eval_types=["program_html"])]))
    assert "--judge webarena" in rolling(status=2)["error"]["hint"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_ends_though_a_policy_blocks(rolling: Rolling, how: signal.Signals) -> None:
    written(rolling.folder, task(1, "count to 1"), task("slow", "halt on the way to 2"))
    command = [sys.executable, "-m", "statefork", *rolling.words("-n", "2")]
    with subprocess.Popen(command, cwd=rolling.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while not (rolling.folder / "halted").exists() or not list((rolling.out / "parts").glob("*.json")):
                assert process.poll() is None, process.stderr and process.stderr.read()
            process.send_signal(how)
            _, told = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert (process.returncode, told.decode().splitlines()[-1]) == (130, "interrupted; run it again to go on")
    assert rolling.ids == ["1/1"]
    assert len(retired(rolling.out / "state")) == 2
    (rolling.folder / "go").touch()
    assert rolling()["skipped"] == 1
