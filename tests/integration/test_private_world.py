"""A site on private backends, through the engine and its gateway; also in the place of an adapter that is not had."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import statefork
from statefork.actions import Goto
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.resources.process.standing import started
from statefork.engine.errors import ContractError, MissingDependency
from tests.contract.process_kit import SERVER, gone
from tests.integration.test_cli import Commands, engine

pytestmark = pytest.mark.anyio

PROCESS = """
[contract]
name = "tracked"

[resources.tracker]
adapter = "process"
command = {command}
base = "base"
host = "tracker.example"
ready = "http /ready"
"""
FINER = """
[contract]
name = "tracked"

[resources.tracker]
adapter = "{adapter}"
host = "tracker.example"
private = {{ command = {command}, base = "base", ready = "http /ready" }}
"""
CACHE = """
[contract]
name = "tracked"

[resources.cache]
adapter = "valkey"
server = "no-such-valkey-server"
"""


def contract_at(folder: Path, text: str, **values: str) -> Path:
    command = json.dumps([sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"])
    (folder / "base").mkdir(exist_ok=True)
    (folder / "base" / "seeded").write_text("from the base")
    path = folder / "tracked.toml"
    path.write_text(text.format(command=command, **values))
    return path


async def put(env: Any, key: str, value: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.put(f"{env.base_url()}/keys/{key}", content=value)).raise_for_status()


async def get(env: Any, key: str) -> str | None:
    return await ask(env.base_url(), key)


async def ask(base_url: str, key: str) -> str | None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.get(f"{base_url}/keys/{key}")
        return answer.text if answer.status_code == 200 else None


@pytest.mark.parametrize("text", [PROCESS, FINER], ids=["declared", "stands in"])
async def test_environments_live_their_own_lives(tmp_path: Path, text: str) -> None:
    contract = contract_at(tmp_path, text, adapter="redmine")
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        one = await engine.create("one")
        two = await engine.create("two")
        await put(one, "issue", "first")
        assert await get(two, "issue") is None
        assert await get(two, "seeded") == "from the base"
        saved = await one.snapshot()
        (child,) = await engine.fork(saved, n=1)
        await put(one, "issue", "second")
        await put(child, "issue", "other")
        assert await get(child, "issue") == "other"
        await one.restore(saved)
        assert await get(one, "issue") == "first"
        base_url = one.base_url()
        await one.park()
        assert await ask(base_url, "issue") == "first", "who asks at the door binds it"
        await one.reset()
        assert await get(one, "issue") is None
        changes = (await engine.diff("one@1", saved)).resources["tracker"].changes
        assert [change.name for change in changes] == ["issue"]
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        child = engine.environment("one-f1")
        await child.activate()
        assert await get(child, "issue") == "other"
    assert statefork.audit(tmp_path / "state", world=True).clean


async def test_a_command_that_was_killed_is_started_again_from_the_last_generation(tmp_path: Path) -> None:
    async with statefork.open_engine(contract_at(tmp_path, PROCESS), state=tmp_path / "state") as engine:
        one = await engine.create("one")
        await put(one, "issue", "kept")
        await one.snapshot()
        await put(one, "issue", "lost")
        async with httpx.AsyncClient(trust_env=False) as client:
            server = int((await client.get(f"{one.base_url()}/pid")).text)
        os.kill(server, signal.SIGKILL)
        await gone(server)
        assert await get(one, "issue") == "kept"
        assert one.ref.generation == 3, "its tail was given up, and that is a generation"


async def test_doctor_and_manifest_say_that_it_stands_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = contract_at(tmp_path, FINER, adapter="redmine")
    assert invoke(["doctor", str(contract), "--state", str(tmp_path / "state"), "--json"]) == 0
    findings = {one["what"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["tracker (process)"]["grade"] == "slower"
    assert findings["tracker (process)"]["found"].startswith("private: in place of 'redmine', since unknown adapter")
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        await engine.create("one")
    show = ["show", "one@1", "--state", str(tmp_path / "state")]
    assert await anyio.to_thread.run_sync(invoke, [*show, "--json"]) == 0
    assert '"strategy": "private"' in capsys.readouterr().out
    assert await anyio.to_thread.run_sync(invoke, show) == 0
    assert "process (private)" in capsys.readouterr().out


async def test_without_one_the_error_says_what_to_install_or_declare(tmp_path: Path) -> None:
    bare = FINER.replace("private = ", "else = ")
    with pytest.raises(ContractError, match=r"unknown adapter 'redmine'.*private = \{ command"):
        async with statefork.open_engine(contract_at(tmp_path, bare, adapter="redmine"), state=tmp_path / "state"):
            pass
    with pytest.raises(MissingDependency) as caught:
        async with statefork.open_engine(contract_at(tmp_path, CACHE), state=tmp_path / "state"):
            pass
    assert "private = { command" in caught.value.hint


async def test_a_missing_program_is_stood_in_for(tmp_path: Path) -> None:
    text = CACHE + 'private = {{ command = {command}, base = "base", ready = "http /ready" }}\n'
    async with statefork.open_engine(contract_at(tmp_path, text), state=tmp_path / "state") as engine:
        one = await engine.create("one")
        assert one.bindings["cache"].adapter == "process"


@pytest.mark.parametrize(
    ("private", "says"),
    [
        ('{ command = "" }', "private.command: must name a program"),
        ('{ command = "serve", colour = "red" }', "unknown key 'colour'"),
        ('"serve"', "must be a table"),
    ],
)
async def test_a_wrong_private_backend_is_told_with_its_place(tmp_path: Path, private: str, says: str) -> None:
    contract = tmp_path / "tracked.toml"
    contract.write_text(f'[contract]\nname = "t"\n[resources.db]\nadapter = "redmine"\nprivate = {private}\n')
    with pytest.raises(ContractError, match=says):
        async with statefork.open_engine(contract, state=tmp_path / "state"):
            pass


PAGE = """
[resources.browser]
adapter = "browser"
depends_on = ["tracker"]
start = "http://tracker.example/visit"
"""


@pytest.mark.browser
async def test_a_browser_sees_its_own_environments_backend(tmp_path: Path) -> None:
    contract = contract_at(tmp_path, PROCESS + PAGE)
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        one = await engine.create("one")
        assert await get(one, "visits") is None, "what a page's first loading writes is taken back"
        await put(one, "issue", "first")
        seen = await one.act(Goto("http://tracker.example/keys/issue"))
        assert "first" in seen.text
        (child,) = await engine.fork(await one.snapshot(), n=1)
        await put(child, "issue", "other")
        assert "other" in (await child.act(Goto("http://tracker.example/keys/issue"))).text
        assert "first" in (await one.act(Goto("http://tracker.example/keys/issue"))).text
        await one.reset()
        assert await get(one, "visits") is None
        assert "first" not in (await one.act(Goto("http://tracker.example/keys/issue"))).text
    assert statefork.audit(tmp_path / "state", world=True).clean


def test_a_killed_engine_leaves_no_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands(tmp_path / "state", capsys)
    text = contract_at(tmp_path, PROCESS).read_text()
    with engine(tmp_path, commands.state, text) as running:
        commands("create", "one")
        site = commands.json("show", "one")["sites"]["tracker.example"]
        httpx.put(f"{site}/keys/issue", content="kept", trust_env=False).raise_for_status()
        commands("snapshot", "one")
        httpx.put(f"{site}/keys/issue", content="lost", trust_env=False).raise_for_status()
        pids = [
            int(httpx.get(f"{site}/pid", trust_env=False).text),
            int(httpx.post(f"{site}/spawn", trust_env=False).text),
        ]
        running.end(signal.SIGKILL)
    with engine(tmp_path, commands.state, text):
        assert not any(map(started, pids)), "the opening waits for the end of what was left"
        commands("fork", "one", "-n", "1")
        site = commands.json("show", "one-f1")["sites"]["tracker.example"]
        assert httpx.get(f"{site}/keys/issue", trust_env=False).text == "kept"
    assert statefork.audit(tmp_path / "state", world=True).clean
