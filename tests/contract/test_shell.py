"""Commands that agents run in terminals: what is seen of them, what they can't reach, and that all of them ends."""

from __future__ import annotations

import base64
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import statefork
from statefork.actions import Run
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.resources.process.cgroups import parent_of_leaves
from statefork.adapters.resources.process.keeper import descendants
from statefork.adapters.resources.process.standing import started
from statefork.engine.errors import ActionFailed, InvalidAction
from statefork.replay.auditing import audit
from tests.contract.process_kit import until
from tests.integration.document_kit import Shell, blocks

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/run-commands.md"
KINDS = [
    "engine",
    pytest.param("own", marks=pytest.mark.root),
]


@pytest.fixture(params=KINDS)
def user(request: pytest.FixtureRequest) -> str:
    """As whom commands run."""
    return str(request.param)


def contract(folder: Path, **options: Any) -> Path:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in options.items()
    ]
    path = folder / "box.toml"
    path.write_text('[contract]\nname = "box"\n[resources.box]\nadapter = "shell"\n' + "\n".join(lines) + "\n")
    return path


async def said(env: Environment, command: str | list[str], **fields: Any) -> dict[str, Any]:
    """What one command told."""
    value: Any = (await env.act(Run(command, **fields))).value
    assert isinstance(value, dict)
    return value


