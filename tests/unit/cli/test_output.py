"""Tables in a terminal: names and refs stay whole in a narrow one."""

from __future__ import annotations

import io
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from statefork.adapters.interfaces.cli.main import _tell, invoke
from statefork.adapters.interfaces.cli.output import Bar, Lines, Out, json_text, while_opening
from statefork.journal.errors import StateforkError


def test_names_and_refs_are_not_broken_in_a_narrow_terminal() -> None:
    out = Out()
    file = io.StringIO()
    out.console = Console(file=file, width=80, force_terminal=True, color_system=None)
    columns = ("environment", "state", "gen>", "actions>", "origin", "parent", "published (UTC)")
    out.table(columns, [("shop-1-f1", "serving", "1", "3", "shop-1@1", "shop-1@2", "2026-11-29 20:15:02")])
    shown = file.getvalue()
    assert all(word in shown for word in ("environment", "shop-1-f1", "shop-1@1", "shop-1@2", "2026-11-29"))
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_what_would_command_a_terminal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out()
    out.say("name \x1b[31mred\r\x9b")
    out.table(["name"], [("\x1b[31m",)])
    _tell(StateforkError("name \x1b[31mred"), [])
    told = capsys.readouterr()
    assert told.out == "name \\u001b[31mred\\u000d\\u009b\nname\n\\u001b[31m\n"
    assert told.err == "error[error]: name \\u001b[31mred.\n"


def test_the_command_alone_prints_its_help_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 2
    told = capsys.readouterr()
    assert "statefork doctor" in told.out
    assert told.err == ""


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_json_is_whole_and_commands_no_terminal(value: dict[str, Any]) -> None:
    for indent in (None, 2):
        text = json_text(value, indent)
        assert json.loads(text) == value
        assert "Cc" not in {unicodedata.category(character) for character in text.replace("\n", "")}


def test_what_takes_long_is_told_again_each_half_minute() -> None:
    times = iter((0.0, 0.25, 29.9, 30.0, 30.25, 60.1, 130.0, 131.0, 131.5))
    lines = Lines(lambda: next(times))
    told = [lines.line("creating tables") for _ in range(8)]
    assert told == [
        *("creating tables", None, None, "still creating tables, 0:30", None),
        *("still creating tables, 1:00", "still creating tables, 2:10", None),
    ]
    assert lines.line("pictures") == "pictures"


@pytest.mark.parametrize("terminal", [False, True])
def test_servers_that_start_are_told_to_a_bar_only(terminal: bool) -> None:
    out = Out()
    out.errors = Console(file=io.StringIO(), force_terminal=terminal)
    told: list[str] = []

    class Told(Bar):
        def tell(self, fraction: float, text: str, detail: str = "") -> None:
            told.append(text)

    tell = while_opening(Told(None, None, out), out)
    for doing in ("starting db", "recovering environments: 3", "removing what nothing reaches: 2"):
        tell(0.5, doing)
    assert told == ["starting db"] * terminal + ["recovering environments: 3", "removing what nothing reaches: 2"]
