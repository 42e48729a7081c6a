"""``statefork replay``: would it happen again?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.divergence import FOLDER, draw, picture_lines, say_divergence
from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, EXIT_OK, EXIT_UNKNOWN, UsageError
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out, json_text, printable, ref_text
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.cli.stepping import Eyes, Then, somebody_is_there, step_line, stepped
from statefork.adapters.interfaces.cli.watching import a_task, watching
from statefork.adapters.interfaces.cli.whatif import Injected, change_of, what_if
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Replay
from statefork.engine.refs import parse_ref

EXAMPLES = """
    statefork replay shop-1
    statefork replay shop-1 --to 'shop-1#12' --from shop-1@2
    statefork replay shop-1 --keep --json | jq .verdict
    statefork replay shop-1 --step                         one action after the other
    statefork replay shop-1 --step --json | jq -r '"\\(.done) \\(.outcome)"'
    statefork replay shop-1 --inject '5: click --role button --name "Add to basket"' --rest
    statefork replay shop-1 --with change.py
"""
_STATUS = {
    "exact-state": EXIT_OK,
    "exact-observed": EXIT_OK,
    "equivalent": EXIT_OK,
    "diverged": EXIT_NOT_AS_IT_SHOULD_BE,
    "unverified": EXIT_UNKNOWN,
}

InjectOption = Annotated[
    list[str] | None,
    typer.Option("--inject", help="What if, at action NUMBER, this had been done instead?", metavar="'NUMBER: ACTION'"),
]
WithOption = Annotated[
    Path | None,
    typer.Option("--with", help="A Python file with change(number, action, seen): what to do instead.", metavar="FILE"),
]
StepOption = Annotated[
    bool,
    typer.Option(
        "--step", help="Halt after each action, show it, and ask; without a terminal print each as it happens."
    ),
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="A line for each action, with its verdict.")]
PicturesOption = Annotated[
    Path | None,
    typer.Option(
        "--pictures",
        help="Where to write the screenshots of the first divergence, and one of both beside each other.",
        metavar="DIR",
        show_default="screenshots/ of the state directory",
    ),
]


def replay(
    env: EnvArgument,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Begin at the last generation at or before this moment.", metavar="REF"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="End at this moment instead of the present.", metavar="REF")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the environment in which it was re-executed.")] = False,
    states: Annotated[
        bool, typer.Option("--states/--no-states", help="Compare what the stores hold at the end, where that was kept.")
    ] = True,
    inject: InjectOption = None,
    change: WithOption = None,
    step: StepOption = False,
    verbose: VerboseOption = False,
    pictures: PicturesOption = None,
    rest: Annotated[bool, typer.Option("--rest", help="With --inject: then all that was recorded after it.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Re-execute what led to the environment's present on a fresh fork of its origin, and compare every observation.

    Where a generation was published at the end, what its stores hold is compared as well: that gives exact-state.

    Where an action goes otherwise, recorded and seen are shown side by side, with the difference of the pages' texts,
    and drawn into one picture. With --step you see each action as it is done: Enter goes on, c goes on to the end, s
    shows the page's text, q stops there (what was not done is unverified). With --step --json each step is a line, and
    the result is the last one. Whoever is gone for half a minute leaves nothing behind.

    With --inject or --with nothing is judged: a new environment is forked before the first change, goes on from there,
    and is left. change() is called once for each recorded action with its number, itself, and what was seen last (None
    at the beginning; as recorded until the first change); it returns None (do it), an action or a list of actions
    (instead of it), or False (stop here).

    Exit status: 0 it was reproduced (exact-state, exact-observed; equivalent: but for what the contract masks), 1 an
    observation was not (the first is shown), 3 it can't be said, because something in between could not be done again
    (named).
    """
    out = Out(as_json=as_json)
    if inject or change is not None:
        if step:
            raise UsageError("--step is of a replay that compares; --inject and --with change what is done")
        _what_if(out, state, to or env, start, inject or [], change, rest=rest)
        return
    if rest:
        raise UsageError("--rest goes on after what --inject does instead", hint="See: statefork replay --help")
    request = Replay(ref=to or env, start=start, keep=keep, states=states, task=a_task(), steps=step)
    _compared(out, state, request, pictures, verbose=verbose)


