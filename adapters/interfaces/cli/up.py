"""``statefork up``: run the engine, its runtimes and the gateway until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from anyio.abc import TaskStatus

from statefork.adapters.interfaces.cli.doors import (
    Doors,
    HttpNameOption,
    HttpOption,
    LogFormat,
    LogFormatOption,
    OpenEnvFromOption,
    OpenEnvMaxOption,
    OpenEnvOption,
    doors_of,
    lines,
    logging_as,
    opened,
    opening,
)
from statefork.adapters.interfaces.cli.faults import EXIT_INTERRUPTED, EXIT_NOT_AS_IT_SHOULD_BE, NotParked
from statefork.adapters.interfaces.cli.options import JOURNAL_VARIABLE, STATE, StateOption
from statefork.adapters.interfaces.cli.output import Out, json_text
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.journal.batch import own_copy

if TYPE_CHECKING:
    from statefork.engine.kernel import Kernel
    from statefork.engine.recovery import RecoveryReport
    from statefork.journal.errors import ClaimLost


EXAMPLES = """
    statefork up shop                     a packaged world
    statefork up ./shop.toml --state /var/lib/shop
    statefork up shop --slots 4           at most 4 browser contexts, for any number of environments
    statefork up shop --json | head -1    one line when it is ready
    statefork up shop --journal postgresql://statefork@db.example/journals
    statefork up shop --http 8642         also over HTTP, at 127.0.0.1:8642
"""


SlotsOption = Annotated[
    int | None,
    typer.Option(
        "--slots",
        min=1,
        help="How many environments are bound at once; those that are idle longest are parked for others.",
        show_default="no limit",
    ),
]
JournalOption = Annotated[
    str | None,
    typer.Option(
        "--journal",
        envvar=JOURNAL_VARIABLE,
        show_envvar=True,
        metavar="ADDRESS",
        help="Where the journal is, if not a file in the state directory: postgresql://user@host/database, with "
        "?schema=NAME for another schema than statefork. Other processes see a command line: leave a password to "
        "the variable, or to a file that PGPASSFILE names.",
        show_default="a file in the state directory",
    ),
]


def up(
    contract: Annotated[
        str,
        typer.Argument(
            help="A contract file, or a packaged world, such as shop or office (`statefork world ls` lists them).",
            metavar="CONTRACT",
            show_default=False,
        ),
    ],
    slots: SlotsOption = None,
    journal: JournalOption = None,
    http: HttpOption = None,
    http_name: HttpNameOption = None,
    openenv: OpenEnvOption = None,
    openenv_from: OpenEnvFromOption = None,
    openenv_max: OpenEnvMaxOption = None,
    log_format: LogFormatOption = LogFormat.text,
    state: StateOption = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, one when closed.")] = False,
) -> None:
    """Run the engine, its runtimes and the gateway until Ctrl-C or SIGTERM; then park every environment and close.

    The other commands find it by its control socket in the state directory. What a crash left behind is settled first,
    and lost actions are named.
    """
    out = Out()
    os.environ.pop(JOURNAL_VARIABLE, None)  # the runtimes that are started need not know it
    doors = doors_of(
        log_format,
        http=http,
        names=tuple(http_name or ()),
        journal=journal,
        openenv=openenv,
        openenv_from=openenv_from,
        openenv_max=openenv_max,
    )
    not_parked = anyio.run(_serve, contract, state, slots, doors, out, as_json, backend="trio")
    if not_parked is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not_parked and as_json:
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)
    if not_parked:
        raise NotParked(
            f"{', '.join(not_parked)} could not be parked",
            hint="What came after their last generation is given up by the next opening, which names the lost actions",
            environments=" ".join(not_parked),
        )


async def _serve(
    contract: str, state: Path, slots: int | None, doors: Doors, out: Out, as_json: bool
) -> tuple[str, ...] | None:
    """Serve until told to stop; the environments that could not be parked. None: it was interrupted.

    Raises ClaimLost where another engine has taken over.
    """
    from statefork.adapters.interfaces.control.protocol import Status
    from statefork.adapters.interfaces.control.server import serve_control
    from statefork.adapters.interfaces.control.verbs import VERBS
    from statefork.adapters.interfaces.python import open_engine

    not_parked: tuple[str, ...] | None = None
    lost: ClaimLost | None = None
    async with _told_to_stop() as told:
        with ExitStack() as bars, logging_as(doors, told.generation_of):
            tell = bars.enter_context(opening(doors, out, contract))
            async with (
                open_engine(contract, state=state, slots=slots, journal=doors.journal, progress=tell) as engine,
                serve_control(engine) as door,
                opened(engine, doors) as others,
            ):
                bars.close()
                told.kernel = engine.kernel
                status = await VERBS["status"].answer(engine, Status())
                with _somebody_may_read():
                    if as_json:
                        _line({"ready": True, "control": str(door), **others, **status})
                    else:
                        _say(out, status, engine.recovered, door, slots)
                        _say_doors(out, others)
                lost = await _until_stopped(told, engine.kernel)
                with _somebody_may_read():
                    if not as_json and lost is None:
                        out.say("Closing: parking every environment. Ctrl-C again gives up on it.")
        if lost is not None:
            raise own_copy(lost)
        not_parked = engine.kernel.not_parked
        with _somebody_may_read():
            if as_json:
                _line({"closed": True, "not_parked": list(not_parked)})
            else:
                out.say("Closed.")
    return None if told.times > 1 else not_parked


async def _until_stopped(told: _Told, kernel: Kernel) -> ClaimLost | None:
    """Return when told to stop; or how another engine has taken over."""
    lost: list[ClaimLost] = []

    async def taken_over() -> None:
        lost.append(await kernel.fenced())
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taken_over)
        await told.to_stop.wait()
        tasks.cancel_scope.cancel()
    return lost[0] if lost else None


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
    print(json_text(value), flush=True)


class _Told:
    """How often it was told to stop, and what there is to close. A Ctrl-C of Python's own could hit anything."""

    def __init__(self) -> None:
        self.times = 0
        self.to_stop = anyio.Event()
        self.kernel: Kernel | None = None

    def generation_of(self, env: str) -> int | None:
        """The published generation of an environment, for what is logged."""
        capsule = self.kernel.environments.get(env) if self.kernel is not None else None
        return capsule.generation if capsule is not None else None

    def again(self, opening: anyio.CancelScope) -> None:
        """The first time ends the serving (or the opening), the second gives up on parking, the third on everything."""
        self.times += 1
        self.to_stop.set()
        if self.times == 1 and self.kernel is None:
            opening.cancel()
        if self.times == 2 and self.kernel is not None:
            self.kernel.hurry()
        if self.times > 2:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


