"""A program that is interrupted in the middle of its episodes ends in good order, and says that alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import statefork
from tests.integration.browser_kit import serving
from tests.integration.test_gymnasium import PAGE

PROGRAM = """
import gymnasium
import statefork.gym

envs = gymnasium.make_vec("statefork/contract-v0", num_envs=2, contract="notes.toml", state="state")
envs.reset()
raise KeyboardInterrupt
"""


@pytest.mark.browser
def test_an_interrupted_program_says_nothing_else_and_leaves_nothing(tmp_path: Path) -> None:
    with serving() as site:
        (tmp_path / "notes.toml").write_text(PAGE.replace("SITE", site.base))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt", done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert statefork.audit(tmp_path / "state").clean