def _compared(out: Out, state: Path, request: Replay, pictures: Path | None, *, verbose: bool) -> None:
    answer = _stepped(state, out, request) if request.steps else _replayed(state, out, request)
    if answer["divergence"] is not None:
        folder = pictures or state / FOLDER / str(answer["child"])
        answer["pictures"] = draw(state, answer["divergence"], folder)
    if request.steps and out.as_json:
        _line({"type": "result", **{name: value for name, value in answer.items() if name != "by_step"}})
    else:
        out.data(answer)
    if verbose and not request.steps:
        for one in answer["by_step"]:
            out.say(step_line(one))
    _say(out, request.ref, answer)
    raise typer.Exit(_STATUS[str(answer["verdict"])])


def _replayed(state: Path, out: Out, request: Replay) -> dict[str, Any]:
    with watching(state, out, f"replaying {request.ref}", request.task):
        return Control(state).ask("replay", request)


def _stepped(state: Path, out: Out, request: Replay) -> dict[str, Any]:
    """Halt after each step where somebody is there to ask, else print each as it happens."""
    if not out.as_json and somebody_is_there():
        return stepped(state, request, Eyes(out, state, str(request.task)))

    def see(one: Mapping[str, Any]) -> Then:
        if out.as_json:
            _line({"type": "step", **one})
        else:
            print(printable(step_line(one)), flush=True)
        return "on"

    return stepped(state, request, see)


def _line(value: Mapping[str, Any]) -> None:
    print(json_text(value), flush=True)


def _say(out: Out, ref: str, answer: Mapping[str, Any]) -> None:
    inputs = answer["steps"] - answer["actions"]
    what = counted(answer["actions"], "action") + (f" and {counted(inputs, 'input')}" if inputs else "")
    done = f"{answer['compared']} of {counted(answer['steps'], 'step')} compared ({what})"
    out.say(f"{answer['verdict']}: {ref} from {ref_text(answer['source'])}, {done}", "bold")
    for sentence in answer["unverified"]:
        out.say(f"  unverified: {sentence}")
    for question in answer["unasked"]:
        out.say(f"  not asked again: {question}")
    for name, equal in answer["states"].items():
        but = "the same but for what is masked" if name in answer["masked_states"] else "something else"
        out.say(f"  {name} holds {'the same' if equal else but}")
    if answer["expiries"]:
        out.say(f"  cookies that are the same but expire at another time: {', '.join(answer['expiries'])}")
    if any(not equal for equal in answer["states"].values()) and not answer["kept"]:
        out.say("  (to see what: the same with --keep, then `statefork diff` with the environment that is kept)")
    if answer["divergence"] is not None:
        say_divergence(out, answer["divergence"])
        for line in picture_lines(answer["pictures"]):
            out.say(line)
    if answer["kept"]:
        child = answer["child"]
        out.say(f"  kept: {child}  (statefork act {child} look; statefork retire {child} when you have looked)")
    elif answer["divergence"] is not None:
        out.say("  --keep leaves the environment in which it went otherwise, to look around in")


def _what_if(
    out: Out, state: Path, ref: str, start: str | None, inject: list[str], file: Path | None, *, rest: bool
) -> None:
    if inject and file is not None:
        raise UsageError("--inject and --with are two ways to say one thing", hint="Give one of them")
    if file is not None:
        named = parse_ref(start or "a#0")
        if named.action is None:
            raise UsageError("with --with, --from is a number of an action", hint="As in --from 'shop-1#3'")
        what_if(out, state, ref, named.action + 1, change_of(file))
        return
    if start is not None:
        raise UsageError("--inject begins before the first change by itself", hint="Leave --from out")
    injected = Injected(inject, rest=rest)
    what_if(out, state, ref, min(injected.changes), injected)