async def test_what_a_command_says_is_seen(tmp_path: Path, user: str) -> None:
    async with statefork.open_engine(contract(tmp_path, user=user), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        seen = await env.act(Run("echo out; echo err >&2; exit 3"))
        assert seen.value == {"status": 3, "stdout": "out\n", "stderr": "err\n"}
        assert seen.title == "status 3"
        assert seen.text == "out\nerr\n[status 3]\n"
        assert (await said(env, ["no-such-program"]))["status"] == 127
        assert (await said(env, ["printf", "%s|", "a b", "*"]))["stdout"] == "a b|*|"
        binary = bytes(range(256))
        await env.act(Run("cat > blob", stdin=base64.b64encode(binary).decode(), stdin_encoding="base64"))
        seen = await env.act(Run(["cat", "blob"]))
        assert seen.part("stdout") == binary
        assert (await said(env, "cat", stdin="grüße"))["stdout"] == "grüße"
        await env.act(Run(["mkdir", "-p", "deep/er"]))
        assert (await said(env, "basename $PWD; echo $COLOUR", cwd="deep/er", environment={"COLOUR": "red"}))[
            "stdout"
        ] == "er\nred\n"
        assert (await env.observe()).text == "blob\ndeep/"
        for cwd, words in (
            ("nowhere", "no directory"),
            ("../..", "out of the tree"),
            ("/etc", "out of the tree"),
            ("blob", "no directory"),
            ("a" * 300, "no directory"),
            ("a/" * 3000, "no directory"),
        ):
            with pytest.raises(ActionFailed, match=words):
                await env.act(Run("true", cwd=cwd))


async def test_a_long_output_is_in_the_parts_and_a_longer_one_is_cut(tmp_path: Path) -> None:
    path = contract(tmp_path, user="engine", output_bytes_max=100_000)
    async with statefork.open_engine(path, state=tmp_path / "state") as engine:
        env = await engine.create("a")
        seen = await env.act(Run("head -c 50000 /dev/zero | tr '\\0' x"))
        assert isinstance(seen.value, dict)
        assert seen.value["shortened"] == ["stdout"]
        assert "truncated" not in seen.value
        assert seen.part("stdout") == b"x" * 50_000
        seen = await env.act(Run("head -c 5000000 /dev/zero"))
        assert isinstance(seen.value, dict)
        assert seen.value["truncated"] is True
        assert len(seen.part("stdout")) == 100_000


async def test_forks_resets_and_replays(tmp_path: Path, user: str) -> None:
    async with statefork.open_engine(contract(tmp_path, user=user), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        await env.act(Run("mkdir notes; echo one > notes/first"))
        await env.act(Run("echo two >> notes/first; cat notes/first"))
        (left,) = await engine.fork("a")
        await left.act(Run("echo left >> notes/first"))
        (before,) = await engine.fork("a#1")  # nobody saved that moment
        assert before.made is not None
        assert before.made.verdict == "exact-observed"
        assert [(await said(one, "cat notes/first"))["stdout"] for one in (env, left, before)] == [
            "one\ntwo\n",
            "one\ntwo\nleft\n",
            "one\n",
        ]
        assert (await engine.replay(left.name)).exact
        await env.reset()
        assert (await said(env, "ls -A"))["stdout"] == ""
    assert audit(tmp_path / "state").clean


@pytest.mark.root
async def test_variables_tell_nothing_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_ENGINE", "hidden")
    async with statefork.open_engine(contract(tmp_path, user="own"), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        told = (await said(env, "env"))["stdout"]
        assert str(tmp_path) not in told or parent_of_leaves()[0] is None
        assert "hidden" not in told
        missing = await said(env, "no-such-program")
        assert (missing["status"], "not found" in missing["stderr"]) == (127, True)


async def test_long_words_and_deep_directories(tmp_path: Path, user: str) -> None:
    async with statefork.open_engine(contract(tmp_path, user=user), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        assert (await said(env, ["true", *["x" * 160] * 9900]))["status"] == 0
        deep = "import os\nos.chdir(os.environ['TMPDIR'])\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
        assert (await said(env, ["python3", "-c", deep]))["status"] == 0
        assert (await said(env, 'ls -A "$TMPDIR"'))["stdout"] == ""


@pytest.mark.root
async def test_nothing_is_left_in_shared_memory_or_shared_places(tmp_path: Path) -> None:
    leave = "import ctypes; libc = ctypes.CDLL(None)\nassert libc.shmget(0x5F5F, 4096, 0o1666) >= 0"
    find = "import ctypes; libc = ctypes.CDLL(None)\nassert libc.shmget(0x5F5F, 4096, 0o666) < 0"
    async with statefork.open_engine(contract(tmp_path, user="own"), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        assert (await said(env, ["python3", "-c", leave]))["status"] == 0
        assert (await said(env, ["python3", "-c", find]))["status"] == 0
        await env.act(Run("echo x > /run/lock/left"))
        assert (await said(env, "ls -A /run/lock"))["stdout"] == ""


@pytest.mark.root
async def test_paths_are_the_same_in_all_environments(tmp_path: Path) -> None:
    async with statefork.open_engine(contract(tmp_path, user="own"), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        seen = await said(env, "pwd; echo $HOME $TMPDIR; touch here $TMPDIR/there; ls . /tmp")
        assert seen["stdout"] == "/home/agent\n/home/agent /tmp\n.:\nhere\n\n/tmp:\nthere\n"
        assert (await said(env, "ls . /tmp"))["stdout"] == ".:\nhere\n\n/tmp:\n"  # only the tree is kept
        assert (await engine.replay("a")).exact


async def test_nothing_outlives_a_command(tmp_path: Path, user: str) -> None:
    async with statefork.open_engine(contract(tmp_path, user=user), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        before = set(descendants(os.getpid()))
        seen = await said(env, "(setsid sh -c 'env -i setsid sleep 600' &) ; sleep 600 & echo begun")
        assert seen == {"status": 0, "stdout": "begun\n", "stderr": ""}
        assert set(descendants(os.getpid())) == before
        with pytest.raises(ActionFailed, match="did not end within 300 ms"):
            await env.act(Run("echo x > written; setsid sleep 600", timeout_ms=300))
        assert set(descendants(os.getpid())) == before
        assert (await said(env, "cat written"))["stdout"] == "x\n"
        began = anyio.Event()

        async def act() -> None:
            began.set()
            await env.act(Run("touch begun; sleep 600"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(act)
            await until(Path(str(env.bindings["box"].address["path"]), "begun").exists)
            tasks.cancel_scope.cancel()
        assert set(descendants(os.getpid())) == before
        assert (await said(env, "ls"))["stdout"] == "begun\nwritten\n"


@pytest.mark.root
async def test_who_is_in_one_reaches_no_other_and_no_secret(tmp_path: Path) -> None:
    path = contract(tmp_path, user="own", processes_max=40, network="own")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    door = listener.extra(anyio.abc.SocketAttribute.local_port)
    (tmp_path / "secret").write_text("of somebody's")
    async with statefork.open_engine(path, state=tmp_path / "state") as engine:
        one, other = await engine.create("one"), await engine.create("other")
        await other.act(Run("echo mine > private"))
        theirs = str(other.bindings["box"].address["path"])
        engines = os.getpid()
        for theft in (
            f"cat {theirs}/private",
            f"ls {tmp_path}",
            f"ls -a {tmp_path}/state",
            f"cat {tmp_path}/secret",
            f"cat /proc/{engines}/environ",
            f"kill -9 {engines}",
            "ls /root",
        ):
            assert (await said(one, theft))["status"] != 0, theft
        bomb = (
            "import os\nfor _ in range(200):\n    try:\n        os.fork() or os.pause()\n    except BaseException: pass"
        )
        with anyio.fail_after(30):
            await one.act(Run(["python3", "-c", bomb]))
        await one.act(Run("kill -9 -1"))
        await one.act(Run("rm -rf ~ ~/..* / 2>/dev/null"))
        asked = f"import socket; socket.create_connection(('127.0.0.1', {door}), 5)"
        assert (await said(one, [sys.executable, "-c", asked]))["status"] != 0
        assert (await said(other, "cat private"))["stdout"] == "mine\n"
        assert (tmp_path / "secret").read_text() == "of somebody's"
    await listener.aclose()


@pytest.mark.parametrize(
    ("action", "field", "words"),
    [
        ({"type": "runn", "command": "ls"}, "type", "did you mean 'run'"),
        ({"type": "run"}, "command", "missing required field"),
        ({"type": "run", "command": ""}, "command", "must name a program"),
        ({"type": "run", "command": []}, "command", "must name a program"),
        ({"type": "run", "command": 5}, "command", "Expected"),
        ({"type": "run", "command": "a\0b"}, "command", "NUL"),
        ({"type": "run", "command": "cat", "stdin": "?", "stdin_encoding": "base64"}, "stdin", "no base64"),
        ({"type": "run", "command": "cat", "timeout_ms": 0}, "timeout_ms", "from 1"),
        ({"type": "run", "command": "cat", "environment": {"a=b": "c"}}, "environment", "holds '='"),
        ({"type": "run", "command": "cat", "shell": True}, "shell", "unknown field"),
    ],
)
async def test_what_is_no_command_is_refused_with_its_place(
    tmp_path: Path, action: dict[str, Any], field: str, words: str
) -> None:
    async with statefork.open_engine(contract(tmp_path, user="engine"), state=tmp_path / "state") as engine:
        env = await engine.create("a")
        with pytest.raises(InvalidAction, match=words) as caught:
            await env.act(action)
        assert caught.value.facts["field"] == field
        assert env.capsule.actions == 0


_BOMB = """
import os, time
begun = 0
for _ in range(200):
    try:
        if not os.fork():
            time.sleep(600)
        begun += 1
    except OSError:
        break
print(begun)
"""
_ENGINE = """
import sys, trio, statefork
from statefork.actions import Run
async def main(contract, state):
    async with statefork.open_engine(contract, state=state) as engine:
        env = await engine.create("a")
        await env.act(Run("echo kept > file"))
        await env.snapshot()
        await env.act(Run("echo lost > file; touch begun; setsid sleep 601"))
trio.run(main, *sys.argv[1:])
"""


async def test_what_a_killed_engine_left_is_ended(tmp_path: Path, user: str) -> None:
    path, state = contract(tmp_path, user=user), tmp_path / "state"
    killed = await anyio.open_process([sys.executable, "-c", _ENGINE, str(path), str(state)], start_new_session=True)
    await until(lambda: any(state.glob("resources/box/branches/*/tree/begun")))
    below = descendants(killed.pid)
    assert below
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    async with statefork.open_engine(path, state=state) as engine:
        assert not [pid for pid in below if started(pid)]
        assert (await said(engine.environment("a"), "cat file; ls"))["stdout"] == "kept\nfile\n"
    assert audit(state).clean


def test_the_guide_does_what_it_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with ExitStack() as running:
        for block in blocks(GUIDE.read_text(encoding="utf-8")):
            if block.background:
                running.enter_context(shell.background(block))
            else:
                shell.run(block)
