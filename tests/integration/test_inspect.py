"""Inspect, as it is published: samples in statefork's terminals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import statefork
from statefork.replay.auditing import audit
from tests.integration.document_kit import blocks
from tests.integration.venv_kit import venv_of

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
GUIDE = HERE.parents[1] / "docs/how-to/use-with-inspect.md"
BOX = '[contract]\nname = "box"\n[resources.box]\nadapter = "shell"\n'

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def python() -> Path:
    return venv_of(HERE / "venvs/inspect.txt")


def run(python: Path, folder: Path, *arguments: str) -> Any:
    (folder / "box.toml").write_text(BOX)
    for file in (HERE / "inspect_run.py", EXAMPLES / "inspect_task.py"):
        shutil.copy(file, folder)  # Inspect runs a task in the directory where it is defined
    environment = {**os.environ, "INSPECT_LOG_DIR": str(folder / "logs"), "INSPECT_DISPLAY": "none"}
    done = subprocess.run(
        [python, "inspect_run.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_samples_work_side_by_side_and_end_retired(python: Path, tmp_path: Path) -> None:
    all_found = run(python, tmp_path, "tries")
    assert len(all_found) == 4
    for number, found in enumerate(all_found):
        assert found == {
            "binary": True,
            "text": "one\r\ntwo\n",
            "sample": f"file {number}",
            "ran": [False, 4, "inred\ndeep\n"],
            "elsewhere": "/usr/bin\n",
            "missing program": 127,
            "missing file": "FileNotFoundError",
            "directory": "IsADirectoryError",
            "over a directory": "IsADirectoryError",
            "no text": "UnicodeDecodeError",
            "slow": "SandboxTimeoutError",
            "user": "SandboxUserUnsupportedError",
            "siblings": "deep\nfrom-the-sample.txt\ntext.txt\n",
        }
    async with statefork.open_engine(tmp_path / "box.toml", state=tmp_path / "state") as engine:
        assert engine.environments() == []
        assert len(engine.capsules) == 4
    assert audit(tmp_path / "state").clean


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_example_does_what_it_says(python: Path, tmp_path: Path) -> None:
    assert run(python, tmp_path, "example") == {"score": 1.0}
    async with statefork.open_engine(tmp_path / "box.toml", state=tmp_path / "state") as engine:
        (kept,) = engine.environments()  # the fork of the scorer is retired
        assert (await engine.replay(kept.name)).exact


def test_the_guide_shows_the_example() -> None:
    shown = [block.body for block in blocks(GUIDE.read_text(encoding="utf-8")) if block.language == "python"]
    assert (EXAMPLES / "inspect_task.py").read_text(encoding="utf-8") in shown
