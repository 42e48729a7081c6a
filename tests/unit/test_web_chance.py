"""Chance and time that are bound to a request's context, in one process with real ones beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "chance_program.py"


def test_each_context_has_its_own_and_other_threads_have_the_real_ones() -> None:
    said = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True)
    out = json.loads(said.stdout)
    assert out["once"] == out["again"]
    assert len({str(one) for one in (*out["once"], out["other seed"], *out["real"])}) == 6
    assert out["the seed again"] == out["once"][0]
    assert all(a != b != c for a, b, c in zip(*out["real"], out["once"][0], strict=True))
    assert out["own seed"] == [True, True]
    assert all(abs(clock - 1_000_000_000.5) < 5 for clock in out["shifted"])
    assert set(map(int, out["standing"])) == {1_000_000_000}
    assert out["years"] == [[1970 + n * 100_000_000 // 31_556_952] for n in range(4, 16)]
    assert out["leaked_s"] < 60
    assert out["slept_s"] >= 0.01
