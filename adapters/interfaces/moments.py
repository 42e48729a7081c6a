"""What the journal tells of one moment, as JSON: a generation with its manifest, or an action with what was seen."""

from __future__ import annotations

from typing import Any

import msgspec

from statefork.engine.capsule import Generation
from statefork.engine.errors import UnknownRef
from statefork.engine.refs import Ref
from statefork.journal.events import GenerationPublished, TransitionDrained, control_stream
from statefork.journal.log import Reader
from statefork.journal.values import Held, Moment
from statefork.replay.lineage import Act, Witnessed, steps_after, trajectory
from statefork.replay.rebuild import pasts_of


def generation_plain(generation: Generation) -> dict[str, Any]:
    """A generation as JSON."""
    return {
        "ref": str(generation.moment),
        "operation": generation.op,
        "epoch": generation.epoch,
        "actions": generation.actions,
        "source": str(generation.source) if generation.source is not None else None,
        "lost_actions": list(generation.lost_actions),
        "published_at": generation.at,
        "mark": generation.mark or None,
        "pruned": generation.pruned,
    }


def published_plain(published: GenerationPublished, held: tuple[Held, ...], contract: str) -> dict[str, Any]:
    """What its publish tells besides, as JSON. ``contract``: the name of its contract."""
    return {
        "contract": {"digest": published.contract, "name": contract},
        "transition": published.transition,
        "timings_ms": published.timings_ms,
        "held": msgspec.to_builtins(held),
        "manifest": msgspec.to_builtins(published.manifest),
    }


async def published(journal: Reader, moment: Moment) -> tuple[GenerationPublished, tuple[Held, ...]]:
    """The event that published a generation, and what was open at its freeze. Raises UnknownRef."""
    held: tuple[Held, ...] = ()
    async for recorded in journal.read(stream=control_stream(moment.env)):
        match recorded.event:
            case TransitionDrained():
                held = recorded.event.held
            case GenerationPublished(generation=moment.generation):
                return recorded.event, held
            case GenerationPublished():
                held = ()
            case _:
                pass
    raise UnknownRef(f"{moment} was never published", ref=str(moment))


async def last_action(journal: Reader, named: Ref) -> tuple[Act, Witnessed]:
    """The action before a moment, and what came of it. Raises UnknownRef, also where there is none."""
    pasts = await pasts_of(journal, named.env)
    if named.generation is not None:
        done = steps_after(pasts, Moment(env=named.env, generation=named.generation), named.plus)
    else:
        found = trajectory(pasts, named.env, actions=named.action)
        done = list(zip(found.steps, found.witnessed, strict=True))
    acts = [(step, witnessed) for step, witnessed in done if isinstance(step, Act)]
    if not acts:
        raise UnknownRef(f"{named} is the beginning: there is no action before it", ref=str(named))
    return acts[-1]


def action_plain(step: Act, witnessed: Witnessed, text: str) -> dict[str, Any]:
    """An action as JSON. ``text``: the accessibility snapshot that was seen after it."""
    seen = witnessed.observation
    return {
        "number": step.number,
        "action": step.action,
        "position": witnessed.position,
        "outcome": witnessed.outcome,
        "error": witnessed.error,
        "observation": msgspec.to_builtins(seen) if seen is not None else None,
        "text": text,
    }
