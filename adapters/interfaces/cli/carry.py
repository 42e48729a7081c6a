"""``statefork export | import``: an environment as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Export, Import
from statefork.engine.refs import parse_ref

EXPORT_EXAMPLES = """
    statefork export shop-1 -o shop-1.statefork
    statefork export shop-1 --at 'shop-1#42' -o at-42.statefork     as it was after the 42nd action
    statefork export shop-1 --ends --without-base -o small.statefork
"""
IMPORT_EXAMPLES = """
    statefork import shop-1.statefork
    statefork import shop-1.statefork --name from-berlin
"""
_UNITS = ("B", "kB", "MB", "GB")


def export(
    env: EnvArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write.", metavar="FILE", show_default=False)
    ],
    at: Annotated[
        str | None,
        typer.Option("--at", help="A moment of the environment instead of now.", metavar="REF", show_default=False),
    ] = None,
    ends: Annotated[
        bool, typer.Option("--ends", help="Carry no generations but the origin and the last: a smaller file.")
    ] = False,
    without_base: Annotated[
        bool,
        typer.Option("--without-base", help="Leave out what the contract's base has: whoever imports needs the same."),
    ] = False,
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Keep Authorization headers and the like of recorded requests.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there already.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Write an environment and all that led to it into one file, to be imported on another machine.

    The file has its history, its sealed databases, files and profiles, and what was seen. It has no passwords of
    databases and no Authorization headers; it has the cookies and the data of the environment's own applications, so
    give it to those who may see these. It is there when it is whole, and not before; what is there already is replaced
    only with --force.
    """
    out = Out(as_json=as_json)
    if at is not None and parse_ref(at).env != env:
        raise UsageError(f"--at {at} is no moment of {env}", hint=f"Write a ref of {env}, such as {env}@2")
    if output.exists() and not force:
        raise UsageError(f"{output} is there already", hint="Choose another name, or write over it with --force")
    request = Export(
        ref=at or env, path=str(output.absolute()), ends=ends, base=not without_base, secrets=secrets, task=a_task()
    )
    answer: Any = watched(state, out, "export", request, request.task, in_pipe=True)
    meant = f"{at} is in {output}" if at is not None else f"{answer['ref']} is in {output}"
    out.say(f"{meant}: {_sizes(answer['size'])}")
    out.say(f"  SHA-256 {answer['sha256']}")
    for sentence in answer["left_out"]:
        out.say(f"  left out: {sentence}")


def import_(
    file: Annotated[Path, typer.Argument(help="What an export wrote.", metavar="FILE", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="The new environment's name. Else that of the old one; where that is taken here, "
            "also by a retired one, with -i1, -i2 and so on.",
            show_default=False,
        ),
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make an environment of what was exported elsewhere, with its past: it can be used, forked and replayed.

    All of the file is verified first; exit status 2, and nothing is made, where it is damaged, foreign or newer, or of
    another contract than the engine serves. Applications will read what is in it: import only from whom you trust.
    """
    out = Out(as_json=as_json)
    request = Import(path=str(file.absolute()), name=name, task=a_task())
    answer: Any = watched(state, out, "import", request, request.task, in_pipe=True)
    out.say(f"{answer['ref']} holds what {answer['source']} held: {_sizes(answer['size'])}")
    theirs = parse_ref(answer["source"]).env
    if name is None and parse_ref(answer["ref"]).env != theirs:
        out.say(f"  it has a name of its own, as {theirs!r} is taken here (--name gives another)")
    out.say(f"  SHA-256 {answer['sha256']}")
    if answer["reused"]:
        out.say(f"  found here already: the base of {', '.join(answer['reused'])}")
    for sentence in answer["left_out"]:
        out.say(f"  left out: {sentence}")


def _sizes(size: dict[str, int]) -> str:
    parts = [counted(size["actions"], "action")]
    if size["inputs"]:
        parts.append(counted(size["inputs"], "input"))
    parts += [counted(size["generations"], "generation"), counted(size["components"], "component")]
    return f"{', '.join(parts)}, {_bytes_text(size['bytes'])}"


def _bytes_text(number: float) -> str:
    for unit in _UNITS[:-1]:
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} {_UNITS[-1]}"
