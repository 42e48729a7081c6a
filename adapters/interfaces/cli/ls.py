"""``statefork ls``: the environments of a state directory."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out, moment_text
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.control.client import engine_runs
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.checkpoint import fold

EXAMPLES = """
    statefork ls
    statefork ls --all --json | jq '.environments[].ref'
"""


def ls(
    every: Annotated[bool, typer.Option("--all", "-a", help="Retired environments, too.")] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """List the environments. Works with and without a running engine."""
    out = Out(as_json=as_json)

    async def read() -> list[Capsule]:
        async with view(state) as opened:
            world = (await fold(opened.journal)).world
            return [capsule for _, capsule in sorted(world.environments.items())]

    capsules = run(read)
    running = engine_runs(state)
    shown = [capsule for capsule in capsules if every or capsule.phase is not Phase.RETIRED]
    out.data({"engine_runs": running, "environments": [_plain(capsule, running) for capsule in shown]})
    if not shown:
        hidden = f" ({len(capsules)} retired: --all shows them)" if capsules else ""
        out.say(f"No environments{hidden}. Make one: statefork create NAME")
        return
    columns = ("environment", "phase", "gen>", "actions>", "origin", "parent", "published (UTC)")
    out.table(columns, [_row(capsule, running) for capsule in shown])
    if not running and any(capsule.bound for capsule in shown):
        out.say("No engine runs, and it did not close in good order: the next `statefork up` recovers what served.")


def phase_text(capsule: Capsule, running: bool) -> str:
    """Where an environment stands, in a word."""
    if capsule.bound and not running:
        return "to recover"
    return capsule.phase.value


def _row(capsule: Capsule, running: bool) -> tuple[str, ...]:
    published = capsule.generations.get(capsule.generation)
    return (
        capsule.env,
        phase_text(capsule, running),
        str(capsule.generation),
        str(capsule.actions),
        str(capsule.origin),
        str(capsule.parent or ""),
        moment_text(published.at) if published is not None else "",
    )


def _plain(capsule: Capsule, running: bool) -> dict[str, Any]:
    published = capsule.generations.get(capsule.generation)
    return {
        "env": capsule.env,
        "ref": str(capsule.moment),
        "phase": phase_text(capsule, running),
        "generation": capsule.generation,
        "epoch": capsule.epoch,
        "actions": capsule.actions,
        "how": capsule.how,
        "origin": str(capsule.origin),
        "parent": str(capsule.parent) if capsule.parent is not None else None,
        "children": list(capsule.children),
        "published_at": published.at if published is not None else None,
    }
