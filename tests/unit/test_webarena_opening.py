"""What is missing for WebArena's evaluators, or asked for and not there, is told before an agent has done anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statefork.adapters.interfaces import webarena
from statefork.engine.errors import MissingDependency

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/webarena_task.py"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("python", "said"), [("/nowhere/python", "No such file"), (sys.executable, "No module named 'webarena'")]
)
async def test_an_interpreter_without_evaluators_is_told_at_opening(
    python: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEFORK_WEBARENA_PYTHON", python)
    with pytest.raises(MissingDependency, match=said) as told:
        async with webarena.Evaluators():
            raise AssertionError("it was opened")
    assert "STATEFORK_WEBARENA_PYTHON" in told.value.hint


@pytest.mark.parametrize("words", [[], ["999"]])
def test_the_example_asks_for_a_task_that_there_is(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("which task? ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
