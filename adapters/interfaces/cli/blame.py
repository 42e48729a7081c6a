"""``statefork blame``: which action last changed it?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.diff import change_line
from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, EXIT_OK, EXIT_UNKNOWN, UsageError
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, RefArgument, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Blame
from statefork.replay.steps import action_text

EXAMPLES = """
    statefork blame shop-1 --row product:17
    statefork blame shop-1@4 --file images/logo.png --resource media
    statefork blame shop-1 --item 'localStorage http://shop.example theme'
"""


def blame(
    ref: RefArgument,
    row: Annotated[
        str | None,
        typer.Option(
            "--row",
            help="A row by its key; of several columns with commas (price:12,EUR).",
            metavar="TABLE:KEY",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="A file by its path in the tree.", metavar="PATH", show_default=False)
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(
            "--item", help="Anything else, by the name that diff gives it.", metavar="NAME", show_default=False
        ),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            "--resource", help="Only in this resource of the contract.", metavar="RESOURCE", show_default=False
        ),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also find what was changed and changed back between two generations.")
    ] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Find the action that last changed a row, a file or a key, on the way to a moment.

    The generations on the way are compared. Where several actions lie between the two that differ, those are done again
    in an environment of its own, which is retired afterwards, and looked at one by one. Secrets are not shown.

    Exit status: 0 it is this action, 1 nothing changed it since the origin (or it was never there), 3 it is one of
    several, and why no more can be said.
    """
    out = Out(as_json=as_json)
    if sum(one is not None for one in (row, file, item)) != 1:
        raise UsageError("blame is asked about one thing", hint="Give one of --row TABLE:KEY, --file PATH, --item NAME")
    if row is not None and not all(row.partition(":")):
        raise UsageError(f"{row!r} is no row", hint="Write the table, a colon and the key: --row product:17")
    asked = Blame(ref=ref, row=row, file=file, item=item, resource=resource, thorough=thorough, task=a_task())
    answer: Any = watched(state, out, "blame", asked, asked.task)
    if not answer["certain"]:
        _doubt(out, ref, answer)
        raise typer.Exit(EXIT_UNKNOWN)
    if not answer["found"]:
        out.say(f"nothing changed {answer['item']} on the way to {ref} since the origin, or it was never there", "bold")
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)
    _found(out, answer)
    raise typer.Exit(EXIT_OK)


def _found(out: Out, answer: dict[str, Any]) -> None:
    where = f"{answer['item']} in {answer['resource']}"
    if answer["step"]:
        out.say(f"{where} was {answer['kind']} by {answer['step']}: {answer['ref']}", "bold")
        if answer["action"]:
            failed = f" ({answer['outcome']}: {answer['error']})" if answer["outcome"] != "ok" else ""
            out.say(f"  {action_text(answer['action'])}{failed}")
    else:
        out.say(f"{where} was {answer['kind']} by nothing that is recorded: {answer['why']}", "bold")
    _change(out, answer)
    if answer["aside"]:
        out.say(f"  {', '.join(answer['aside'])} came out otherwise when it was done again, and does not count")
    if answer["redone"]:
        out.say(f"  {counted(answer['redone'], 'step')} done again to tell")


def _change(out: Out, answer: dict[str, Any]) -> None:
    out.say(f"  {change_line({**answer, 'name': answer['item']})}")


def _doubt(out: Out, ref: str, answer: dict[str, Any]) -> None:
    if answer["found"]:
        out.say(
            f"{answer['item']} in {answer['resource']} was {answer['kind']} by one of these, up to {answer['ref']}:"
        )
    else:
        out.say(f"whether {answer['item']} was changed on the way to {ref} can't be said; it may have been by one of:")
    for step in answer["between"]:
        out.say(f"    {step}")
    out.say(f"  {answer['why']}")
    if answer["found"]:
        _change(out, answer)
