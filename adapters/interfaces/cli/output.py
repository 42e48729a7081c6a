"""Printing: sentences, tables and JSON. Colours and boxes in a terminal, plain aligned columns in a pipe."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

GAP = "  "
STILL_EVERY_S = 30.0
STARTING = "starting "  # how the engine tells of a server that starts (see engine.lifecycle)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text that came from anywhere, without what would command a terminal: shown, not obeyed."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that a terminal shows as well: in strings, what would command it is escaped. Other things become text."""
    return printable(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


class Out:
    """Where a command prints. With ``as_json`` only ``data`` prints, once."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def data(self, value: Any) -> None:
        """One JSON value on standard output."""
        if self.as_json:
            print(json_text(value, indent=2))

    def say(self, text: str = "", style: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            self.console.print(printable(text), style=style, markup=False)

    def note(self, text: str) -> None:
        """A line beside the matter: on standard error."""
        self.errors.print(printable(text), style="dim", markup=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows under headings. A heading that ends in ``>`` is of a column of numbers."""
        if self.as_json:
            return
        kept = [[printable(cell) for cell in row] for row in rows]
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
        """A bar on standard error for work that takes long; nothing in a pipe but :class:`Lines`."""
        if self.errors.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[detail]}", markup=False),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.errors, transient=True) as bars:
                yield Bar(bars, bars.add_task(printable(what), total=1.0, detail=""), self)
        else:
            yield Bar(None, None, self)


class Lines:
    """Progress where nobody sees a bar move: a line when the text changes, and each half minute while it does not."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = ""
        self._since = self._told = 0.0

    def line(self, text: str) -> str | None:
        """What is to be printed now, if anything; ``text`` says what is being done."""
        now = self._now()
        if text != self._last:
            self._last, self._since, self._told = text, now, now
            return text
        if now - self._told < STILL_EVERY_S:
            return None
        self._told = now
        minutes, seconds = divmod(int(now - self._since), 60)
        return f"still {text}, {minutes}:{seconds:02d}"


class Bar:
    """One piece of work that is told how far it is."""

    def __init__(self, bars: Progress | None, task: Any, out: Out) -> None:
        self._bars = bars
        self._task = task
        self._out = out
        self._lines = Lines()

    def tell(self, fraction: float, text: str, detail: str = "") -> None:
        """How far (0 to 1), and what is being done; the detail is for a bar only."""
        if self._bars is not None:
            self._bars.update(self._task, completed=fraction, description=printable(text), detail=printable(detail))
        elif (line := self._lines.line(text)) is not None:
            self._out.note(line)


def while_opening(bar: Bar, out: Out) -> Callable[[float, str], None]:
    """What a bar is told while an engine opens: in a pipe nothing of servers that start, as they do each time."""

    def tell(fraction: float, doing: str) -> None:
        if out.errors.is_terminal or not doing.startswith(STARTING):
            bar.tell(fraction, doing)

    return tell


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


def ref_text(moment: Mapping[str, Any]) -> str:
    """A generation, as the engine told it, by its name."""
    return f"{moment['env']}@{moment['generation']}"


def moment_text(at: float) -> str:
    """A time of the journal (Unix seconds) for people: UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, length: int = 12) -> str:
    """The beginning of a digest."""
    return text[:length]


def stdout_is_terminal() -> bool:
    """Whether somebody is looking."""
    return sys.stdout.isatty()
