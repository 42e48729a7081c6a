"""Engines over HTTP, OpenEnv and MCP: the documents do what they say, and show the examples as they are."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.document_kit import Block, Shell, blocks
from tests.integration.venv_kit import venv_of

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to"
EXAMPLE_LINES_MAX = 30
SHOWN = {"use-over-http": "http_client", "use-with-openenv": "openenv_client", "use-with-mcp": "mcp_agent"}


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def document(name: str) -> list[Block]:
    """Its blocks, with a free port in the place of the one that it names."""
    text = (HOW_TO / f"{name}.md").read_text(encoding="utf-8")
    return blocks(re.sub(r"\b86\d\d\b", str(free_port()), text))


@pytest.mark.parametrize(("name", "example"), SHOWN.items())
def test_an_example_is_shown_as_it_is_and_short(name: str, example: str) -> None:
    source = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    text = (HOW_TO / f"{name}.md").read_text(encoding="utf-8")
    assert f"```python\n{source}```" in text
    assert len(source.splitlines()) < EXAMPLE_LINES_MAX


@pytest.mark.parametrize("name", ["use-over-http", "use-with-mcp"])
def test_it_does_what_it_says(name: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / f"{SHOWN[name]}.py").write_bytes((ROOT / "examples" / f"{SHOWN[name]}.py").read_bytes())
    with ExitStack() as running:
        for block in document(name):
            if block.language == "python":
                continue
            if block.background:
                running.enter_context(shell.background(block))
            else:
                shell.run(block)


def test_openenvs_client_says_what_is_said_of_it(tmp_path: Path) -> None:
    python = venv_of(Path(__file__).parent / "venvs" / "openenv.txt")
    shell, (contract, up, _) = Shell(tmp_path), document("use-with-openenv")
    shell.run(contract)
    with shell.background(up):
        ((command, _),) = up.commands()
        url = f"http://127.0.0.1:{command.split()[-1]}"
        example = str(ROOT / "examples" / "openenv_client.py")
        done = subprocess.run([python, example, url], capture_output=True, text=True, check=True, timeout=60)
        bare = subprocess.run([python, example], capture_output=True, text=True, check=False, timeout=60)
    assert (bare.returncode, bare.stderr) == (1, "usage: python openenv_client.py URL\n")
    text = (HOW_TO / "use-with-openenv.md").read_text(encoding="utf-8")
    assert f"It prints:\n\n```\n{done.stdout}```" in text
