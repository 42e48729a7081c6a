"""The reference pages that are made from the code: every verb, and every error.

::

    python -m statefork.adapters.interfaces.cli.reference docs/reference

writes ``cli.md`` and ``errors.md`` there; the tests compare them with what this gives.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

import statefork
from statefork.adapters.interfaces.cli import faults
from statefork.adapters.interfaces.cli.main import HELP, VERBS, app, help_text
from statefork.journal.errors import StateforkError

_MADE = "<!-- Made by `python -m statefork.adapters.interfaces.cli.reference docs/reference`. Do not edit. -->"
_ROOMS = ("journal", "engine", "replay", "adapters")


def cli_page() -> str:
    """``docs/reference/cli.md``."""
    return "\n".join(_cli_lines()) + "\n"


def _cli_lines() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    yield "# The command line"
    yield ""
    yield _MADE
    yield ""
    yield from _prose(HELP)
    yield ""
    yield "## Exit status"
    yield ""
    yield "| status | meaning |"
    yield "|---|---|"
    for line in (faults.__doc__ or "").splitlines():
        status, _, meaning = line.partition(" ")
        if status.isdigit():
            yield f"| {status} | {meaning.strip()} |"
    for name, verb in VERBS.items():
        yield ""
        yield f"## statefork {name}"
        yield ""
        yield from _prose(help_text(verb))
        yield ""
        command = group
        for word in name.split():
            command = command.commands[word]
        yield from _parameters(command.params)


def _prose(text: str) -> Iterator[str]:
    """Help text as Markdown: indented lines are commands."""
    for commands, lines in groupby(text.strip().splitlines(), lambda line: line.startswith("    ")):
        if commands:
            yield from ("```console", *(line.strip() for line in lines), "```")
        else:
            yield from lines


def _parameters(parameters: list[Any]) -> Iterator[str]:
    yield "| argument or option | meaning | default |"
    yield "|---|---|---|"
    for parameter in parameters:
        names = " ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar or parameter.name.upper()}`"
        elif parameter.metavar:
            names = f"{names} `{parameter.metavar}`"
        elif choices := _choices(parameter.type_descriptor.annotation):
            names = f"{names} {' or '.join(f'`{choice}`' for choice in choices)}"
        yield f"| {_cell(names)} | {_cell(parameter.help or '')} | {_cell(_default(parameter))} |"


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(choice.value) for choice in annotation]
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):  # in words
        return parameter.show_default
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    return "" if default in (None, "", False) else f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def error_kinds() -> list[type[StateforkError]]:
    """Every error class of statefork, by code. Imports every module of the rooms, to know them all."""
    for room in _ROOMS:
        package = importlib.import_module(f"{statefork.__name__}.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
            if module.name.rpartition(".")[2] in ("errors", "faults", "client", "protocol", "tickets"):
                importlib.import_module(module.name)
    waiting: list[type[StateforkError]] = [StateforkError]
    found: dict[str, type[StateforkError]] = {}
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return [found[code] for code in sorted(found)]


def errors_page() -> str:
    """``docs/reference/errors.md``."""
    return "\n".join(_error_lines()) + "\n"


def _error_lines() -> Iterator[str]:
    yield "# Errors"
    yield ""
    yield _MADE
    yield ""
    yield "Every error derives from `StateforkError` and has a stable `code`, a `message`, a `hint` that says what to"
    yield "do, and `facts`: short named values (environment, generations, positions). The command line prints one line,"
    yield "`error[code]: message. hint`, or with `--json` an object with these names."
    yield ""
    yield "| code | class | meaning | exit status |"
    yield "|---|---|---|---|"
    for kind in error_kinds():
        status = faults.exit_status(kind.code)
        meaning = (kind.__doc__ or "").strip().split("\n\n")[0]
        yield f"| `{kind.code}` | `{kind.__name__}` | {_cell(meaning.replace('``', '`'))} | {status} |"


def main() -> None:
    """Write both pages into the directory that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    (folder / "errors.md").write_text(errors_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
