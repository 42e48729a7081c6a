"""``statefork contract``: help with writing the file that says what an environment is."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, UsageError
from statefork.adapters.interfaces.cli.options import JsonOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.sentences import counted

if TYPE_CHECKING:
    from statefork.adapters.interfaces.contracts.checking import Checked
    from statefork.adapters.interfaces.contracts.discovering import Discovered

HELP = """A contract: the file that lists all state which decides what a task sees and what it is worth.

`derive` writes a first one from a task file, `check` looks at one, `discover` runs something and says what it lacks.
"""
CHECK_EXAMPLES = """
    statefork contract check shop.toml
    statefork contract check shop.toml --tasks tasks.json
    statefork contract check shop.toml --tasks tasks.json --site shopping=shop.example --json | jq .missing
"""
DERIVE_EXAMPLES = """
    statefork contract derive tasks.json > first.toml
    statefork contract derive tasks.json --name shop
    statefork contract check first.toml --tasks tasks.json     says what is to be filled in
"""
DISCOVER_EXAMPLES = """
    statefork contract discover shop.toml --run './one-task.sh'
    statefork contract discover shop.toml --run 'statefork act discover goto http://shop.example/' --watch /var/lib/app
    statefork contract discover shop.toml --run 'python task.py' --database postgresql:///postgres --cache redis://127.0.0.1
"""
ContractArgument = Annotated[
    str,
    typer.Argument(
        help="A contract file, or a packaged world (`statefork world ls`).", metavar="CONTRACT", show_default=False
    ),
]
SiteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--site",
        help="Which host a site of the tasks is: shopping=shop.example. Without it: the resource of that name, or the "
        "one whose host begins so.",
        metavar="NAME=HOST",
        show_default=False,
    ),
]


def check(
    contract: ContractArgument,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks",
            help="A task file (of WebArena's shape): is all that its evaluators read kept by the contract?",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at a contract without running it: keys and values, dependencies, bases, and whether it covers tasks.

    Covered means: what a task begins at and what its evaluator reads is state of some resource, so that a reset takes
    it back and a fork has it. What the evaluators do that is not understood is listed, and judged to be neither.

    Exit status: 0 nothing is wrong or missing, 1 something is: it is listed, 2 a file can't be read.
    """
    from statefork.adapters.interfaces.contracts.checking import check_contract
    from statefork.adapters.interfaces.contracts.kinds import check_kinds

    out = Out(as_json=as_json)
    check_kinds(Path(contract), tasks)
    found = check_contract(contract, tasks, _sites(site or []))
    out.data(
        {
            "ok": found.good,
            **msgspec.to_builtins(found),
            "missing": [msgspec.to_builtins(one) for one in found.missing],
        }
    )
    _tell(out, found)
    if not found.good:
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)


def _tell(out: Out, found: Checked) -> None:
    for problem in found.problems:
        out.say(problem, "red")
    for note in found.notes:
        out.say(f"note: {note}")
    if found.covered:
        rows = [
            (one.read.kind, one.read.name, one.state, one.by, one.why, ", ".join(one.read.tasks[:5]))
            for one in found.covered
        ]
        out.table(("read by tasks", "name", "", "by", "why", "tasks"), rows)
    for line in found.unclear:
        out.say(f"not understood: {line}", "yellow")
    if found.good:
        covering = (
            f", and keeps all {counted(len(found.covered), 'thing')} that the tasks read" if found.covered else ""
        )
        out.say(f"{found.name}: {counted(len(found.resources), 'resource')}, nothing is wrong{covering}", "bold green")
    else:
        bad = [counted(len(found.problems), "problem")] if found.problems else []
        bad += [f"{counted(len(found.missing), 'thing')} that tasks read and the contract does not keep"] * bool(
            found.missing
        )
        out.say(f"{found.file}: {', '.join(bad)}", "bold red")


def _sites(given: Sequence[str]) -> dict[str, str]:
    sites = {}
    for text in given:
        name, equals, host = text.partition("=")
        if not (name and equals and host):
            raise UsageError(f"--site: {text!r} is not NAME=HOST", hint="Give it as shopping=shop.example")
        sites[name] = host.removeprefix("http://").rstrip("/")
    return sites


