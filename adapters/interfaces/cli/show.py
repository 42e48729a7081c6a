"""``statefork show``: one environment, one generation or one action, whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio

from statefork.adapters.interfaces.cli.create import say_sites
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, RefArgument, StateOption
from statefork.adapters.interfaces.cli.output import Out, moment_text, short
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.cli.sentences import by_number, counted
from statefork.adapters.interfaces.control.client import Control, EngineLost, engine_runs
from statefork.adapters.interfaces.control.protocol import Named
from statefork.adapters.interfaces.moments import (
    action_plain,
    generation_plain,
    last_action,
    published,
    published_plain,
)
from statefork.adapters.interfaces.policies import chosen_texts, policies
from statefork.engine.capsule import Capsule, Generation
from statefork.engine.errors import UnknownRef
from statefork.engine.refs import Ref, parse_ref
from statefork.engine.world import World
from statefork.journal.errors import BlobMissing, StateforkError
from statefork.journal.store import StateView
from statefork.journal.values import Json, Moment, Sealed
from statefork.replay.lineage import Act, Witnessed
from statefork.replay.rebuild import rebuild
from statefork.replay.steps import action_text

EXAMPLES = """
    statefork show shop-1        its generations, lineage and children; while an engine runs, its sites' addresses
    statefork show shop-1@2      generation 2: manifest, timings, what each component is
    statefork show shop-1#5      the 5th action: what was done, what was seen
"""


PATIENCE_S = 2.0
"""How long a running engine is waited for: who looks at one that hangs must not hang with it."""

MAKING = "making "
"""How it begins what an environment helps with that makes a moment (``helps`` of its creation)."""


def show(ref: RefArgument, state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Show an environment, a generation or an action. Works with and without a running engine."""
    out = Out(as_json=as_json)
    named = parse_ref(ref)

    async def look() -> None:
        async with view(state) as opened:
            world = await rebuild(opened.journal)
            if named.env not in world.environments:
                raise UnknownRef(
                    f"there is no environment {named.env!r} in this journal", hint="See: statefork ls --all", ref=ref
                )
            capsule = world.environments[named.env]
            where = _elsewhere(opened, world, capsule)
            if named.is_now:
                sites = {} if where else await anyio.to_thread.run_sync(_sites, state, named.env)
                _environment(world, capsule, sites, where, out)
            elif named.generation is not None and not named.plus:
                await _generation(opened, world, Moment(env=named.env, generation=named.generation), out)
            else:
                await _action(opened, named, where, out)

    run(look)


def _elsewhere(opened: StateView, world: World, capsule: Capsule) -> str:
    """The state directory that has the environment, where that is another one; else empty."""
    if capsule.place == opened.place:
        return ""
    return world.elsewhere.places.get(capsule.place) or f"place {capsule.place}"


def _sites(state: Path, env: str) -> dict[str, str] | None:
    """The private base URLs of an environment that an engine serves now; they die with it. None: it did not answer."""
    if not engine_runs(state):
        return {}
    try:
        found: dict[str, str] = Control(state, patience_s=PATIENCE_S).ask("describe", Named(env=env))["sites"]
    except EngineLost:
        return None
    except StateforkError:  # retired, or the engine has just been closed: there are none
        return {}
    return found


def _environment(world: World, capsule: Capsule, sites: dict[str, str] | None, where: str, out: Out) -> None:
    lineage = [str(generation.moment) for generation in world.lineage(capsule.moment)] if capsule.generation else []
    children = sorted(capsule.children, key=by_number)
    generations = [generation_plain(generation) for generation in capsule.generations.values()]
    out.data(
        {
            "env": capsule.env,
            "phase": capsule.phase.value,
            "ref": str(capsule.moment),
            "epoch": capsule.epoch,
            "actions": capsule.actions,
            "how": capsule.how,
            "origin": str(capsule.origin),
            "parent": str(capsule.parent) if capsule.parent is not None else None,
            "children": children,
            "here": not where,
            "place": capsule.place or None,
            "where": world.elsewhere.places.get(capsule.place),
            "sites": sites,
            "policies": policies(capsule),
            "generations": generations,
            "lineage": lineage,
        }
    )
    parent = f" of {capsule.parent}" if capsule.parent is not None else ""
    out.say(f"{capsule.env}: {capsule.phase.value} at generation {capsule.generation}, epoch {capsule.epoch}", "bold")
    out.say(f"  {capsule.how}{parent}; reset leads to {capsule.origin}; {_lineage(capsule.actions)}")
    if where:
        out.say(f"  lives in another state directory of this journal: {where}")
    for name, policy, since in chosen_texts(capsule):
        out.say(f"  {name}: {policy}, since {moment_text(since)} UTC")
    if children:
        out.say(f"  children: {', '.join(children)}")
    out.say(f"  lineage: {' <- '.join(lineage) or 'nothing was published'}")
    if sites is None:
        out.say("  the engine does not answer, so its sites are not known")
    say_sites(out, sites or {})
    rows = [_generation_row(world, generation) for generation in capsule.generations.values()]
    out.table(("generation>", "operation", "from", "epoch>", "actions>", "lost", "published (UTC)", "mark"), rows)


