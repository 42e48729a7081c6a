"""``statefork ls``: the environments of a state directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out, moment_text
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.control.client import Control, Held, held
from statefork.adapters.interfaces.control.protocol import Status
from statefork.adapters.interfaces.policies import policies
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.checkpoint import fold
from statefork.engine.errors import StateforkError
from statefork.journal.log import Shared

EXAMPLES = """
    statefork ls
    statefork ls --all --json | jq '.environments[].ref'
    statefork ls --json | jq '.environments[] | select(.here).ref'     where several directories share a journal
"""

PATIENCE_S = 5.0
"""How long the engine may take to say what is in doubt."""


def ls(
    every: Annotated[bool, typer.Option("--all", "-a", help="Retired environments, too.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """List the environments, those of other state directories that share the journal, too.

    Works with and without a running engine.
    """
    out = Out(as_json=as_json)

    async def read() -> tuple[list[Capsule], _Places]:
        async with view(state) as opened:
            world = (await fold(opened.journal)).world
            open_now = await opened.journal.engines() if isinstance(opened.journal, Shared) else {}
            holder = held(state)
            asked = isinstance(opened.journal, Shared) and holder is not None and holder.takes_commands
            doubtful = in_doubt(state) if asked else frozenset()
            places = _Places(opened.place, world.elsewhere.places, frozenset(open_now), holder, doubtful)
            return [capsule for _, capsule in sorted(world.environments.items())], places

    capsules, places = run(read)
    shown = [capsule for capsule in capsules if every or capsule.phase is not Phase.RETIRED]
    holder = places.holder
    out.data(
        {
            "engine_runs": holder is not None,
            "takes_commands": holder is not None and holder.takes_commands,
            "pid": holder.pid if holder is not None else None,
            "environments": [_plain(capsule, places) for capsule in shown],
        }
    )
    if not shown:
        hidden = f" ({len(capsules)} retired: --all shows them)" if capsules else ""
        out.say(f"No environments{hidden}. Make one: statefork create NAME")
        return
    columns = ["environment", "phase", "gen>", "actions>", "origin", "parent", "published (UTC)"]
    rows = [_row(capsule, places) for capsule in shown]
    if any(capsule.place != places.here for capsule in shown):
        columns.append("lives in")
        rows = [[*row, places.where(capsule.place)] for row, capsule in zip(rows, shown, strict=True)]
    out.table(columns, rows)
    if holder is not None and not holder.takes_commands:
        out.say(f"The directory is {holder}.")
    if holder is None and any(capsule.bound and capsule.place == places.here for capsule in shown):
        out.say("No engine runs, and it did not close in good order: the next `statefork up` recovers what served.")


def in_doubt(state: Path) -> frozenset[str]:
    """The environments that wait for an answer of the journal's server: only the engine knows that."""
    try:
        told = Control(state, patience_s=PATIENCE_S).ask("status", Status())
    except StateforkError:  # it ends, or is busy: what stands in the journal is told anyway
        return frozenset()
    return frozenset(environment["env"] for environment in told["environments"] if environment.get("in_doubt"))


class _Places(NamedTuple):
    """The state directories of a journal, as they are seen from one of them."""

    here: str  # its place; empty where the journal is its own
    told: Mapping[str, str]  # place -> where it is
    open_now: frozenset[str]  # whose engines run
    holder: Held | None  # who has this one open
    in_doubt: frozenset[str]  # of those that live here

    def phase(self, capsule: Capsule) -> str:
        """Where an environment stands, in a word."""
        if capsule.place == self.here and capsule.env in self.in_doubt:
            return "in doubt"
        return phase_text(capsule, self.runs(capsule.place))

    def runs(self, place: str) -> bool:
        """Whether the engine of a place runs."""
        return self.holder is not None if place == self.here else place in self.open_now

    def where(self, place: str) -> str:
        """Where an environment lives; empty: here."""
        return "" if place == self.here else self.told.get(place) or f"place {place}"


def phase_text(capsule: Capsule, running: bool) -> str:
    """Where an environment stands, in a word."""
    if capsule.bound and not running:
        return "to recover"
    return capsule.phase.value


def _row(capsule: Capsule, places: _Places) -> list[str]:
    published = capsule.generations.get(capsule.generation)
    return [
        capsule.env,
        places.phase(capsule),
        str(capsule.generation),
        str(capsule.actions),
        str(capsule.origin),
        str(capsule.parent or ""),
        moment_text(published.at) if published is not None else "",
    ]


def _plain(capsule: Capsule, places: _Places) -> dict[str, Any]:
    published = capsule.generations.get(capsule.generation)
    return {
        "env": capsule.env,
        "ref": str(capsule.moment),
        "phase": places.phase(capsule),
        "generation": capsule.generation,
        "epoch": capsule.epoch,
        "actions": capsule.actions,
        "how": capsule.how,
        "origin": str(capsule.origin),
        "parent": str(capsule.parent) if capsule.parent is not None else None,
        "children": list(capsule.children),
        "here": capsule.place == places.here,
        "place": capsule.place or None,
        "where": places.told.get(capsule.place),
        "published_at": published.at if published is not None else None,
        "policies": policies(capsule),
    }
