"""``statefork fork | clone``: new environments from a moment of another."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from statefork.adapters.interfaces.cli.create import say_made, say_ready
from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, KeyOption, RefArgument, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Clone, Fork

FORK_EXAMPLES = """
    statefork fork shop-1 -n 4              four children of the present
    statefork fork shop-1@2 --name branch   one child of generation 2
    statefork fork 'shop-1#42'              one child after the 42nd action, which nobody had sealed
    statefork fork shop-1 -n 2 --key step-17    again with this key: the same two children
"""
CLONE_EXAMPLES = """
    statefork clone shop-1@2 shop-copy
"""


def fork(
    ref: RefArgument,
    n: Annotated[
        int | None, typer.Option("-n", help="How many children; they get names.", min=1, show_default="1")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A child's name; give it once per child.", show_default=False),
    ] = None,
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make children that continue from a moment, any one of the past: everything of it, the browser's pages too.

    Each child has all that led to the moment in its lineage, and resets to its parent's origin. Where no generation was
    published at the moment, the recorded actions from the nearest one before it are carried out again in the first
    child, and each observation is compared. Exit status 1, and the child is left, where one differs. The other children
    get what the first holds; one whose page is not the same then is made as the first was.
    """
    out = Out(as_json=as_json)
    names = list(name or [])
    if names and n not in (None, len(names)):
        raise UsageError(f"-n asks for {n} children, and --name names {len(names)}", hint="Give one of them")
    request = Fork(ref=ref, n=len(names) or n or 1, names=names, key=key, task=a_task())
    answer = watched(state, out, "fork", request, request.task)
    children = cast("list[dict[str, Any]]", answer["children"])
    for child in children:
        say_ready(out, child, f", forked from {ref if child['made'] else child['parent']}")
    for child in children:
        say_made(out, ref, child)
    if children[0]["stands"]:
        out.say(f"{ref} is {children[0]['stands']}: nothing done again")


def clone(
    ref: RefArgument,
    name: Annotated[str, typer.Argument(help="Name of the new environment.", metavar="NAME", show_default=False)],
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make an environment whose origin is a moment: its reset leads there, and its lineage begins there.

    A moment that nobody published is made first, in a child beside, as by fork. Exit status 1 where an action differs.
    """
    out = Out(as_json=as_json)
    request = Clone(ref=ref, name=name, key=key, task=a_task())
    answer = watched(state, out, "clone", request, request.task)
    say_ready(out, answer, f", cloned from {ref}")
    say_made(out, ref, answer)
