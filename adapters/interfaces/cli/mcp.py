"""``statefork mcp agent`` and ``statefork mcp operator``: tools for language models, over a running engine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from statefork.adapters.interfaces.cli.doors import Doors
from statefork.adapters.interfaces.cli.faults import one_line
from statefork.adapters.interfaces.cli.options import STATE, EnvArgument, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.http.names import TOKEN_VARIABLE
from statefork.engine.errors import MissingDependency
from statefork.journal.errors import StateforkError

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

HELP = "Tools for language models (Model Context Protocol), over a running engine."
AGENT_EXAMPLES = """
    statefork mcp agent shop-1                     on standard input and output, as clients start it
    statefork mcp agent shop-1 --http 8650         at http://127.0.0.1:8650/mcp
"""
OPERATOR_EXAMPLES = """
    statefork mcp operator
    statefork mcp operator --http 8651             requests bear the token in http.token of the state directory
"""
AGENT_SAYS = "You act in one world: look with observe, do one thing at a time with act, and read what comes of it."
OPERATOR_SAYS = (
    "Environments are forked, restored, replayed and audited. A moment is named by a ref: shop (now), "
    "shop@7 (generation 7), shop@7+3 (3 actions after it), shop#42 (after the 42nd action)."
)

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[ADDRESS:]PORT",
        help="Serve over HTTP there, at /mcp; loopback, unless another address of this machine is named.",
        show_default="standard input and output",
    ),
]


def agent(env: EnvArgument, http: HttpOption = None, state: StateOption = STATE) -> None:
    """Give an agent its tools in one environment: observe and act, and nothing else.

    No tool names an environment or leads to another moment. Over HTTP no token is asked for: who reaches the port is
    the agent.
    """
    _ready()
    from statefork.adapters.interfaces.control.client import Control
    from statefork.adapters.interfaces.control.protocol import Named
    from statefork.adapters.interfaces.mcp.server import make_server
    from statefork.adapters.interfaces.mcp.tools import agent_tools

    with _told_to_clients(http):
        Control(state).ask("describe", Named(env=env))
    _serve(make_server("statefork", AGENT_SAYS, agent_tools(state, env)), http, None)


def operator(http: HttpOption = None, state: StateOption = STATE) -> None:
    """Give a model the tools of whoever runs agents: environments, moments, forks, replays, differences, audits.

    Over HTTP requests bear the token of the engine's HTTP interface.
    """
    _ready()
    from statefork.adapters.interfaces.control.client import Control
    from statefork.adapters.interfaces.control.protocol import Status
    from statefork.adapters.interfaces.http.guard import token_of
    from statefork.adapters.interfaces.mcp.server import make_server
    from statefork.adapters.interfaces.mcp.tools import operator_tools

    with _told_to_clients(http):
        Control(state).ask("status", Status())
    token = token_of(state, os.environ.get(TOKEN_VARIABLE)) if http is not None else None
    _serve(make_server("statefork-operator", OPERATOR_SAYS, operator_tools(state)), http, token)


@contextmanager
def _told_to_clients(http: str | None) -> Iterator[None]:
    """What is missing is no reason not to speak with a client that has started this: where a server ends before it has
    said a word, clients show no more than that. Each tool tells what is missing, until it is there."""
    try:
        yield
    except StateforkError as error:
        if http is not None or sys.stdin.isatty():
            raise
        print(one_line(error), file=sys.stderr)


def _ready() -> None:
    try:
        import mcp  # noqa: F401 -- whether it is there
    except ImportError as error:
        raise MissingDependency(f"it needs {error.name}", hint="pip install 'statefork[mcp]'") from error


def _serve(server: Server[Any], http: str | None, token: str | None) -> None:
    from statefork.adapters.interfaces.mcp.server import serve_stdio

    if http is None:
        anyio.run(serve_stdio, server, backend="trio")
    else:
        anyio.run(_over_http, server, http, token, backend="trio")


async def _over_http(server: Server[Any], http: str, token: str | None) -> None:
    from statefork.adapters.interfaces.mcp.server import PATH, serve_http

    async with anyio.create_task_group() as tasks:
        serving: Callable[..., Any] = serve_http
        address = await tasks.start(serving, server, Doors.place(http), token)
        Out().say(f"MCP at {address.url}{PATH}; Ctrl-C ends it")
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()
                return
