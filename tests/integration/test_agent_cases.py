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


def python_of(face: str) -> Path:
    """The Python that has the interface's packages."""
    return venv_of(HERE / "venvs/browsergym.txt") if face == "browsergym" else Path(sys.executable)


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How each case failed."""
    from tests.integration.shop_kit import seeded

    state = tmp_path_factory.mktemp(request.param)
    seeded(state)
    command = [str(python_of(request.param)), "-m", "tests.integration.agent_cases", request.param, str(state)]
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


HELD = """
[contract]
name = "held"
[resources.browser]
adapter = "browser"
"""
HOLDER = """
import sys
face, contract, state = sys.argv[1:]
arguments = {"contract": contract, "state": state, "slots": 1}
if face == "browsergym":
    from browsergym.core.task import OpenEndedTask
    from statefork.browsergym import StateforkBrowserEnv
    env = StateforkBrowserEnv(OpenEndedTask, {"start_url": "about:blank"}, **arguments)
else:
    from statefork.gym import StateforkEnv
    env = StateforkEnv(**arguments)
print(env.reset(seed=1)[1]["env"], flush=True)
sys.stdin.read()
env.close()
"""


@pytest.mark.parametrize("face", FACES)
def test_a_program_that_was_killed_holds_no_slot(face: str, tmp_path: Path) -> None:
    """Case 22: the next one has the only slot, and what the killed one had is retired."""
    from statefork import audit, sync

    (tmp_path / "held.toml").write_text(HELD)
    command = [str(python_of(face)), "-c", HOLDER, face, str(tmp_path / "held.toml"), str(tmp_path / "state")]
    names = []
    for killed in (True, False):
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            names.append(program.stdout.readline().strip())
            if killed:
                program.kill()
            else:
                program.communicate()
                assert program.returncode == 0
    assert names == ["gym-1", "gym-2"]
    with sync.open_engine(tmp_path / "held.toml", state=tmp_path / "state") as engine:
        assert {name: one.phase.value for name, one in engine.capsules.items()} == dict.fromkeys(names, "retired")
    assert audit(tmp_path / "state").clean
