"""Printing: sentences, tables and JSON. Colours and boxes in a terminal, plain aligned columns in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

GAP = "  "


class Out:
    """Where a command prints. With ``as_json`` only ``data`` prints, once."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def data(self, value: Any) -> None:
        """One JSON value on standard output."""
        if self.as_json:
            print(json.dumps(value, indent=2, ensure_ascii=False))

    def say(self, text: str = "", style: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            self.console.print(text, style=style, markup=False)

    def note(self, text: str) -> None:
        """A line beside the matter: on standard error."""
        self.errors.print(text, style="dim", markup=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows under headings. A heading that ends in ``>`` is of a column of numbers."""
        if self.as_json:
            return
        kept = [list(row) for row in rows]
        if self.console.is_terminal:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for at, column in enumerate(columns):
                right = column.endswith(">")
                one_word = not any(" " in row[at] for row in kept)  # a name or a ref, which is of no use in pieces
                table.add_column(
                    column.rstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=one_word
                )
            for row in kept:
                table.add_row(*(escape(cell) for cell in row))
            self.console.print(table)
        else:
            for line in plain_table(columns, kept):
                print(line)

    @contextmanager
    def progress(self, what: str) -> Iterator[Bar]:
        """A bar on standard error for work that takes long; nothing in a pipe but a line when the text changes."""
        if self.errors.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            with Progress(*columns, console=self.errors, transient=True) as bars:
                yield Bar(bars, bars.add_task(what, total=1.0), self)
        else:
            yield Bar(None, None, self)


class Bar:
    """One piece of work that is told how far it is."""

    def __init__(self, bars: Progress | None, task: Any, out: Out) -> None:
        self._bars = bars
        self._task = task
        self._out = out
        self._last = ""

    def tell(self, fraction: float, text: str) -> None:
        """How far (0 to 1), and what is being done."""
        if self._bars is not None:
            self._bars.update(self._task, completed=fraction, description=text)
        elif text != self._last:
            self._last = text
            self._out.note(text)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned columns without any decoration, never cut off."""
    names = [column.rstrip(">") for column in columns]
    widths = [max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(names)]
    for line in [names, *rows]:
        cells = [
            cell.rjust(width) if column.endswith(">") else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        yield GAP.join(cells).rstrip()


def moment_text(at: float) -> str:
    """A time of the journal (Unix seconds) for people: UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, length: int = 12) -> str:
    """The beginning of a digest."""
    return text[:length]


def stdout_is_terminal() -> bool:
    """Whether somebody is looking."""
    return sys.stdout.isatty()
