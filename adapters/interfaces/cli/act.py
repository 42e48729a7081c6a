"""``statefork act``: one action, and what was seen after it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.words import action_from
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Act

EXAMPLES = """
    statefork act shop-1 goto http://shop.example/
    statefork act shop-1 click --role button --name "Add to basket" --nth 0
    statefork act shop-1 fill 'Ada' --label "First name"
    statefork act shop-1 press Enter
    statefork act shop-1 '{"type": "click", "selector": "#buy"}'
    statefork act box-1 run 'ls *.py | wc -l'
    statefork act shop-1 look --screenshot now.png
"""


def act(
    env: EnvArgument,
    words: Annotated[
        list[str],
        typer.Argument(
            help="The action: its type and its fields, or one JSON object. `look` only looks.",
            metavar="ACTION...",
            show_default=False,
        ),
    ],
    screenshot: Annotated[
        Path | None,
        typer.Option("--screenshot", help="Write a PNG of the page here.", metavar="FILE", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            help="Hard deadline: past it the outcome is unknown. How long a target is looked for is the action's own "
            "--timeout_ms; past that nothing was done.",
            metavar="SECONDS",
            show_default=False,
        ),
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Carry out one action in an environment; print address, title and accessibility snapshot.

    Types: goto, click, hover, fill, press, select, check, scroll, upload, back, forward, reload, new_tab, close_tab,
    switch_tab, wait; in terminals run. A target is named in one way: --role (with --name), --label, --text, --selector,
    or --x and --y.
    Exit status: 0 done, 1 the world said no, 3 the outcome is unknown.
    Ctrl-C ends the waiting: an action that has begun goes on in the engine.
    """
    out = Out(as_json=as_json)
    action = None if words == ["look"] else action_from(words)
    control = Control(state)
    with _goes_on(env, state, acts=action is not None):
        answer = control.ask("act", Act(env=env, action=action, timeout_s=timeout))
    if screenshot is not None:
        _save(control, str(answer.get("screenshot", "")), screenshot)
    out.data(answer)
    number = f"#{answer['number']} " if answer["number"] else ""
    page = f"{answer['url']}  {answer['title']!r}" if answer["url"] or answer["title"] else ""
    if number or page:
        out.say(f"{number}{page or 'done'}", "bold")
    if answer.get("value") is not None:
        out.say(f"value: {answer['value']}")
    if answer["text"]:
        out.say(str(answer["text"]))


@contextmanager
def _goes_on(env: str, state: Path, *, acts: bool) -> Iterator[None]:
    """Who interrupts the command ends the waiting for an action, and not the action, unless the engine has none yet."""
    try:
        yield
    except KeyboardInterrupt:
        if acts:
            place = "" if state == STATE else f" --state {shlex.quote(str(state))}"
            said = f"what the engine has begun goes on there: `statefork log {env}{place}` shows it, and how it ends"
            print(said, file=sys.stderr)
        raise


def _save(control: Control, digest: str, file: Path) -> None:
    if not digest:
        raise UsageError("there is no screenshot: the environment's actor made none")
    try:
        file.write_bytes(control.blob(digest))
    except OSError as error:
        raise UsageError(f"the screenshot can't be written to {file}: {error.strerror}") from error
