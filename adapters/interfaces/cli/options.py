"""Arguments and options that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.client import Control, EngineLost
from statefork.adapters.interfaces.control.protocol import Keyed, Request, Then
from statefork.journal.marker import read_marker

StateOption = Annotated[
    Path,
    typer.Option(  # readable or not: that is for whoever reads to tell
        "--state", envvar="STATEFORK_STATE", help="State directory.", metavar="DIR", show_envvar=True, readable=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]
EnvArgument = Annotated[str, typer.Argument(help="Name of the environment.", metavar="ENV", show_default=False)]
RefArgument = Annotated[
    str,
    typer.Argument(
        help="A moment: shop (now), shop@7 (generation 7), shop@7+3 (3 actions later), shop#42 (after action 42).",
        metavar="REF",
        show_default=False,
    ),
]
ThenOption = Annotated[
    Then | None,
    typer.Option(
        "--then",
        help="What becomes of whoever is still at work at the deadline: abort (give up) or revoke (cancel them).",
        show_default=False,
    ),
]
DeadlineOption = Annotated[
    float | None,
    typer.Option("--deadline", help="Seconds to wait for what is under way.", metavar="SECONDS", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="A text of your choice: the same command with the same key is answered again, and not done again.",
        metavar="TEXT",
        show_default=False,
    ),
]

SnapshotsOption = Annotated[
    str | None,
    typer.Option(
        "--snapshots",
        help="When the present is published by itself: 'every action', 'every 5 actions', 'when changed' or "
        "'on demand'; 'contract': as the contract says.",
        metavar="POLICY",
        show_default=False,
    ),
]
RetentionOption = Annotated[
    str | None,
    typer.Option(
        "--retention",
        help="Which generations stay at each publish: 'all', 'last 20' or 'forks and marks'; those that go can be made "
        "again. 'contract': as the contract says.",
        metavar="POLICY",
        show_default=False,
    ),
]

STATE = Path("state")
JOURNAL_VARIABLE = "STATEFORK_JOURNAL"


def journal_of(state: Path) -> str | None:
    """The address that the variable gives, if the journal of a state directory is in a database."""
    return os.environ.get(JOURNAL_VARIABLE) if read_marker(state) is not None else None


def ask(state: Path, out: Out, verb: str, request: Request) -> dict[str, object]:
    """Ask the engine of a state directory, and print its answer if JSON is wanted."""
    try:
        answer = Control(state).ask(verb, request)
    except EngineLost as lost:
        if isinstance(request, Keyed) and request.key is not None:
            lost.hint = (
                "Whether it was done is unknown: give the same command again with the same key, which settles it"
            )
        raise
    out.data(answer)
    return answer
