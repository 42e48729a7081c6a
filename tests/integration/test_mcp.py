"""The Model Context Protocol with its own client: an agent's two tools, an operator's, and what neither reaches."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Act, Create, Drained, Named
from statefork.adapters.interfaces.mcp.tools import agent_tools, operator_tools
from statefork.replay.auditing import audit
from tests.integration.test_cli import PROGRAM, READY_S, engine, read_line

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]
CONTRACT = '[contract]\nname = "notes"\n[resources.page]\nadapter = "memory"\ninitial = { greeting = "hello" }\n'
PUT = {"type": "put", "key": "basket", "value": "tea"}
OPERATORS = {"ls", "show", "create", "snapshot", "restore", "reset", "fork", "retire", "diff", "replay", "audit"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The client's; the server's is trio."""
    return "asyncio"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a running engine."""
    folder = tmp_path_factory.mktemp("mcp")
    with engine(folder, folder / "state", CONTRACT):
        yield folder / "state"
    assert audit(folder / "state").clean


@pytest.fixture
def env(state: Path, request: pytest.FixtureRequest) -> str:
    """An environment of the test's own."""
    name = request.node.name.replace("_", "-")[:40].rstrip("-")
    Control(state).ask("create", Create(name=name))
    return name


def over_stdio(state: Path, *words: str) -> Client:
    """A client that starts the server itself, as they do."""
    args = [*PROGRAM[1:], "mcp", *words, "--state", str(state)]
    return Client(StdioServerParameters(command=PROGRAM[0], args=args))


@asynccontextmanager
async def over_http(state: Path, *words: str, token: str | None = None) -> AsyncIterator[tuple[Client, str]]:
    """A client of a server that listens; and where."""
    command = [*PROGRAM, "mcp", *words, "--http", "0", "--state", str(state)]
    async with await anyio.open_process(command) as process:
        try:
            assert process.stdout is not None
            line = b""
            while not line.endswith(b"\n"):
                line += await process.stdout.receive()
            url = line.decode().split()[2].rstrip(";")
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=READY_S) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    yield client, url
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def told(result: types.CallToolResult) -> Any:
    """What a tool said, for machines."""
    return result.structured_content


async def tools_of(client: Client) -> set[str]:
    """Their names; each has an object as its arguments."""
    tools = (await client.list_tools()).tools
    assert all(tool.input_schema["type"] == "object" and tool.description for tool in tools)
    return {tool.name for tool in tools}


async def test_an_agent_looks_and_acts(state: Path, env: str) -> None:
    async with over_stdio(state, "agent", env) as agent:
        assert await tools_of(agent) == {"observe", "act"}
        assert told(await agent.call_tool("act", {"action": PUT}))["value"] == "tea"
        seen = await agent.call_tool("observe", {"screenshot": True})
        assert told(seen)["value"] == {"greeting": "hello", "basket": "tea"}
        assert isinstance(seen.content[0], types.TextContent)
        assert '"basket": "tea"' in seen.content[0].text


async def test_an_agent_reaches_nothing_else(state: Path, env: str) -> None:
    before = [json.dumps(one) for one in await listed(state)]
    async with over_stdio(state, "agent", env) as agent:
        for name in sorted(OPERATORS | {"park", "gc", "import", "export", "status", ""}):
            with pytest.raises(MCPError, match="there is no tool"):
                await agent.call_tool(name, {"env": env, "ref": env, "n": 1})
        for given in ({"action": PUT, "env": "another"}, {"ref": f"{env}@1"}, {"action": "reset"}, {}):
            result = await agent.call_tool("act", given)
            assert (result.is_error, told(result)["code"]) == (True, "usage")
        for kind in ("reset", "fork", "restore", "snapshot", "dance"):
            result = await agent.call_tool("act", {"action": {"type": kind, "ref": f"{env}@1"}})
            assert (result.is_error, told(result)["code"]) == (True, "invalid_action")
        assert (await agent.call_tool("observe", {})).is_error is not True
    assert [json.dumps(one) for one in await listed(state)] == before


async def listed(state: Path) -> list[Any]:
    """What an operator sees."""
    async with over_stdio(state, "operator") as operator:
        found: list[Any] = told(await operator.call_tool("ls", {}))["environments"]
        return found


async def test_an_operator_forks_compares_and_checks(state: Path, env: str) -> None:
    async with over_stdio(state, "operator") as operator:
        assert await tools_of(operator) == OPERATORS
        Control(state).ask("act", Act(env=env, action=dict(PUT)))
        assert told(await operator.call_tool("snapshot", {"env": env, "key": "once"}))["ref"] == f"{env}@2"
        assert told(await operator.call_tool("snapshot", {"env": env, "key": "once"}))["ref"] == f"{env}@2"
        children = told(await operator.call_tool("fork", {"ref": f"{env}#1", "n": 2}))["children"]
        assert [child["env"] for child in children] == [f"{env}-f1", f"{env}-f2"]
        found = told(await operator.call_tool("diff", {"before": f"{env}@1", "after": f"{env}-f1"}))
        assert [one["name"] for one in found["resources"]["page"]["changes"]] == ["basket"]
        assert told(await operator.call_tool("replay", {"ref": f"{env}-f1"}))["exact"]
        assert told(await operator.call_tool("restore", {"env": env, "ref": f"{env}@1"}))["ref"] == f"{env}@3"
        assert told(await operator.call_tool("reset", {"env": f"{env}-f1"}))["generation"] == 2
        assert told(await operator.call_tool("retire", {"env": f"{env}-f2"}))["env"] == f"{env}-f2"
        assert told(await operator.call_tool("show", {"env": env}))["generation"] == 3
        assert told(await operator.call_tool("audit", {"world": True}))["clean"]
        refused = await operator.call_tool("fork", {"ref": f"{env}@9"})
        assert (refused.is_error, told(refused)["code"]) == (True, "unknown_ref")
        refused = await operator.call_tool("fork", {"ref": env, "lent": "to me"})
        assert (refused.is_error, told(refused)["code"]) == (True, "usage")


