"""``statefork create``: a new environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from statefork.adapters.interfaces.cli.options import (
    STATE,
    JsonOption,
    KeyOption,
    RetentionOption,
    SnapshotsOption,
    StateOption,
    ask,
)
from statefork.adapters.interfaces.cli.output import Out, ref_text
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Create, CreateMany

EXAMPLES = """
    statefork create shop-1
    statefork create shop-2 --json | jq .sites
    statefork create shop-2 --snapshots 'every 5 actions' --retention 'last 20'
    statefork create shop-{3..10} --key batch-7    again with this key: the same environments
"""


def create(
    name: Annotated[
        list[str],
        typer.Argument(
            help="Its name: small letters and digits, joined by '-', '_' or '.'. Several names: several environments.",
            metavar="NAME...",
            show_default=False,
        ),
    ],
    key: KeyOption = None,
    snapshots: SnapshotsOption = None,
    retention: RetentionOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make an environment over the contract's base: generation 1, bound and probed when this returns.

    Of several each succeeds or fails on its own, and as many are bound as there are slots; the others are bound when
    they are used. --snapshots and --retention hold for it until something else is chosen by keep, also when the engine
    is started again.
    """
    out = Out(as_json=as_json)
    if len(name) == 1:
        answers: list[dict[str, Any]] = [
            ask(state, out, "create", Create(name=name[0], key=key, snapshots=snapshots, retention=retention))
        ]
    else:
        request = CreateMany(names=name, key=key, snapshots=snapshots, retention=retention, task=a_task())
        answer = watched(state, out, "create-many", request, request.task)
        answers = cast("list[dict[str, Any]]", answer["created"])
    for one in answers:
        say_ready(out, one)


_BEING = {"serving": "is ready", "frozen": "is there, and in a transition", "retired": "was there, and is retired"}


def say_ready(out: Out, environment: dict[str, Any], how: str = "") -> None:
    """That an environment is there, how it came to be, and where its sites are."""
    ready = _BEING.get(str(environment.get("phase")), "is there, and parked until it is used")
    out.say(f"{environment['ref']} {ready}{how}")
    say_sites(out, environment.get("sites") or {})


def say_made(out: Out, ref: str, answer: Mapping[str, Any]) -> None:
    """How a moment was made that nobody had published; nothing where it was."""
    made = answer.get("made")
    if made is None:
        return
    if made["copied_from"]:
        out.say(f"{made['child']} got what {made['copied_from']} held, and looks like it")
        return
    again = f"{counted(made['actions'], 'action')} from {ref_text(made['source'])} done again in {made['child']}"
    out.say(f"{ref} made: {made['verdict']}, {again}, {made['compared']} of {made['steps']} compared")
    for passed in made["passed_over"]:
        out.say(f"  not from {ref_text(passed)}, which is nearer: its page did not come back as it was seen")
    for sentence in made["unverified"]:
        out.say(f"  unverified: {sentence}")
    for question in made["unasked"]:
        out.say(f"  not asked again: {question}")


def say_sites(out: Out, sites: Mapping[str, str]) -> None:
    """The private base URLs of an environment."""
    for host, url in sites.items():
        out.say(f"  {host} for plain HTTP clients: {url}")
