"""``statefork snapshot | reset | restore | recover | retire | park``: the life of one environment."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from statefork.adapters.interfaces.cli.create import say_made
from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import (
    STATE,
    DeadlineOption,
    EnvArgument,
    JsonOption,
    KeyOption,
    StateOption,
    ThenOption,
    ask,
)
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Drained, Named, ResetMany, Restore, Retire
from statefork.engine.refs import parse_ref

SNAPSHOT_EXAMPLES = """
    statefork snapshot shop-1
    statefork snapshot shop-1 --key step-17     again with this key: the same generation
    statefork snapshot shop-1 --deadline 2 --then revoke
"""
RESET_EXAMPLES = """
    statefork reset shop-1
    statefork reset shop-1 shop-2 shop-3 --key batch-7
"""
RESTORE_EXAMPLES = """
    statefork restore shop-1 shop-1@3
    statefork restore shop-1@3                  the same
    statefork restore shop-1 shop-1#12
"""
RECOVER_EXAMPLES = """
    statefork recover shop-1
"""
RETIRE_EXAMPLES = """
    statefork retire shop-1
"""
PARK_EXAMPLES = """
    statefork park shop-1
"""


def snapshot(
    env: EnvArgument,
    then: ThenOption = None,
    deadline: DeadlineOption = None,
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Publish the present as a new generation. The agent goes on undisturbed: pages, logins and addresses stay."""
    out = Out(as_json=as_json)
    answer = ask(state, out, "snapshot", Drained(env=env, then=then, deadline_s=deadline, key=key))
    out.say(f"{answer['ref']} is published")


def reset(
    env: Annotated[
        list[str], typer.Argument(help="Name of the environment, or of several.", metavar="ENV...", show_default=False)
    ],
    then: ThenOption = None,
    deadline: DeadlineOption = None,
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Go back to the origin, as a new generation. What was there before stays in the history.

    Of several environments each succeeds or fails on its own.
    """
    out = Out(as_json=as_json)
    if len(env) == 1:
        answers = [ask(state, out, "reset", Drained(env=env[0], then=then, deadline_s=deadline, key=key))]
    else:
        request = ResetMany(envs=env, then=then, deadline_s=deadline, key=key, task=a_task())
        answer = watched(state, out, "reset-many", request, request.task)
        answers = cast("list[dict[str, object]]", answer["reset"])
    for one in answers:
        out.say(f"{one['ref']} holds what its origin held")


def restore(
    env: EnvArgument,
    ref: Annotated[
        str | None,
        typer.Argument(
            help="A moment: shop@7 (generation 7), shop@7+3 (3 actions later), shop#42 (after action 42). Alone it is "
            "restored in its own environment.",
            metavar="[REF]",
            show_default=False,
        ),
    ] = None,
    then: ThenOption = None,
    deadline: DeadlineOption = None,
    key: KeyOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Go back to a moment, as a new generation. Old pages and tickets die; what was abandoned stays in the history.

    A moment that nobody published is made first, in a child beside, as by fork. Exit status 1 where an action differs:
    then the environment is as it was.
    """
    out = Out(as_json=as_json)
    if ref is None:
        ref, alone = env, parse_ref(env)
        if alone.is_now:
            raise UsageError("it is not said which moment", hint=f"Write: statefork restore {env} {env}@1")
        env = alone.env
    request = Restore(env=env, ref=ref, then=then, deadline_s=deadline, key=key, task=a_task())
    answer = watched(state, out, "restore", request, request.task)
    out.say(f"{answer['ref']} holds what {ref} held")
    say_made(out, ref, answer)


def recover(env: EnvArgument, state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Give up everything since the last generation, whatever state the environment is in: that generation serves again.

    For what can be neither published nor replaced: an action that never ends, a present that fills the disk (a reset
    stages its successor beside it, which needs room). The actions that are lost are named in the log.
    """
    out = Out(as_json=as_json)
    answer = ask(state, out, "recover", Named(env=env))
    out.say(f"{answer['ref']} holds what was published last; what came after it is given up")


def retire(env: EnvArgument, key: KeyOption = None, state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """End an environment. Its history stays readable, and its generations can still be forked."""
    out = Out(as_json=as_json)
    answer = ask(state, out, "retire", Retire(env=env, key=key))
    out.say(f"{answer['env']} is retired at generation {answer['generation']}")


def park(env: EnvArgument, state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Seal and unbind an environment: it costs only disk until it is used again."""
    out = Out(as_json=as_json)
    answer = ask(state, out, "park", Named(env=env))
    out.say(f"{answer['ref']} is parked")