def derive(
    tasks: Annotated[
        Path, typer.Argument(help="A task file of WebArena's shape (JSON).", metavar="TASKS", show_default=False)
    ],
    name: Annotated[
        str, typer.Option("--name", help="Of the contract.", metavar="NAME", show_default="the file's")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Write a first contract from what the evaluators of tasks read: sites, databases, files, storage and cookies.

    Above each entry stands which tasks read it. The contract is valid; where a site's program or a database is can't be
    known from tasks: such values say FILL IN, and `statefork contract check` lists them.

    Exit status: 0 written to standard output, 2 the file can't be read.
    """
    from statefork.adapters.interfaces.contracts.deriving import entries, name_of, text_of
    from statefork.adapters.interfaces.contracts.kinds import check_kinds
    from statefork.adapters.interfaces.contracts.reading import read_tasks

    out = Out(as_json=as_json)
    check_kinds(None, tasks)
    found = read_tasks(tasks)
    above = [f"A first contract for {counted(found.count, 'task')} of {tasks.name}: fill in what says FILL IN, then"]
    above += [f"statefork contract check THIS --tasks {tasks.name}"]
    above += [f"Not understood: {line}" for line in found.unclear]
    text = text_of(name_of(name or tasks.stem, {}), entries(found), above)
    out.data({"contract": text, "reads": msgspec.to_builtins(found.reads), "unclear": list(found.unclear)})
    out.say(text.rstrip("\n"))


RunOption = Annotated[
    str,
    typer.Option(
        "--run",
        help="What to run in an environment of the contract, for /bin/sh. It finds STATEFORK_STATE, STATEFORK_ENV and "
        "STATEFORK_BASE_URL (of each site: …_NAME) in its environment.",
        metavar="COMMAND",
        show_default=False,
    ),
]
WatchOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--watch",
        help="A directory in which writes count. Without any: the contract's, this one, the home directory, /var/lib "
        "and /srv.",
        metavar="DIR",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--database", help="A PostgreSQL server whose databases are watched.", metavar="DSN", show_default=False
    ),
]
CacheOption = Annotated[
    list[str] | None,
    typer.Option("--cache", help="A Redis or Valkey server whose keys are watched.", metavar="URL", show_default=False),
]


def discover(
    contract: ContractArgument,
    run: RunOption,
    watch: WatchOption = None,
    database: DatabaseOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run something in a new environment with watching on, and list state that it touched and the contract lacks.

    Seen are files written elsewhere (as root by whom; else by their change times), rows in databases and keys in caches
    that were named, services that the world talked to, hosts that pages were refused, cookies of hosts that are no
    sites, and processes that the command left behind, which are ended. For most there is a fragment to paste into the
    contract. Not all of it need matter: that is for you to judge. Nothing of the run is kept.

    Exit status: 0 nothing was missed, 1 something was, or the command failed, 2 it can't be run.
    """
    from statefork.adapters.interfaces.contracts.discovering import Wish
    from statefork.adapters.interfaces.contracts.discovering import discover as watched
    from statefork.adapters.interfaces.contracts.kinds import check_kinds

    out = Out(as_json=as_json)
    check_kinds(Path(contract), None)
    with (
        tempfile.TemporaryDirectory(prefix="statefork-discover-") as folder,
        out.progress(f"opening {contract}") as bar,
    ):
        wish = Wish(
            contract=contract,
            run=run,
            state=Path(folder) / "state",
            watch=tuple(watch or ()),
            databases=tuple(database or ()),
            caches=tuple(cache or ()),
        )
        found = anyio.run(watched, wish, bar.tell, backend="trio")
    good = not found.missed and not found.status
    out.data({"ok": good, **msgspec.to_builtins(found)})
    _tell_missed(out, found)
    if not good:
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)
    out.say("Nothing was touched that the contract does not have.", "bold green")


def _tell_missed(out: Out, found: Discovered) -> None:
    if found.missed:
        out.table(("missed", "what", "how it is known"), [(one.kind, one.what, one.evidence) for one in found.missed])
    for one in found.missed:
        if one.fragment:
            out.say()
            out.say(one.fragment)
    for note in found.notes:
        out.note(note)
    if found.status:
        out.say(f"The command ended with status {found.status}.", "bold red")
    if found.missed:
        out.say(f"{counted(len(found.missed), 'piece')} of state that the contract does not have.", "bold red")
