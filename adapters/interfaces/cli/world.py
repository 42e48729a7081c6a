"""``statefork world``: the packaged worlds, from what they need to an engine that serves one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Bar, Out
from statefork.adapters.interfaces.store.sizes import show_size

HELP = """The packaged worlds: real sites, installed, seeded, served.

A world's base is built once, into the user's cache, and again only when its recipe or a package has another version.
As root on Debian what a site needs is installed; elsewhere it is said what is missing.
"""
LS_EXAMPLES = """
    statefork world ls
    statefork world ls --json | jq '.worlds[] | select(.missing == "") .name'
"""
BUILD_EXAMPLES = """
    statefork world build office          shop, tracker and wiki; minutes the first time
    statefork world build ./mine.toml     a contract of your own that names a build module
"""
UP_EXAMPLES = """
    statefork world up office && statefork create one
    statefork world up office --state /var/lib/office --slots 8
"""
DOWN_EXAMPLES = """
    statefork world down                  parks every environment, then closes
"""
NameArgument = Annotated[
    str, typer.Argument(help="A packaged world, or a contract file.", metavar="NAME", show_default=False)
]


def ls(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """List the packaged worlds: their sites, whether their bases are built, and what is missing."""
    from statefork.adapters.interfaces.background import running
    from statefork.adapters.interfaces.control.client import EngineDeaf, EngineForeign
    from statefork.adapters.interfaces.worlds import survey

    out = Out(as_json=as_json)
    worlds = survey()
    serving = None
    with suppress(EngineDeaf, EngineForeign):  # somebody has the directory open: what worlds there are can be told
        serving = running(state)
    served = str(serving["contract"]) if serving is not None else ""
    out.data({"worlds": [msgspec.to_builtins(world) for world in worlds], "serving": serving})
    rows = []
    for world in worlds:
        base = world.missing or (f"built, {show_size(world.size_bytes)}" if world.built else "not built yet")
        rows.append((world.name, ", ".join(world.sites), base, "serving" if world.name == served else ""))
    out.table(("world", "sites", "base", "here"), rows)
    out.say("Next: statefork world up NAME")


def build(name: NameArgument, as_json: JsonOption = False) -> None:
    """Install what a world needs, seed it, and keep its base: once for each recipe; how long each part of that took.

    Needs no engine.
    """
    from statefork.adapters.interfaces.worlds import built

    out = Out(as_json=as_json)
    with out.progress(f"building {name}") as bar:
        base = built(name, bar.tell)
    out.data(msgspec.to_builtins(base))
    how = f"built in {base.seconds:.0f} s" if base.seconds else "was built already"
    if base.parts:
        out.table(("what was done", "seconds>"), [(part.name, f"{part.seconds:.1f}") for part in base.parts])
    out.say(f"{base.name}: {how}, {show_size(base.size_bytes)} in {base.place}", "bold green")
    out.say(f"Next: statefork world up {name}")


def up(
    name: NameArgument,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, help="As of `statefork up`.", show_default="no limit"),
    ] = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Build a world where it is not built, start its engine in the background, and return when it is ready.

    It serves until `statefork world down`, and writes what it says to `logs/up.log` of the state directory.
    (`statefork up` runs one in the foreground.)
    """
    from statefork.adapters.interfaces import background
    from statefork.adapters.interfaces.worlds import built, can_be_built, read_contract
    from statefork.engine.errors import ContractError

    out = Out(as_json=as_json)
    contract, _ = read_contract(name)
    serving = background.running(state)
    if serving is not None and serving["contract"] != contract.name:
        raise ContractError(
            f"an engine serves {serving['contract']!r} on {state}, not {contract.name!r}",
            hint="End it with `statefork world down`, or give another --state",
            state=str(state),
        )
    if serving is None:
        if can_be_built(contract):
            with out.progress(f"building {name}") as bar:
                built(name, bar.tell)
        options = () if slots is None else ("--slots", str(slots))
        with out.progress(f"starting {name}") as bar:
            serving = background.start(_named(name), state, options, _waiting(bar, "starting its servers"))
        began = "is served now"
        recovered = [] if serving["recovered"]["clean"] else serving["recovered"]["told"]
    else:
        began, recovered = "was served already", []
    out.data(serving)
    out.say(f"{contract.name} {began} (process {serving['pid']}, state {state})", "bold green")
    for number, line in enumerate(recovered):
        out.say(f"  {line}" if number else line)
    out.say("Next: statefork create NAME; statefork world down ends it")


def down(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Park every environment of the engine that serves here, and close it. Nothing to do is done, too."""
    from statefork.adapters.interfaces import background

    out = Out(as_json=as_json)
    with out.progress("closing") as bar:
        closed = background.stop(state, _waiting(bar, "parking every environment"))
    out.data(msgspec.to_builtins(closed))
    if closed.pid is None:
        out.say(f"no engine serves on {state}")
    elif closed.not_parked:
        out.say(f"closed; {', '.join(closed.not_parked)} could not be parked, and lost what came after", "yellow")
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)
    else:
        out.say(f"closed (process {closed.pid})", "bold green")


def _named(name: str) -> str:
    """As the engine's process finds it, whatever its directory."""
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _waiting(bar: Bar, what: str) -> Callable[[float, str], None]:
    return lambda seconds, doing: bar.tell(min(0.95, seconds / (seconds + 10)), doing or what)
