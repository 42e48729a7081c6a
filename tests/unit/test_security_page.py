"""What the page on security says was tried, is tried: each row names a test that exists, and its case."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import get_args

from statefork.journal.events import Event

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(
    r"^\| (?P<number>\d+) \| (?P<tried>.+?) \| (?P<outcome>.+?) \| (?P<journal>.+?) \| `(?P<test>\S+)` \|$"
)
TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)(?:\[(?P<case>\w+)\])?")
ATTEMPTS_MIN = 40
OUTCOMES = ("refused", "cut", "contained")


def rows() -> list[re.Match[str]]:
    """The rows of all tables of attempts."""
    _, _, attempts = PAGE.read_text(encoding="utf-8").partition("\n## Attempts\n")
    lines = [line for line in attempts.splitlines() if line.startswith("|") and not line.startswith(("| |", "|---"))]
    found = [(line, ROW.match(line)) for line in lines]
    assert not [line for line, match in found if match is None], "a row has another form"
    return [match for _, match in found if match is not None]


@cache
def functions(file: str) -> dict[str, set[str]]:
    """The tests of a file, each with every name that the file gives a case by."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    return {name: named & found for name in found if name.startswith("test_")}


def test_there_are_enough_and_they_are_counted() -> None:
    numbers = [int(row["number"]) for row in rows()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= ATTEMPTS_MIN


def test_each_is_made_by_a_test_that_exists() -> None:
    missing = []
    for row in rows():
        named = TEST.fullmatch(row["test"])
        if named is None or not (ROOT / named["file"]).is_file():
            missing.append(row["test"])
            continue
        cases = functions(named["file"]).get(named["name"])
        if cases is None or (named["case"] and named["case"] not in cases):
            missing.append(row["test"])
    assert not missing


def test_each_is_told_in_words_that_have_a_meaning() -> None:
    odd = [row["tried"] for row in rows() if not row["outcome"].startswith(OUTCOMES)]
    assert not odd
    assert len({row["tried"] for row in rows()}) == len(rows()), "one stands twice"


def test_the_events_that_it_names_exist() -> None:
    named = set(re.findall(r"`([a-z]+\.[a-z]+)`", "".join(row["journal"] for row in rows())))
    assert named
    assert {f"{name}/1" for name in named} <= {kind.__struct_config__.tag for kind in get_args(Event)}
