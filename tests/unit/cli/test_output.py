"""Tables in a terminal: names and refs stay whole in a narrow one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.cli.output import Out


def test_names_and_refs_are_not_broken_in_a_narrow_terminal() -> None:
    out = Out()
    file = io.StringIO()
    out.console = Console(file=file, width=80, force_terminal=True, color_system=None)
    columns = ("environment", "state", "gen>", "actions>", "origin", "parent", "published (UTC)")
    out.table(columns, [("shop-1-f1", "serving", "1", "3", "shop-1@1", "shop-1@2", "2026-11-29 20:15:02")])
    shown = file.getvalue()
    assert all(word in shown for word in ("environment", "shop-1-f1", "shop-1@1", "shop-1@2", "2026-11-29"))
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_the_command_alone_prints_its_help_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 2
    told = capsys.readouterr()
    assert "statefork doctor" in told.out
    assert told.err == ""
