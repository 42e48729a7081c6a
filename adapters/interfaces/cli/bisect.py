"""``statefork bisect``: which action broke it?"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import anyio.to_thread
import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.watching import a_task, watching
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Between, Fork, Retire
from statefork.journal.errors import StateforkError
from statefork.replay.search import Answer, Found, first_failing

EXAMPLES = """
    statefork bisect 'shop-1#0' shop-1 --check 'python check.py'
    statefork bisect shop-1@2 shop-1@5 --check 'curl -sf $STATEFORK_SITE/offers/ | grep -q "Half price"'
"""
SKIP_STATUS = 125
_STANDARD_ERROR = 2
NO_VERDICT = frozenset({126, 127})  # of a shell: the command can't be run, or is not there
SIGNALLED = 127  # above it: what the shell ran was ended by a signal


def bisect(
    good: Annotated[str, typer.Argument(help="A moment at which the check holds.", show_default=False, metavar="GOOD")],
    bad: Annotated[
        str,
        typer.Argument(
            help="A later moment of the same history, at which it fails.", show_default=False, metavar="BAD"
        ),
    ],
    check: Annotated[
        str,
        typer.Option(
            "--check",
            help="A shell command: 0 it holds, 125 that can't be said here, anything else it fails.",
            metavar="COMMAND",
            show_default=False,
        ),
    ],
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Find the first action after which a check fails, by asking at about log2(n) moments between two.

    Each moment is made in an environment of its own, which the command may use as it likes, and which is retired after.
    The command finds in its environment STATEFORK_STATE, STATEFORK_ENV (the environment's name), STATEFORK_REF (the
    moment) and STATEFORK_SITE (the base URL of its site; of several the first, and each is in a variable of its own,
    like STATEFORK_SITE_SHOP_EXAMPLE). GOOD and BAD themselves are asked only where the command says the same of
    everything between.
    """
    out = Out(as_json=as_json)
    control = Control(state)
    between = control.ask("between", Between(good=good, bad=bad))
    prefix = str(between["prefix"])

    async def ask(number: int) -> Answer:
        ref = f"{prefix}{number}"
        answer = await _ask(control, state, out, f"bisect from {good} to {bad}", ref, check)
        out.note(f"{ref}: {answer.value}")
        return answer

    async def search() -> Found:
        return await first_failing(int(str(between["low"])), int(str(between["high"])), ask)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the child is retired
    try:
        with control.holding():  # if this ends without a word, the engine takes back what it has lent
            found = anyio.run(search)
    finally:
        signal.signal(signal.SIGTERM, before)
    _tell(out, prefix, found)


def _tell(out: Out, prefix: str, found: Found) -> None:
    first, earliest = f"{prefix}{found.last}", f"{prefix}{found.first}"
    out.data(
        {
            "first": first,
            "earliest": earliest,
            "exact": found.exact,
            "checks": found.checks,
            "answers": {f"{prefix}{number}": answer for number, answer in found.answers.items()},
        }
    )
    out.say(f"{first} is the first moment at which it fails ({found.checks} checks)", "bold")
    if not found.exact:
        out.say(f"  or one from {earliest} on: nothing could be said of those")
    out.say(f"  what was done: statefork show {first!r}")


async def _ask(control: Control, state: Path, out: Out, what_for: str, ref: str, check: str) -> Answer:
    child = await anyio.to_thread.run_sync(_fork, control, state, out, what_for, ref)
    name = str(child["env"])
    try:
        sites = cast("dict[str, str]", child["sites"])
        told = {"STATEFORK_STATE": str(state), "STATEFORK_ENV": name, "STATEFORK_REF": ref}
        told |= {f"STATEFORK_SITE_{re.sub('[^A-Z0-9]', '_', host.upper())}": url for host, url in sites.items()}
        told["STATEFORK_SITE"] = next(iter(sites.values()), "")
        status = await _run(check, told)
    finally:
        with anyio.CancelScope(shield=True), suppress(StateforkError):
            await anyio.to_thread.run_sync(partial(control.ask, "retire", Retire(env=name)))
    if status in NO_VERDICT or status < 0 or status > SIGNALLED:
        raise UsageError(
            f"the check could not be run at {ref} (status {status})", hint="Try the command by itself first", ref=ref
        )
    return Answer.HOLDS if status == 0 else Answer.SKIP if status == SKIP_STATUS else Answer.FAILS


def _fork(control: Control, state: Path, out: Out, what_for: str, ref: str) -> dict[str, Any]:
    request = Fork(ref=ref, task=a_task(), lent=what_for)
    with watching(state, out, f"making {ref}", request.task):
        children = cast("list[dict[str, Any]]", control.ask("fork", request)["children"])
    return children[0]


async def _run(check: str, told: dict[str, str]) -> int:
    """The status of a shell command. Whatever ends this ends the command, too, with all that it has started."""
    # what it prints is for people: standard output is the answer's
    async with await anyio.open_process(
        check, env={**os.environ, **told}, stdin=None, stdout=_STANDARD_ERROR, stderr=None, start_new_session=True
    ) as process:
        try:
            return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
