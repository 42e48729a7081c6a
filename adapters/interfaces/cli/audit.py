"""``statefork audit``: is the history what it claims to be?"""

from __future__ import annotations

from typing import Annotated

import typer

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.replay.auditing import audit as run_audit
from statefork.replay.audit import journal_length

PROGRESS_EVENTS = 500
EXAMPLES = """
    statefork audit
    statefork audit --state demo-state --json | jq .findings
"""


def audit(
    journal_only: Annotated[
        bool, typer.Option("--journal-only", help="Do not look at blobs and sealed versions on disk.")
    ] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Check the journal and its stores against every rule that never bends (I1 to I7, I10).

    The checkers share no code with the engine. Works with and without a running engine.
    Exit status: 0 clean, 1 violations, 2 something could not be read.
    """
    out = Out(as_json=as_json)
    total = journal_length(state)
    with out.progress("auditing") as bar:

        def tell(position: int) -> None:
            if total and position % PROGRESS_EVENTS == 0:
                bar.tell(position / total, "auditing")

        report = run_audit(state, stores=not journal_only, progress=tell)
    out.data(report.as_json())
    first, *rest = report.lines()
    out.say(first, "bold green" if report.clean else "bold red")
    for line in rest:
        out.say(line)
    raise typer.Exit(report.exit_code)
