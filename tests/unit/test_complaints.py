"""The page of complaints names tests that exist, and every test that was written for a complaint."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "complaints.md"
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
NAMED = re.compile(r"\[`(?P<test>test_\w+)`\]\((?P<path>[^)]+)\)")


def names_in(path: Path) -> set[str]:
    """The names of all test functions and methods in a file."""
    return set(TEST.findall(path.read_text(encoding="utf-8")))


def named() -> set[tuple[Path, str]]:
    """What the page names as proofs: files and tests."""
    found = NAMED.finditer(PAGE.read_text(encoding="utf-8"))
    return {((PAGE.parent / match["path"]).resolve(), match["test"]) for match in found}


def test_every_proof_is_a_test_that_exists() -> None:
    missing = [f"{path}: {test}" for path, test in named() if not path.is_file() or test not in names_in(path)]
    assert missing == []


def test_every_test_of_a_case_is_named() -> None:
    cases = {(path, test) for path in ROOT.glob("tests/*/test_case_*.py") for test in names_in(path)}
    assert cases
    assert sorted(f"{path.name}: {test}" for path, test in cases - named()) == []


def test_every_row_has_a_proof() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    complaints = [row for row in rows if not row.startswith("| complaint |")]
    assert [row for row in complaints if not NAMED.search(row)] == []
