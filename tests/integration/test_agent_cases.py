"""The cases of ``agent_cases.py`` through each interface of agents' code, each in one process with one engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agent_cases import CASES
from tests.integration.venv_kit import venv_of

pytestmark = [pytest.mark.shop, pytest.mark.browser, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FACES = ("gymnasium", "browsergym")


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How each case failed."""
    from tests.integration.shop_kit import seeded

    pins = HERE / "venvs/browsergym.txt"
    python = venv_of(pins) if request.param == "browsergym" else Path(sys.executable)
    state = tmp_path_factory.mktemp(request.param)
    seeded(state)
    command = [str(python), "-m", "tests.integration.agent_cases", request.param, str(state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def own_cases() -> list[str]:
    """The cases that are BrowserGym's alone. Its package is not here, so they are found in the text."""
    return re.findall(r"^def case_(\w+)", (HERE / "browsergym_cases.py").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("case", own_cases())
@pytest.mark.parametrize("told", ["browsergym"], indirect=True)
def test_browsergyms_tasks_and_agents_run_as_they_are(told: dict[str, str], case: str) -> None:
    assert not told[case], told[case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("told", FACES, indirect=True)
def test_what_is_complained_of_does_not_happen_here(told: dict[str, str], case: str) -> None:
    assert not told[case], told[case]
