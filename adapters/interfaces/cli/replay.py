"""``statefork replay``: would it happen again?"""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, EXIT_OK, EXIT_UNKNOWN
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, JsonOption, StateOption, ask
from statefork.adapters.interfaces.cli.output import Out, short
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.control.protocol import Replay

EXAMPLES = """
    statefork replay shop-1
    statefork replay shop-1 --keep --json | jq .verdict
"""
_STATUS = {"exact-observed": EXIT_OK, "diverged": EXIT_NOT_AS_IT_SHOULD_BE, "unverified": EXIT_UNKNOWN}


def replay(
    env: EnvArgument,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the environment in which it was re-executed.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Re-execute what led to the environment's present on a fresh fork of its origin, and compare every observation.

    Exit status: 0 every observation was reproduced, 1 one was not (the first is shown), 3 it can't be said, because
    something in between could not be done again (named).
    """
    out = Out(as_json=as_json)
    answer: dict[str, Any] = ask(state, out, "replay", Replay(env=env, keep=keep))
    inputs = answer["steps"] - answer["actions"]
    what = counted(answer["actions"], "action") + (f" and {counted(inputs, 'input')}" if inputs else "")
    done = f"{answer['compared']} of {counted(answer['steps'], 'step')} compared ({what})"
    out.say(f"{answer['verdict']}: {env} from {_moment(answer['source'])}, {done}", "bold")
    for sentence in answer["unverified"]:
        out.say(f"  unverified: {sentence}")
    if answer["divergence"] is not None:
        _divergence(out, cast("dict[str, Any]", answer["divergence"]))
    if keep:
        out.say(f"  kept: {answer['child']}")
    raise typer.Exit(_STATUS[str(answer["verdict"])])


def _moment(moment: dict[str, Any]) -> str:
    return f"{moment['env']}@{moment['generation']}"


def _divergence(out: Out, divergence: dict[str, Any]) -> None:
    out.say(f"  first divergence: {divergence['step']}: {divergence['what']} (position {divergence['position']})")
    rows = []
    for side in ("recorded", "seen"):
        look = divergence[side]
        rows.append((side, look["outcome"], look["url"], look["title"], short(look["screenshot"]), look["error"]))
    out.table(("", "outcome", "url", "title", "screenshot", "error"), rows)
    if divergence["diff"]:
        out.say(divergence["diff"])