async def test_over_http_an_operator_bears_the_token(state: Path, env: str) -> None:
    async with over_http(state, "agent", env) as (agent, url):
        assert told(await agent.call_tool("act", {"action": PUT}))["value"] == "tea"
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, headers={"Host": "evil.example"})).status_code == 421
            assert (await http.post(url, headers={"Origin": "http://evil.example"})).status_code == 403
            assert (await http.post(url, content=b"{")).status_code in (400, 406)
    (state / "http.token").write_text("t" * 40)
    async with over_http(state, "operator", token="t" * 40) as (operator, url):
        assert told(await operator.call_tool("show", {"env": env}))["actions"] == 1
        async with httpx2.AsyncClient() as http:
            answer = await http.post(url, json={})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")


def test_a_client_that_leaves_in_mid_step_leaves_a_whole_history(
    state: Path, env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server is killed, too. The action goes on in the engine, until somebody ends it: its outcome is unknown."""
    server = [*PROGRAM, "mcp", "agent", env, "--state", str(state)]
    call = {"name": "act", "arguments": {"action": {"type": "wait", "key": "bell"}}}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None

        def say(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()

        def call_method(method: str, params: dict[str, Any], **more: Any) -> None:
            say(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}))

        say("this is no message")
        call_method("initialize", hello, id=1)
        while '"id":1' not in read_line(process).replace(" ", ""):
            pass
        call_method("notifications/initialized", {})
        call_method("tools/call", call, id=2)
        while Control(state).ask("describe", Named(env=env))["actions"] != 1:  # until it has begun
            pass
        process.kill()
    Control(state).ask("reset", Drained(env=env, then="revoke", deadline_s=0.1))
    assert invoke(["log", env, "--json", "--state", str(state)]) == 0
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert [one["outcome"] for one in events if one["type"] == "action.ended/1"] == ["unknown"]
    assert Control(state).ask("act", Act(env=env, action=dict(PUT)))["value"] == "tea"


def test_the_example_runs(state: Path, env: str) -> None:
    example = [sys.executable, str(ROOT / "examples" / "mcp_agent.py"), env, str(state)]
    done = subprocess.run(example, check=True, capture_output=True, text=True, timeout=READY_S)
    assert done.stdout.splitlines() == [
        "tools: observe, act",
        "seen: {'greeting': 'hello', 'basket': 'tea'}",
        "refused: True invalid_action",
    ]


def test_no_tool_of_an_agent_is_an_operators(tmp_path: Path) -> None:
    agents = {tool.name for tool in agent_tools(tmp_path, "a")}
    assert agents.isdisjoint(tool.name for tool in operator_tools(tmp_path))
    assert {field for tool in agent_tools(tmp_path, "a") for field in tool.arguments.__struct_fields__} == {
        *("action", "screenshot", "timeout_s"),
    }


async def test_what_is_missing_is_the_result_of_each_call_until_it_is_there(tmp_path: Path) -> None:
    async with over_stdio(tmp_path / "state", "agent", "a") as agent, over_stdio(tmp_path / "state", "operator") as ops:
        for client, tool in ((agent, "observe"), (ops, "ls")):
            result = await client.call_tool(tool, {})
            assert (result.is_error, told(result)["code"]) == (True, "no_engine")
        with engine(tmp_path, tmp_path / "state", CONTRACT):
            assert told(await agent.call_tool("observe", {}))["code"] == "unknown_environment"
            await ops.call_tool("create", {"name": "a"})
            assert told(await agent.call_tool("observe", {}))["value"] == {"greeting": "hello"}


def test_a_person_at_a_terminal_hears_of_it_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert invoke(["mcp", "agent", "a", "--state", str(tmp_path)]) == 2
    assert "error[no_engine]" in capsys.readouterr().err


@pytest.mark.parametrize("example", ["mcp_agent", "http_client"])
def test_an_example_without_arguments_says_which_it_takes(example: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=READY_S)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith(f"usage: python {example}.py ")


def test_the_example_says_in_a_line_that_no_engine_runs(tmp_path: Path) -> None:
    example = [sys.executable, str(ROOT / "examples" / "mcp_agent.py"), "a", str(tmp_path)]
    done = subprocess.run(example, check=False, capture_output=True, text=True, timeout=READY_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error[no_engine]: no engine runs on the state directory")
    assert "Traceback" not in done.stderr


def test_without_an_engine_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["agent", "a"], ["operator"]):
        assert invoke(["mcp", *words, "--http", "0", "--state", str(tmp_path)]) == 2
        assert "error[no_engine]" in capsys.readouterr().err
