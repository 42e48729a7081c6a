"""The reference pages say what the code says, and every verb teaches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from statefork.adapters.interfaces.cli import reference
from statefork.adapters.interfaces.cli.faults import (
    EXIT_CANNOT,
    EXIT_NOT_AS_IT_SHOULD_BE,
    EXIT_UNKNOWN,
    exit_status,
    one_line,
)
from statefork.adapters.interfaces.cli.main import VERBS, invoke
from statefork.adapters.interfaces.cli.sentences import by_number, sentence
from statefork.adapters.interfaces.control.protocol import error_from, error_object
from statefork.adapters.interfaces.rollout.errors import TasksUnreadable
from statefork.adapters.interfaces.webarena.errors import TasksInvalid
from statefork.engine.errors import ActionFailed, ActionTimeout, DrainTimeout, UnknownRef
from statefork.engine.places import Place, Problem
from statefork.journal.codec import Codec
from statefork.journal.errors import StateforkError
from statefork.journal.events import Event

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "reference"
MAKE = "run: python -m statefork.adapters.interfaces.cli.reference docs/reference"


def test_every_verb_is_documented() -> None:
    assert (PAGES / "cli.md").read_text(encoding="utf-8") == reference.cli_page(), MAKE
    assert all(f"## statefork {verb}\n" in reference.cli_page() for verb in VERBS)


def test_names_are_sorted_as_people_count() -> None:
    names = ["a-f10", "b", "a-f2", "9", "a", "10"]
    assert sorted(names, key=by_number) == ["9", "10", "a", "a-f2", "a-f10", "b"]


def test_choices_and_defaults_in_words_are_documented() -> None:
    page = reference.cli_page()
    assert "| `--database` `sqlite` or `postgres` |" in page
    assert "| `--fs` `xfs` or `btrfs` |" in page
    assert "| 8G, or a quarter of what is free; with --sparse all that is free |" in page


def test_every_error_is_documented() -> None:
    assert (PAGES / "errors.md").read_text(encoding="utf-8") == reference.errors_page(), MAKE


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*verb.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert "Examples:" in told
    assert f"statefork {verb}" in told


def test_every_option_has_help() -> None:
    rows = re.findall(r"^\| `[^|]*\|([^|]*)\|", reference.cli_page(), re.MULTILINE)
    assert len(rows) > len(VERBS)
    assert all(meaning.strip() for meaning in rows)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownRef("x"), EXIT_CANNOT),
        (ActionFailed("x"), EXIT_NOT_AS_IT_SHOULD_BE),
        (DrainTimeout("x"), EXIT_NOT_AS_IT_SHOULD_BE),
        (ActionTimeout("x"), EXIT_UNKNOWN),
    ],
)
def test_an_error_has_the_same_status_from_near_and_from_afar(error: StateforkError, status: int) -> None:
    afar = error_from(json.loads(json.dumps(error_object(error))))
    assert exit_status(error.code) == exit_status(afar.code) == status
    assert error_object(afar) == error_object(error)


def test_several_problems_of_tasks_have_a_line_each() -> None:
    places = [Place(file="tasks.json", line=line, column=3) for line in (1, 2)]
    error = TasksInvalid([Problem(place=place, message="is wrong") for place in places])
    assert one_line(error).splitlines() == [
        "error[tasks_invalid]: tasks.json: 2 problems",
        "  tasks.json:1:3: is wrong",
        "  tasks.json:2:3: is wrong.",
    ]
    assert one_line(TasksUnreadable("a: x\nb: y")).splitlines() == ["error[tasks_unreadable]: a: x", "  b: y."]


def test_an_error_is_one_line() -> None:
    error = UnknownRef("there is\nno such thing", hint="Try\n  another")
    assert one_line(error) == "error[unknown_ref]: there is no such thing. Try another"
    assert one_line(UnknownRef("Is it?")) == "error[unknown_ref]: Is it?"


def test_every_event_has_a_sentence() -> None:
    codec = Codec()
    told = set()
    for file in (ROOT / "tests" / "golden").glob("journal-v*/events.jsonl"):
        for line in file.read_bytes().splitlines():
            event = codec.decode(json.dumps(json.loads(line)["event"]).encode())
            told.add(type(event))
            assert sentence(event)
    assert told == set(get_args(Event)), "the golden journals have every kind of event"
