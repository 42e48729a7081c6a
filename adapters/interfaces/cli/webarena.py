"""``statefork webarena``: environments as the sites of WebArena's tools."""

from __future__ import annotations

import shlex
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, cast

import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Drained, Named

HELP = """WebArena: an environment's sites under the variables that its tools read, and its reset server.

Tasks are judged from Python, in the engine's process: see docs/how-to/use-with-webarena.md.
"""
ENV_EXAMPLES = """
    eval "$(statefork webarena env shop-1)"
    statefork webarena env shop-1 --full-reset http://127.0.0.1:7565
"""
RESET_EXAMPLES = """
    statefork webarena reset-server shop-1 --port 7565
"""
CHECK_EXAMPLES = """
    statefork webarena check tasks.json
    statefork webarena check tasks/ --json | jq '.tasks[] | select(.needs_model != []) .id'
"""
SitesOption = Annotated[
    Path | None,
    typer.Option(
        "--sites",
        help="A webarena.toml that says which site stands for which of WebArena's.",
        metavar="FILE",
        show_default="as the packaged worlds say",
    ),
]


def env(
    name: EnvArgument,
    sites: SitesOption = None,
    full_reset: Annotated[
        str | None,
        typer.Option("--full-reset", help="URL of a reset server, for BrowserGym.", metavar="URL", show_default=False),
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Print the variables that WebArena's tools read (SHOPPING, WA_SHOPPING, VWA_SHOPPING, …), to be sourced.

    They hold the environment's private base URLs: whoever has them reads and writes this environment alone, whatever
    generation it is at. Where nothing stands for a site, its variable leads to a host that there is not.
    """
    from statefork.adapters.interfaces.webarena.sites import Sites, read_sites

    out = Out(as_json=as_json)
    declared = read_sites(sites)
    answer = Control(state).ask("activate", Named(env=name))
    variables = Sites(cast("dict[str, str]", answer["sites"]), declared).variables()
    if full_reset is not None:
        variables |= {"WA_FULL_RESET": full_reset, "VWA_FULL_RESET": full_reset}
    out.data(variables)
    for variable, value in variables.items():
        out.say(f"export {variable}={shlex.quote(value)}")


def reset_server(
    name: EnvArgument,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Loopback port; 0: any that is free.")] = 0,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Serve WebArena's reset protocol for one environment on loopback, until Ctrl-C: GET /reset and GET /status.

    Exit status: 0 it was told to end, 2 it can't listen there.
    """
    import anyio

    from statefork.adapters.interfaces.webarena.resetting import reset_server as serving

    out = Out(as_json=as_json)
    control = Control(state)
    control.ask("describe", Named(env=name))

    async def reset() -> None:
        await anyio.to_thread.run_sync(lambda: control.ask("reset", Drained(env=name)))

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM))
            try:
                url = await stack.enter_async_context(serving(reset, port=port))
            except OSError as error:
                told = error.strerror or str(error)
                raise UsageError(f"can't listen at 127.0.0.1:{port}: {told}", hint="Give another --port") from None
            out.data({"env": name, "url": url})
            out.say(f"{name} is reset by GET {url}/reset; Ctrl-C ends this")
            out.console.file.flush()
            async for _ in signals:
                return

    anyio.run(serve, backend="trio")


def check(
    path: Annotated[Path, typer.Argument(help="A file of tasks, or a folder of such.", metavar="FILE")],
    as_json: JsonOption = False,
) -> None:
    """Look tasks of WebArena's or VisualWebArena's form through: everything that is wrong, each with its place."""
    from statefork.adapters.interfaces.webarena.tasks import load_tasks

    out = Out(as_json=as_json)
    tasks = load_tasks(path).values()
    told = [
        {"id": one.id, "package": one.package, "eval_types": one.eval_types, "needs_model": one.needs_model}
        for one in tasks
    ]
    out.data({"tasks": told})
    models = sum(1 for one in tasks if one.needs_model)
    out.say(f"{len(told)} tasks" + (f"; {models} of them are judged by a model" if models else ""))
