"""The guide to collecting rollouts does what it says, and so does its example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.document_kit import Shell, blocks
from tests.integration.shop_kit import needs_shop, seeded

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "how-to" / "collect-rollouts.md"
EXAMPLE = ROOT / "examples" / "rollout.py"
IN_THE_SHOP = "examples/rollout.py"


def test_the_guide_does_what_it_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for block in blocks(GUIDE.read_text(encoding="utf-8")):
        if IN_THE_SHOP not in block.before:
            shell.run(block)


@pytest.mark.shop
@pytest.mark.browser
@pytest.mark.timeout(600)
@needs_shop
def test_the_example_does_what_the_guide_shows(tmp_path: Path) -> None:
    (shown,) = [block for block in blocks(GUIDE.read_text(encoding="utf-8")) if IN_THE_SHOP in block.before]
    assert shown.body == EXAMPLE.read_text(encoding="utf-8")
    assert len(shown.body.splitlines()) < 30
    command = [sys.executable, str(EXAMPLE), str(seeded(tmp_path / "state"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    *steps, last = done.stdout.splitlines()
    assert [step.split(" ")[1] for step in steps] == ["click"]
    assert "2 actions were tried; reward 1.0; it can be forked: buy-f" in last
