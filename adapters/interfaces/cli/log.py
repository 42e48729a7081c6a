"""``statefork log``: what happened, event by event."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
import msgspec
import typer

from statefork.adapters.interfaces.cli.options import STATE, StateOption
from statefork.adapters.interfaces.cli.output import Out, json_text, moment_text
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.cli.sentences import sentence
from statefork.engine.errors import UnknownEnvironment
from statefork.journal.events import activity_stream, control_stream
from statefork.journal.log import Reader, Recorded
from statefork.journal.store import StateView
from statefork.replay.lineage import env_of

FOLLOW_INTERVAL_S = 0.2
EXAMPLES = """
    statefork log shop-1
    statefork log -f
    statefork log -n 20 --json | jq .event.type
"""


def log(
    env: Annotated[str, typer.Argument(help="Only this environment.", metavar="[ENV]", show_default=False)] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with events as they happen.")] = False,
    last: Annotated[int, typer.Option("-n", "--last", help="Only the last N (0: all).", metavar="N", min=0)] = 0,
    after: Annotated[int, typer.Option("--after", help="Only behind this position.", metavar="POSITION", min=0)] = 0,
    state: StateOption = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what happened, one event per line. Works with and without a running engine.

    Columns: position in the journal, time (UTC), stream (env: lifecycle, act: activity), what happened.
    """
    out = Out()

    async def show() -> None:
        async with view(state) as opened:
            if env and not await opened.journal.stream_version(control_stream(env)):
                raise UnknownEnvironment(
                    f"there is no environment {env} in this journal", hint="See: statefork ls --all", environment=env
                )
            position = after
            kept: deque[Recorded] = deque(maxlen=last or None)
            async for recorded in _events(opened.journal, env, position):
                position = recorded.position
                if last:
                    kept.append(recorded)
                else:
                    _print(out, recorded, as_json=as_json)
            for recorded in kept:
                _print(out, recorded, as_json=as_json)
            if follow:
                position = await go_on(opened, position)
        while follow:
            async with view(state) as opened:
                position = await go_on(opened, position)

    async def go_on(opened: StateView, position: int) -> int:
        """Print what comes, until the journal must be opened anew; the last position."""
        while not opened.journal.outdated:
            async for recorded in _events(opened.journal, env, position):
                position = recorded.position
                _print(out, recorded, as_json=as_json)
            await anyio.sleep(FOLLOW_INTERVAL_S)
        return position

    run(show)


async def _events(journal: Reader, env: str, after: int) -> AsyncIterator[Recorded]:
    streams = {control_stream(env), activity_stream(env)}
    async for recorded in journal.read(after=after):
        if not env or recorded.stream in streams or env_of(recorded.event) == env:
            yield recorded


def _print(out: Out, recorded: Recorded, *, as_json: bool) -> None:
    if as_json:
        print(json_text(msgspec.to_builtins(recorded)), flush=True)
        return
    at = moment_text(recorded.event.at)
    out.say(f"{recorded.position:>6}  {at}  {recorded.stream:<20}  {sentence(recorded.event)}")
