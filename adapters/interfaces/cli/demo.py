"""``statefork demo``: many environments of a real shop on one server and one browser, and what it cost."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.tree import Tree

from statefork.adapters.interfaces.cli.output import Lines
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.engine.errors import MissingDependency

if TYPE_CHECKING:
    from statefork.worlds.shop.report import DemoReport, EnvironmentReport


class Database(StrEnum):
    """What the shop can keep its rows in."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


STATES = {Database.SQLITE: "demo-state", Database.POSTGRES: "demo-state-postgres"}
WIDTH_PIPED = 160  # columns, where no terminal says how many there are
KIB, MIB = 1024, 1024 * 1024


def demo(
    envs: Annotated[int, typer.Option(help="How many environments to create (4 to 64); four more are forked.")] = 8,
    database: Annotated[Database, typer.Option(help="What the shop keeps its rows in.")] = Database.SQLITE,
    state: Annotated[
        Path | None,
        typer.Option(
            help="State directory; a later run uses its base again.",
            readable=False,
            show_default="demo-state; with PostgreSQL demo-state-postgres",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the environments for `statefork up`, do not retire.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything that was found as one JSON object.")
    ] = False,
) -> None:
    """Share one web shop and one browser between many environments: fork, reset, restore, replay, audit.

    Exit status: 0 all as it should be, 1 something was not, 2 it could not begin.
    """
    out = _console(stderr=False)
    narrator = Narrator(_console(stderr=True) if as_json else out)
    report = _play(envs, database, state or Path(STATES[database]), keep, narrator)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        show(report, out)
    raise typer.Exit(0 if report.ok else 1)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH_PIPED)


def _play(envs: int, database: Database, state: Path, keep: bool, narrator: Narrator) -> DemoReport:
    from statefork.adapters.resources.browser.chromium import find_chromium
    from statefork.adapters.resources.postgres.binaries import find_package

    try:
        from statefork.worlds.shop import build
        from statefork.worlds.shop.demo import ENVIRONMENTS_MAX, ENVIRONMENTS_MIN
        from statefork.worlds.shop.show import run_demo
    except ModuleNotFoundError as missing:
        raise MissingDependency(
            f"the demo needs the Python package {missing.name!r}", hint="pip install 'statefork[demo]'"
        ) from missing
    assert build.VERSIONS
    if not ENVIRONMENTS_MIN <= envs <= ENVIRONMENTS_MAX:
        raise typer.BadParameter(f"must be from {ENVIRONMENTS_MIN} to {ENVIRONMENTS_MAX}", param_hint="--envs")
    find_chromium()  # before minutes are spent on the base
    if database is Database.POSTGRES:
        find_package()

    async def play() -> DemoReport:
        return await run_demo(
            state,
            environments=envs,
            keep=keep,
            tell=narrator.tell,
            progress=narrator.progress,
            database=database.value,
        )

    try:
        return anyio.run(play, backend="trio")
    finally:
        narrator.close()


class Narrator:
    """Says what is happening while it happens: a status line in a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()
        self.status: Status | None = None
        self.lines = Lines()

    def tell(self, name: str, what: str) -> None:
        """A step has ended."""
        self.close()
        style = "red" if what.startswith("FAILED") else ""
        self.console.print(f"{time.monotonic() - self.began:6.1f} s  {name:<22}  {what}", style=style, markup=False)

    def progress(self, fraction: float, what: str) -> None:
        """The base is being built."""
        if self.console.is_terminal:
            if self.status is None:
                self.status = self.console.status("")
                self.status.start()
            self.status.update(f"building the shop, once: {fraction:4.0%}  {what}")
        elif (line := self.lines.line(what)) is not None:
            self.console.print(f"{time.monotonic() - self.began:6.1f} s  {'base':<22}  {line}", markup=False)

    def close(self) -> None:
        """Take the status line away."""
        if self.status is not None:
            self.status.stop()
            self.status = None


def show(report: DemoReport, console: Console) -> None:
    """Print the report for people."""
    console.print()
    console.print(_environments(report))
    console.print(_timings(report))
    _memory(report, console)
    console.print(_lineage(report))
    if report.replayed is not None:
        replayed = report.replayed
        console.print(
            f"Replay       {replayed.env}: {counted(replayed.actions, 'action')} from its origin in "
            f"{replayed.seconds:.1f} s: {replayed.verdict}",
            markup=False,
        )
    if report.audited is not None:
        console.print(f"Audit        {report.audited.lines[0]}", markup=False)
    console.print(f"Screenshots  {report.screenshots}", markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(f"Problem      {problem}", style="red", markup=False, soft_wrap=True)
    console.print()
    console.print(report.verdict, style="bold green" if report.ok else "bold red", markup=False, soft_wrap=True)


def _outcome(env: EnvironmentReport) -> str:
    parts = [f"{check.what} {'✓' if check.good else '✗'}" for check in env.checked]
    return ", ".join(parts + ["FAILED"] * bool(env.errors)) or "nothing"


def _environments(report: DemoReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Environments", title_justify="left", title_style="bold")
    table.add_column("environment", no_wrap=True)
    table.add_column("origin", no_wrap=True)
    for name in ("gen", "actions"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome")
    for name in ("score", "ms/action", "private KiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for env in report.environments:
        table.add_row(
            env.name,
            env.origin,
            str(env.generation),
            f"{env.inherited_actions}+{env.actions}" if env.inherited_actions else str(env.actions),
            _outcome(env),
            f"{env.score:.2f}",
            f"{env.ms_per_action:.0f}",
            f"{sum(env.private_bytes.values()) / KIB:,.0f}",
            style="" if env.score == 1.0 and not env.errors else "red",
        )
    return table


def _timings(report: DemoReport) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Until ready, medians in ms",
        title_justify="left",
        title_style="bold",
        caption="The parts run beside each other. Of database and files: the slowest of them.",
        caption_justify="left",
    )
    table.add_column("operation")
    for name in ("times", "until ready", "database + files", "web server", "browser"):
        table.add_column(name, justify="right")
    for timing in report.timings:
        parts = (timing.ready_ms, timing.stores_ms, timing.server_ms, timing.browser_ms)
        table.add_row(timing.op, str(timing.times), *(f"{part:.1f}" for part in parts))
    return table


def _memory(report: DemoReport, console: Console) -> None:
    memory = report.memory
    if memory is None:
        return
    table = Table(box=box.SIMPLE_HEAD, title="Memory (PSS), MiB", title_justify="left", title_style="bold")
    table.add_column("runtime")
    for name in (
        "processes",
        "shared",
        "per environment",
        f"at the end, {counted(memory.environments_at_end, 'environment')}",
    ):
        table.add_column(name, justify="right")
    for runtime in memory.runtimes:
        sizes = (runtime.shared, runtime.per_environment, runtime.at_end)
        table.add_row(runtime.name, str(runtime.processes), *(f"{size / MIB:.1f}" for size in sizes))
    table.add_row("engine", "1", "", "", f"{memory.engine / MIB:.1f}")
    console.print(table)
    console.print(f"  {memory.how}.", style="dim", markup=False)
    console.print()


def _lineage(report: DemoReport) -> Tree:
    tree = Tree("Lineage: base")
    nodes: dict[str, Tree] = {}
    for member in report.lineage:
        label = member.name if member.parent is None else f"{member.name} (from {member.parent})"
        parent = nodes.get(member.parent.partition("@")[0]) if member.parent is not None else None
        nodes[member.name] = (parent or tree).add(label)
    return tree
