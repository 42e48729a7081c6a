"""What ``statefork up`` opens beside the control door, as far as it is asked for: addresses, and what is logged."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.output import Out, while_opening
from statefork.adapters.interfaces.http.names import TOKEN_NAME, TOKEN_VARIABLE
from statefork.engine.errors import MissingDependency, TransitionAborted

if TYPE_CHECKING:
    from statefork.adapters.interfaces.http.serving import Place
    from statefork.adapters.interfaces.python import Engine

_log = logging.getLogger("statefork.up")

OPENENV_MAX = 8


class LogFormat(StrEnum):
    """How is logged."""

    text = "text"
    json = "json"


HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[ADDRESS:]PORT",
        help="Serve HTTP there; loopback, unless another address of this machine is named. Requests bear a token: "
        f"the one in {TOKEN_VARIABLE}, else that in http.token of the state directory, which is made for it.",
        show_default="not served",
    ),
]
HttpNameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--http-name",
        metavar="NAME",
        help="A name by which HTTP may be asked beside its number and localhost; may be given several times.",
        show_default=False,
    ),
]
OpenEnvOption = Annotated[
    str | None,
    typer.Option(
        "--openenv",
        metavar="[ADDRESS:]PORT",
        help="Serve episodes to agents there, in OpenEnv's protocol. No verb of an operator is reached there, and no "
        "token is asked for.",
        show_default="not served",
    ),
]
OpenEnvFromOption = Annotated[
    str | None,
    typer.Option(
        "--openenv-from",
        metavar="REF",
        help="The moment that each episode is a fork of. It is tried at the start.",
        show_default="the origin of an environment that is made for this",
    ),
]
OpenEnvMaxOption = Annotated[
    int | None,
    typer.Option(
        "--openenv-max",
        min=1,
        metavar="N",
        help="How many OpenEnv clients there may be at once.",
        show_default=str(OPENENV_MAX),
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", help="How is logged on standard error: as it comes, or JSON lines, with each journaled event."
    ),
]


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """``http``: where the HTTP interface listens. ``names``: by which names it may be asked besides.

    ``openenv``: where episodes are served. ``journal``: the journal's address, where it is in a database.
    ``json_logs``: log in JSON lines, events too.
    """

    http: str | None = None
    names: tuple[str, ...] = ()
    journal: str | None = None
    json_logs: bool = False
    token: str | None = None
    openenv: str | None = None
    openenv_from: str | None = None
    openenv_max: int | None = None

    def check(self) -> None:
        """Raise UsageError for an address that is none, or what means nothing without one, and MissingDependency,
        before anything is opened."""
        for option, value in (("--openenv-from", self.openenv_from), ("--openenv-max", self.openenv_max)):
            if value is not None and self.openenv is None:
                raise UsageError(f"{option} means nothing without --openenv", hint="Say where episodes are served")
        for address in filter(None, (self.http, self.openenv)):
            self.place(address)

    @staticmethod
    def place(text: str) -> Place:
        """An address to listen at. Raises UsageError, MissingDependency."""
        try:
            from statefork.adapters.interfaces.http.serving import place_of
        except ImportError as error:
            raise MissingDependency(
                f"serving over HTTP needs {error.name}", hint="pip install 'statefork[http]'"
            ) from error
        return place_of(text)


def doors_of(log_format: LogFormat, **said: Any) -> Doors:
    """What the options say; the token is taken from its variable, which the runtimes that are started need not know.

    Raises UsageError, MissingDependency.
    """
    token = os.environ.pop(TOKEN_VARIABLE, None) or None
    doors = Doors(json_logs=log_format is LogFormat.json, token=token, **said)
    doors.check()
    return doors


@asynccontextmanager
async def opened(engine: Engine, doors: Doors) -> AsyncIterator[dict[str, Any]]:
    """Serve what is asked for while the body runs; gives what there is to tell of it, by name."""
    told: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        if doors.json_logs:
            from statefork.adapters.interfaces.http.logs import tell_events

            tasks.start_soon(tell_events, engine.journal)
        if doors.http is not None:
            told["http"] = await _http(engine, doors, stack, tasks.start_soon)
        if doors.openenv is not None:
            told["openenv"] = await _openenv(engine, doors, stack)
        yield told


async def _http(engine: Engine, doors: Doors, stack: AsyncExitStack, spawn: Callable[..., object]) -> dict[str, Any]:
    from statefork.adapters.interfaces.http.app import Api
    from statefork.adapters.interfaces.http.guard import token_of
    from statefork.adapters.interfaces.http.serving import served

    assert doors.http is not None
    place = doors.place(doors.http)
    api = Api(engine, token=token_of(engine.state, doors.token), names=doors.names, journal=doors.journal)
    spawn(api.run)
    address = await stack.enter_async_context(served(api, place, hurried=engine.kernel.hurried))
    token_file = None if doors.token else str(engine.state / TOKEN_NAME)
    return {"url": address.url, "token_file": token_file, "loopback": place.loopback}


async def _openenv(engine: Engine, doors: Doors, stack: AsyncExitStack) -> dict[str, Any]:
    from statefork.adapters.interfaces.http.serving import served
    from statefork.adapters.interfaces.openenv.app import OpenEnv

    assert doors.openenv is not None
    place = doors.place(doors.openenv)
    sessions = doors.openenv_max or OPENENV_MAX
    app = OpenEnv(engine, begin=doors.openenv_from, sessions=sessions, names=doors.names)
    try:
        await app.try_out()
    except TransitionAborted as error:
        raise UsageError(
            f"--openenv-from {doors.openenv_from}: no episode can begin with it: {error.message}",
            hint="What is kept in memory ends with its engine; without --openenv-from episodes begin afresh",
        ) from error
    address = await stack.enter_async_context(served(app, place, hurried=engine.kernel.hurried))
    return {"url": address.url, "loopback": place.loopback}


def lines(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was opened as text for people, each line with its style."""
    if "http" in told:
        http = told["http"]
        yield f"HTTP at {http['url']}; its token: {http['token_file'] or TOKEN_VARIABLE}", ""
    if "openenv" in told:
        yield f"OpenEnv at {told['openenv']['url']}, for agents", ""
    if not all(one["loopback"] for one in told.values()):
        yield "Other machines reach it, and nothing is encrypted: put a proxy with TLS in front", "yellow"


@contextmanager
def logging_as(doors: Doors, generation_of: Callable[[str], int | None]) -> Iterator[None]:
    """Log in the form that is asked for while the body runs."""
    if not doors.json_logs:
        yield
        return
    from statefork.adapters.interfaces.http.logs import json_lines

    with json_lines(generation_of):
        yield


@contextmanager
def opening(doors: Doors, out: Out, contract: str) -> Iterator[Callable[[float, str], None]]:
    """Shows how far the opening is in the form that is asked for, until the body ends."""
    if doors.json_logs:
        yield lambda _, doing: _log.info("%s", doing)
        return
    with out.progress(f"opening {contract}") as bar:
        yield while_opening(bar, out)
