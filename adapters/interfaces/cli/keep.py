"""``statefork keep | prune | mark``: when the present is published by itself, and which generations stay."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import (
    STATE,
    EnvArgument,
    JsonOption,
    KeyOption,
    RetentionOption,
    SnapshotsOption,
    StateOption,
    ask,
)
from statefork.adapters.interfaces.cli.output import Out, moment_text
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.control.protocol import Keep, Mark, Prune

KEEP_EXAMPLES = """
    statefork keep shop-1                                     what holds
    statefork keep shop-1 --snapshots 'every action'    from now on, also when the engine is started again
    statefork keep shop-1 --snapshots contract --retention 'last 20'
"""
PRUNE_EXAMPLES = """
    statefork prune shop-1 --keep 'last 20' --dry-run    what would go, and from where it could be made again
    statefork prune shop-1 --keep 'forks and marks'
    statefork prune shop-1                               as the contract's key 'retention' says
"""
MARK_EXAMPLES = """
    statefork mark shop-1@7 'before checkout'
    statefork mark shop-1@7 --remove
"""


def keep(
    env: EnvArgument,
    snapshots: SnapshotsOption = None,
    retention: RetentionOption = None,
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Say when an environment's present is published by itself and which of its generations stay, or ask what holds.

    A snapshot after each action keeps every moment as it was, and costs a freeze each time; without, a moment is made
    again when it is wanted, which says how sure it is. What is chosen here holds until something else is chosen, also
    after a crash or the end of the engine, whatever is reset or restored; forks and clones begin as the contract says,
    which has the same two keys and the same words. Choosing what holds already changes nothing.
    """
    if key is not None and snapshots is None and retention is None:
        raise UsageError("--key needs --snapshots or --retention", hint="See: statefork keep --help")
    out = Out(as_json=as_json)
    answer: dict[str, Any] = ask(state, out, "keep", Keep(env=env, snapshots=snapshots, retention=retention, key=key))
    for name in ("snapshots", "retention"):
        since, said = answer["since"][name], answer["contract"][name]
        told = [f"since {moment_text(since)} UTC"] if since else []
        told += [] if answer[name] == said else [f"the contract says {said!r}"]
        out.say(f"{name}: {answer[name]}" + (f"  ({'; '.join(told)})" if told else ""))


def prune(
    env: EnvArgument,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            help="Which generations stay: 'all', 'last 20' or 'forks and marks'.",
            metavar="POLICY",
            show_default="as the contract says",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would go.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Let generations go that can be made again, and free what only they held.

    The first and the newest generation stay, those with a mark, and those that no recorded actions lead to. One that
    goes keeps its name: a fork of it is made again from the nearest one that stays, and says how sure it is.
    """
    out = Out(as_json=as_json)
    answer: dict[str, Any] = ask(state, out, "prune", Prune(env=env, keep=keep, dry_run=dry_run))
    gone = answer["pruned"]
    verb = "would go" if dry_run else "pruned" if gone else "goes"
    out.say(f"{counted(len(gone), 'generation') if gone else 'nothing'} {verb} ({answer['retention']})")
    rows = [(f"{env}@{one['generation']}", one["nearest"], str(one["actions"])) for one in gone]
    if rows:
        out.table(("generation", "made again from", "actions>"), rows)


def mark(
    ref: Annotated[
        str, typer.Argument(help="A generation: shop@7, or shop for the newest one.", metavar="REF", show_default=False)
    ],
    text: Annotated[
        str | None, typer.Argument(help="What it is called from now on.", metavar="TEXT", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the mark away.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Call a generation something. `show` and `log` tell it, and it stays, whatever is pruned."""
    if remove == bool(text and text.strip()) or (remove and text is not None):
        raise UsageError("mark needs a TEXT, or --remove", hint="See: statefork mark --help")
    out = Out(as_json=as_json)
    answer = ask(state, out, "mark", Mark(ref=ref, text=text or ""))
    out.say(f"{answer['ref']} is no longer marked" if remove else f"{answer['ref']} is marked {text!r}")
