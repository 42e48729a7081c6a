"""``statefork up --http``: where it says that it listens, its token, and what it logs."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control.client import EngineLost, NoEngine
from statefork.adapters.interfaces.http.client import Client
from statefork.adapters.interfaces.http.names import TOKEN_NAME, TOKEN_VARIABLE
from statefork.adapters.interfaces.http.problems import Unauthorised
from tests.integration.http_kit import CONTRACT as MEMORY
from tests.integration.test_cli import CONTRACT, READY_S, Engine, engine


def test_it_is_served_beside_the_control_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    state = tmp_path / "state"
    with engine(tmp_path, state, CONTRACT, "--http", "0", "--log-format", "json") as running:
        told = running.ready["http"]
        token_file = Path(told["token_file"])
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        with Client(told["url"], token=token_file.read_text().strip()) as client:
            client.create("a")
            client.act("a", {"type": "put", "key": "basket", "value": "tea"})
            assert client.snapshot("a")["ref"] == "a@2"
            assert client.audit(world=True)["clean"]
            token_file.chmod(0o644)
            assert "http.token is open to other users" in str(client.audit(world=True)["findings"])
        assert invoke(["ls", "--state", str(state)]) == 0
        assert running.process is not None
        running.process.terminate()
        _, logged = running.process.communicate(timeout=READY_S)
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {("a", 1), ("a", 2)} <= {(line["environment"], line["generation"]) for line in lines}
    assert any(line["message"].startswith("a@2 published by snapshot") for line in lines)
    assert running.process.returncode == 0


def test_events_go_on_where_they_were_left_also_in_the_next_engine(tmp_path: Path) -> None:
    seen: list[int] = []

    def listen(running: Engine, until_type: str) -> None:
        with client_of(running) as client:
            for event in client.events(env="a", after=seen[-1] if seen else 0):
                seen.append(event["position"])
                if event["event"]["type"] == until_type:
                    return

    with engine(tmp_path, tmp_path / "state", CONTRACT, "--http", "0") as running:
        with client_of(running) as client:
            client.create("a")
        listen(running, "environment.activated/1")
        running.end()
    with engine(tmp_path, tmp_path / "state", CONTRACT, "--http", "0") as running:
        with client_of(running) as client:
            client.retire("a")
            listen(running, "environment.retired/1")
            logged = [one["position"] for one in client.log(env="a", limit=1000)["events"]]
    assert seen == logged


def test_what_a_killed_engine_did_not_answer_is_given_again_with_its_key(tmp_path: Path) -> None:
    """An action that was under way is lost by name; a command is done once."""
    hanging: list[type[Exception]] = []
    with engine(tmp_path, tmp_path / "state", CONTRACT, "--http", "0") as running:
        with client_of(running) as client:
            client.create("a", key="made")

        def hang() -> None:
            with client_of(running) as client:
                try:
                    client.act("a", {"type": "wait", "key": "bell"})
                except EngineLost as error:
                    hanging.append(type(error))

        agent = threading.Thread(target=hang)
        agent.start()
        with client_of(running) as client:
            while "action.begun/1" not in str(client.log(env="a", limit=1000)):  # until it has begun, on disk
                pass
            running.end(signal.SIGKILL)
            agent.join(READY_S)
            with pytest.raises(NoEngine):
                client.status()
    assert hanging == [EngineLost]
    with engine(tmp_path, tmp_path / "state", CONTRACT, "--http", "0") as running:
        assert running.ready["recovered"]["lost"] == {"a": [1]}
        with client_of(running) as client:
            assert client.create("a", key="made")["env"] == "a"
            assert client.audit(world=True)["clean"]


def client_of(running: Engine) -> Client:
    """A client with the token of the state directory."""
    return Client(running.ready["http"]["url"], token=(running.state / TOKEN_NAME).read_text().strip())


def test_a_token_that_is_given_is_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "given")
    with engine(tmp_path, tmp_path / "state", CONTRACT, "--http", "127.0.0.1:0", "--http-name", "me.example") as one:
        assert one.ready["http"]["token_file"] is None
        assert not (tmp_path / "state" / "http.token").exists()
        with Client(one.ready["http"]["url"]) as client:
            assert client.status()["contract"] == "notes"
        with Client(one.ready["http"]["url"], token="other") as client, pytest.raises(Unauthorised):
            client.status()


@pytest.mark.parametrize("address", ["example.com:80", "no", "192.0.2.7:0"])
def test_where_it_can_not_listen_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str], address: str) -> None:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    (tmp_path / "notes.sqlite3").touch()
    up = ["up", str(tmp_path / "notes.toml"), "--state", str(tmp_path / "state"), "--http", address]
    assert invoke(up) == 2
    assert "error[usage]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--openenv", "0", "--openenv-from", "nosuch@1"], "error[unknown_environment]: "),
        (["--openenv-from", "a@1"], "error[usage]: --openenv-from means nothing without --openenv"),
        (["--openenv-max", "2"], "error[usage]: --openenv-max means nothing without --openenv"),
    ],
)
def test_episodes_that_could_not_begin_are_not_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "notes.toml").write_text(MEMORY)
    assert invoke(["up", str(tmp_path / "notes.toml"), "--state", str(tmp_path / "state"), *options]) == 2
    assert said in capfd.readouterr().err


def test_a_moment_that_ended_with_its_engine_is_told_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    with engine(tmp_path, state, MEMORY):
        assert invoke(["create", "a", "--state", str(state)]) == 0
    up = ["up", str(tmp_path / "notes.toml"), "--state", str(state), "--openenv", "0", "--openenv-from", "a@1"]
    assert invoke(up) == 2
    assert "error[usage]: --openenv-from a@1: no episode can begin with it: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["up", "notes.toml", "--http", "0"], "pip install 'statefork[http]'"),
        (["up", "notes.toml", "--openenv", "0"], "pip install 'statefork[http]'"),
        (["mcp", "agent", "a"], "pip install 'statefork[mcp]'"),
    ],
)
def test_what_is_not_installed_is_named(tmp_path: Path, words: list[str], hint: str) -> None:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    done = bare(f"from statefork.adapters.interfaces.cli.main import invoke; sys.exit(invoke({words}))", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error[missing_dependency]: ")
    assert hint in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_client_needs_nothing_that_serves(tmp_path: Path) -> None:
    asks = "from statefork.adapters.interfaces.http.client import Client; Client('http://127.0.0.1:1').status()"
    last = bare(asks, tmp_path).stderr.splitlines()[-1]
    assert last.startswith("statefork.adapters.interfaces.control.client.NoEngine: nobody answers"), last


def bare(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a program does where the extras are not installed."""
    missing = ("hypercorn", "mcp", "prometheus_client", "starlette")
    program = f"import sys; sys.modules.update(dict.fromkeys({missing}))\n{code}"
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
