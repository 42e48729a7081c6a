"""What the documents say of WebArena is so: the example, the commands, and what is printed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import anyio
import httpx

from statefork.adapters.interfaces.webarena import packaged
from tests.integration.document_kit import Shell, blocks
from tests.integration.venv_kit import venv_of
from tests.integration.webarena_kit import REQUIREMENTS, needs_sites

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/how-to/use-with-webarena.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/webarena_task.py"
EXAMPLE_LINES_MAX = 30
TASK = "13"  # an answer is asked for

pytestmark = [mark for mark in needs_sites if mark.name != "anyio"]


def test_the_example_is_shown_as_it_is_and_short() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    assert f"```python\n{source}```" in GUIDE
    assert len(source.splitlines()) < EXAMPLE_LINES_MAX


def test_the_example_judges(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    variables = {**shell.environment, "STATEFORK_WEBARENA_PYTHON": str(venv_of(REQUIREMENTS))}
    for _ in range(2):  # it can be run again
        done = subprocess.run(
            [sys.executable, EXAMPLE, TASK], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines() == [packaged()[TASK].intent, "right 1.0", "wrong 0.0"], done.stderr


def test_the_commands_do_what_they_say(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shutil.copytree(str(files("statefork.worlds.office") / "tasks"), tmp_path / "tasks")
    config = {"task_id": 1, "sites": ["shopping"], "intent": "?", "start_url": "__SHOPPING__"}
    lines = json.dumps({**config, "eval": {"eval_types": ["taste"]}}, indent=1)
    (tmp_path / "wrong.json").write_text(lines)
    subprocess.run(["statefork", "world", "up", "wiki"], cwd=tmp_path, env=shell.environment, check=True)
    try:
        subprocess.run(["statefork", "create", "one"], cwd=tmp_path, env=shell.environment, check=True)
        for block in blocks(GUIDE):
            if block.language == "console":
                shell.run(block)
        anyio.run(resets, tmp_path, shell.environment, backend="trio")
        subprocess.run(["statefork", "show", "one@2"], cwd=tmp_path, env=shell.environment, check=True)
    finally:
        subprocess.run(["statefork", "world", "down"], cwd=tmp_path, env=shell.environment, check=True)


async def resets(place: Path, environment: dict[str, str]) -> None:
    """The reset server of the command line resets."""
    command = ["statefork", "webarena", "reset-server", "one", "--json"]
    async with await anyio.open_process(command, cwd=place, env=environment, stderr=None) as serving:
        assert serving.stdout is not None
        said = b""
        while not said.rstrip().endswith(b"}"):
            said += await serving.stdout.receive()
        url = json.loads(said)["url"]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            assert (await client.get(f"{url}/reset")).status_code == 200
            assert (await client.get(f"{url}/status")).text == "Ready for duty!"
        serving.terminate()
