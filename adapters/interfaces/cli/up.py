"""``statefork up``: run the engine, its runtimes and the gateway until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from anyio.abc import TaskStatus

from statefork.adapters.interfaces.cli.options import STATE, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.sentences import counted

EXAMPLES = """
    statefork up shop                     a packaged world
    statefork up ./shop.toml --state /var/lib/shop
    statefork up shop --slots 4           at most 4 browser contexts, for any number of environments
    statefork up shop --json | head -1    one line when it is ready
"""


def up(
    contract: Annotated[
        str,
        typer.Argument(
            help="A contract file, or the name of a packaged world (shop).", metavar="CONTRACT", show_default=False
        ),
    ],
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            help="How many environments are bound at once; those that are idle longest are parked for others.",
            show_default="no limit",
        ),
    ] = None,
    state: StateOption = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, one when closed.")] = False,
) -> None:
    """Run the engine, its runtimes and the gateway until Ctrl-C or SIGTERM; then park every environment and close.

    The other commands find it by its control socket in the state directory. What a crash left behind is settled first,
    and lost actions are named.
    """
    out = Out()
    if not anyio.run(_serve, contract, state, slots, out, as_json, backend="trio"):
        raise KeyboardInterrupt


async def _serve(contract: str, state: Path, slots: int | None, out: Out, as_json: bool) -> bool:
    """Serve until told to stop. False: that came before anything was served."""
    from statefork.adapters.interfaces.control.protocol import Status
    from statefork.adapters.interfaces.control.server import serve_control
    from statefork.adapters.interfaces.control.verbs import VERBS
    from statefork.adapters.interfaces.python import open_engine

    ready = False
    async with _told_to_stop(lambda: ready) as stop:
        with ExitStack() as bars:
            bar = bars.enter_context(out.progress(f"opening {contract}"))
            async with (
                open_engine(contract, state=state, slots=slots, progress=bar.tell) as engine,
                serve_control(engine) as door,
            ):
                bars.close()
                ready = True
                status = await VERBS["status"].answer(engine, Status())
                with _somebody_may_read():
                    if as_json:
                        _line({"ready": True, "control": str(door), **status})
                    else:
                        _say(out, status, door)
                await stop.wait()
                with _somebody_may_read():
                    if not as_json:
                        out.say("Closing: parking every environment. Ctrl-C again gives up on it.")
        with _somebody_may_read():
            if as_json:
                _line({"closed": True})
            else:
                out.say("Closed.")
    return ready


@contextmanager
def _somebody_may_read() -> Iterator[None]:
    """Whoever read our output may have had enough (``| head -1``): the engine serves on, and says no more."""
    try:
        yield
    except (BrokenPipeError, SystemExit):  # rich makes the one of the other
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _line(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


@asynccontextmanager
async def _told_to_stop(ready: Callable[[], bool]) -> AsyncIterator[anyio.Event]:
    """Set by the first Ctrl-C or SIGTERM, which cancels the body while it is not ready; a second one acts as usual."""
    stop = anyio.Event()

    async with anyio.create_task_group() as tasks:

        async def listen(*, task_status: TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for _ in signals:
                    stop.set()
                    if not ready():
                        tasks.cancel_scope.cancel()
                    return

        await tasks.start(listen)
        yield stop
        tasks.cancel_scope.cancel()


def _say(out: Out, status: dict[str, Any], door: Path) -> None:
    out.say(f"{status['contract']} is served (journal {status['journal']}, state {status['state']})", "bold green")
    rows = [
        (name, one["adapter"], one["name"], one["reason"], one["faster"]) for name, one in status["resources"].items()
    ]
    out.table(("resource", "adapter", "strategy", "why", "faster with"), rows)
    recovered = status["recovered"]
    for moment in recovered["recovered"]:
        lost = recovered["lost"].get(moment["env"], [])
        what = f"lost actions {', '.join(map(str, lost))}" if lost else "nothing lost"
        out.say(f"recovered after a crash: {moment['env']}@{moment['generation']} ({what})")
    if recovered["settled"]:
        out.say(f"settled after a crash: {counted(len(recovered['settled']), 'transition')} under way")
    environments = status["environments"]
    if status["slots"]["limit"]:
        out.say(f"at most {status['slots']['limit']} environments are bound at once (slots: {status['slots']['kind']})")
    out.say(f"{counted(len(environments), 'environment')}; control socket {door}")
    out.say("Next, in another terminal: statefork create NAME" if not environments else "Next: statefork ls")
    out.say("Ctrl-C closes it in good order.")