def _named(world: World, moment: Moment) -> str:
    """A generation; one that was made for a command by what was asked for, and where it was made."""
    helper = world.environments.get(moment.env)
    asked = helper.helps.removeprefix(MAKING) if helper is not None and helper.helps.startswith(MAKING) else ""
    return (
        f"{asked} (made in {moment.env})" if helper is not None and asked and moment == helper.moment else str(moment)
    )


def _generation_row(world: World, generation: Generation) -> tuple[str, ...]:
    return (
        str(generation.number),
        generation.op,
        _named(world, generation.previous) if generation.previous is not None else "base",
        str(generation.epoch),
        str(generation.actions),
        ", ".join(map(str, generation.lost_actions)),
        moment_text(generation.at),
        "pruned" if generation.pruned else generation.mark,
    )


async def _generation(opened: StateView, world: World, moment: Moment, out: Out) -> None:
    generation = world.generation(moment)
    event, held = await published(opened.journal, moment)
    contract = _contract_name(world, event.contract)
    out.data(
        {
            **generation_plain(generation),
            **published_plain(event, held, contract),
        }
    )
    out.say(f"{moment}: published by {generation.op} at {moment_text(generation.at)} UTC", "bold")
    source = f"; from {_named(world, generation.source)}" if generation.source is not None else ""
    out.say(f"  contract {contract}; epoch {generation.epoch}; {_lineage(generation.actions)}{source}")
    if generation.mark:
        out.say(f"  marked {generation.mark!r}")
    if generation.pruned:
        out.say("  its content was pruned; a fork of it is made again from the nearest generation that stays")
    if generation.lost_actions:
        out.say(f"  lost in a crash: actions {', '.join(map(str, generation.lost_actions))}")
    if event.timings_ms:
        out.say(f"  took {', '.join(f'{name} {ms:.1f} ms' for name, ms in event.timings_ms.items())}")
    for one in held:
        out.say(f"  open at the freeze: {one.holder} ({one.how} after {one.waited_ms:.0f} ms)")
    rows = [
        (
            name,
            _adapter(component.sealed),
            component.durability,
            short(component.sealed.version, 20),
            ", ".join(component.depends_on),
            _where(component.sealed.data),
        )
        for name, component in event.manifest.items()
    ]
    out.table(("resource", "adapter", "durability", "version", "depends on", "where"), rows)


def _adapter(sealed: Sealed) -> str:
    """With the strategy, where that is a fact of the version."""
    strategy = sealed.data.get("strategy")
    return f"{sealed.adapter} ({strategy})" if strategy else sealed.adapter


def _where(data: Mapping[str, Json]) -> str:
    """A path below the state directory, or the name of a database on its server."""
    return f"database {data['database']}" if "database" in data else str(data.get("path", ""))


def _contract_name(world: World, digest: str) -> str:
    known = world.contracts.get(digest)
    return known.name if known is not None else short(digest)


async def _action(opened: StateView, named: Ref, where: str, out: Out) -> None:
    _show_action(opened, *await last_action(opened.journal, named), where, out)


def _show_action(opened: StateView, step: Act, witnessed: Witnessed, where: str, out: Out) -> None:
    seen = witnessed.observation
    text = ""
    screenshot = ""
    if seen is not None:
        try:
            text = opened.blobs.get(seen.snapshot).decode(errors="replace") if seen.snapshot else ""
            screenshot = str(opened.blobs.path(seen.screenshot)) if seen.screenshot else ""
        except BlobMissing as error:
            text = text or f"({f'what was seen lies in {where}' if where else error.message})"
    out.data({**action_plain(step, witnessed, text), "screenshot_path": screenshot})
    out.say(f"#{step.number} {action_text(step.action)}", "bold")
    out.say(f"  {witnessed.outcome} (position {witnessed.position}){': ' if witnessed.error else ''}{witnessed.error}")
    if seen is not None:
        if seen.url or seen.title:
            out.say(f"  {seen.url}  {seen.title!r}")
        if seen.value is not None:
            out.say(f"  value: {seen.value}")
        if screenshot:
            out.say(f"  screenshot: {screenshot}")
        if text:
            out.say(text)


def _lineage(actions: int) -> str:
    return f"{counted(actions, 'action')} in its lineage"