@asynccontextmanager
async def _told_to_stop() -> AsyncIterator[_Told]:
    """Listens for Ctrl-C and SIGTERM around the body."""
    told = _Told()

    async with anyio.create_task_group() as tasks:

        async def listen(*, task_status: TaskStatus[anyio.CancelScope]) -> None:
            scope = anyio.CancelScope(shield=True)  # also while the opening is being cancelled
            with scope, anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started(scope)
                async for _ in signals:
                    told.again(tasks.cancel_scope)

        listening = await tasks.start(listen)
        try:
            yield told
        finally:
            listening.cancel()


def _say(out: Out, status: dict[str, Any], recovered: RecoveryReport, door: Path, slots: int | None) -> None:
    place = f", place {status['place']}" if status["place"] else ""
    out.say(
        f"{status['contract']} is served (journal {status['journal']}{place}, state {status['state']})", "bold green"
    )
    rows = [
        (name, one["adapter"], one["name"], one["reason"], one["faster"]) for name, one in status["resources"].items()
    ]
    out.table(("resource", "adapter", "strategy", "why", "faster with"), rows)
    for number, line in enumerate(recovered.lines()):
        out.say(f"  {line}" if number else line)
    environments = status["environments"]
    if slots and not status["slots"]["kind"]:
        out.say(f"--slots {slots} changes nothing: no resource of this contract takes a slot", "yellow")
    if status["slots"]["limit"]:
        out.say(f"at most {status['slots']['limit']} environments are bound at once (slots: {status['slots']['kind']})")
    others = [one["env"] for one in environments if not one["of_this_contract"]]
    if others:
        out.say(f"made under other contracts, so out of reach of this engine: {', '.join(others)}", "yellow")
    out.say(f"{counted(len(environments), 'environment')}; control socket {door}")
    if environments:
        out.say("Next: statefork ls")
    else:
        out.say("Next, in another terminal: statefork create NAME (the first one makes what all begin with, the base)")


def _say_doors(out: Out, others: dict[str, Any]) -> None:
    for line, style in lines(others):
        out.say(line, style)
    out.say("Ctrl-C closes it in good order.")
