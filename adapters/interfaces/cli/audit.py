"""``statefork audit``: is the history what it claims to be?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from statefork.adapters.interfaces.auditing import audit as run_audit
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption, journal_of
from statefork.adapters.interfaces.cli.output import Out, json_text
from statefork.replay.audit import Finding, Report, journal_length
from statefork.replay.audit.source import JOURNAL_FILE
from statefork.replay.auditing import follow as run_follow

PROGRESS_EVENTS = 500
LOOK_AGAIN_S = 0.2
EXAMPLES = """
    statefork audit
    statefork audit --world                           (also whether sealed bytes are unchanged, and what is orphaned)
    statefork audit --follow                          (beside statefork up, until Ctrl-C)
    statefork audit --state demo-state --json | jq .findings
"""


def audit(
    world: Annotated[
        bool,
        typer.Option(
            "--world",
            help="Compare the journal with all that lies in the state directory: sealed bytes, branches, orphans, "
            "tickets in logs. Reads every sealed file.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Then go on with each new event of a running engine, and print what is found at once, until Ctrl-C.",
        ),
    ] = False,
    journal_only: Annotated[
        bool, typer.Option("--journal-only", help="Do not look at blobs and sealed versions on disk.")
    ] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Check the journal and its stores against every rule that never bends (I1 to I12).

    One checker per rule, which shares no code with the engine, reads every event once. A finding names the rule, the
    position of the event and the environment; statefork log shows the event. What could not be read is told as
    unreadable, and never counts as clean; what is not looked at (what databases on a server contain), as a note.

    Works with and without a running engine, reads only, and takes memory that does not grow with the journal. With
    --follow, --json prints one line per finding as it is found; where there is no journal yet, it waits for one.

    Exit status: 0 clean, 1 violations, 2 something could not be read (a violation counts more).
    """
    if world and (follow or journal_only):
        raise typer.BadParameter(f"--world can't be had with {'--follow' if follow else '--journal-only'}")
    out = Out(as_json=as_json)
    if follow:
        report = _follow(out, state, stores=not journal_only)
    else:
        report = _once(out, state, stores=not journal_only, world=world)
        out.data(report.as_json())
    first, *rest = msgspec.structs.replace(report, findings=(), unreadable=()).lines() if follow else report.lines()
    if follow and not report.clean:
        first = _verdict(report)
    out.say(first, "bold green" if report.clean else "bold red")
    for line in rest:
        out.say(line)
    raise typer.Exit(report.exit_code)


def _once(out: Out, state: Path, *, stores: bool, world: bool) -> Report:
    journal = journal_of(state)
    total = journal_length(state, journal=journal)
    with out.progress("auditing") as bar:

        def tell(position: int) -> None:
            if total and position == total and world:
                bar.tell(1.0, "looking at the world")
            elif total and position % PROGRESS_EVENTS == 0:
                bar.tell(position / total, "auditing")

        return run_audit(state, stores=stores, world=world, journal=journal, progress=tell)


def _follow(out: Out, state: Path, *, stores: bool) -> Report:
    with _until_signal() as stopping, out.progress("auditing") as bar:
        if not (journal_of(state) or _there(state / JOURNAL_FILE)):
            bar.tell(0.0, f"waiting for a journal at {state / JOURNAL_FILE} (Ctrl-C ends)")
            while not (journal_length(state, journal=journal_of(state)) or stopping.wait(LOOK_AGAIN_S)):
                pass
        caught_up = False

        def told(found: Finding | str) -> None:
            if out.as_json:
                plain = {"unreadable": found} if isinstance(found, str) else msgspec.to_builtins(found)
                print(json_text(plain), flush=True)
            else:
                out.say(f"unreadable: {found}" if isinstance(found, str) else str(found), "red")

        def looked(position: int, head: int) -> bool:
            nonlocal caught_up
            if not caught_up:
                bar.tell(position / head, "auditing")
            return not stopping.is_set()

        def idle() -> bool:
            nonlocal caught_up
            if not caught_up:
                caught_up = True
                bar.tell(1.0, "following (Ctrl-C ends)")
            return not stopping.wait(LOOK_AGAIN_S)

        journal = journal_of(state)
        return run_follow(state, told=told, idle=idle, looked=looked, stores=stores, journal=journal)


def _there(path: Path) -> bool:
    """Whether a file is there; also one that may not be seen, which the audit tells."""
    try:
        return path.exists()
    except PermissionError:
        return True


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event; whoever looks at it ends in order, with an exit status of its own."""
    stopping = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verdict(report: Report) -> str:
    found = len(report.findings) + report.findings_left_out
    if found:
        return f"{found} violation{'s' if found > 1 else ''} in {report.events} events"
    return f"unreadable: {report.events} events were looked at, but not all could be read"
