"""Which part of a journal an environment's past is, and that past as a straight way: from its origin, without detours.

Resets, restores, forks and recoveries go back to what was published before; what is carried is what led to the content,
so that they leave no trace in it: the way has an origin, and generations that go on from it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from statefork.engine.commands import Brought
from statefork.engine.errors import UnknownRef
from statefork.journal.events import (
    ActionBegun,
    ActionEnded,
    EnvironmentCreated,
    EvaluationRecorded,
    Event,
    ExchangeRecorded,
    GenerationPublished,
    InputRecorded,
)
from statefork.journal.log import Recorded
from statefork.journal.values import Component, Moment
from statefork.replay.script import LEFT_OUT

CARRIED = (ActionBegun, ActionEnded, InputRecorded, ExchangeRecorded, EvaluationRecorded)
"""What belongs to the trajectory. Refusals, queues, revoked leases and verdicts are of the engine that it was in."""

Carried = ActionBegun | ActionEnded | InputRecorded | ExchangeRecorded | EvaluationRecorded
_COOKIE = "set-cookie"  # of a host outside
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "x-auth-token"})


class Stretch(msgspec.Struct, frozen=True):
    """A generation on the way, and what was done on the one before it."""

    published: GenerationPublished
    done: tuple[Carried, ...]


class Way(msgspec.Struct, frozen=True):
    """The way to a moment. ``needed``: by environment, the position up to which its history matters."""

    stretches: tuple[Stretch, ...]
    needed: dict[str, int]

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The generations, origin first."""
        return tuple(_moment(stretch.published) for stretch in self.stretches)

    @property
    def components(self) -> dict[tuple[str, str], Component]:
        """Every sealed component that a generation names, by resource and version."""
        return {
            (name, component.sealed.version): component
            for stretch in self.stretches
            for name, component in stretch.published.manifest.items()
        }

    @property
    def activity(self) -> Iterator[Carried]:
        """All that was done."""
        for stretch in self.stretches:
            yield from stretch.done

    def only(self, moments: Iterable[Moment]) -> Way:
        """The same with these generations alone; what was done before one that is left out counts to the next."""
        wanted = set(moments)
        kept: list[Stretch] = []
        done: tuple[Carried, ...] = ()
        for stretch in self.stretches:
            done += stretch.done
            if _moment(stretch.published) in wanted:
                kept.append(Stretch(stretch.published, done))
                done = ()
        return Way(tuple(kept), self.needed)


def _moment(published: GenerationPublished) -> Moment:
    return Moment(env=published.env, generation=published.generation)


def previous(published: GenerationPublished) -> Moment | None:
    """What a generation goes on from, or copies; None: it is an origin."""
    before = Moment(env=published.env, generation=published.generation - 1)
    match published.op:
        case "create" | "clone" | "import":
            return None
        case "snapshot":
            return before
        case _:
            return published.source or before


def way_to(moment: Moment, control: Mapping[str, Sequence[Recorded]], acted: Mapping[str, Sequence[Recorded]]) -> Way:
    """The way to a generation, from the control and activity streams of all environments on it.

    Raises UnknownRef where they lack a part of it.
    """
    published = {
        _moment(one.event): (one.position, one.event)
        for stream in control.values()
        for one in stream
        if isinstance(one.event, GenerationPublished)
    }
    done = _by_generation(control, acted)
    needed: dict[str, int] = {}
    stretches: list[Stretch] = []
    seen: set[Moment] = set()
    at: Moment | None = moment
    while at is not None:
        if at not in published or at in seen:
            raise UnknownRef(f"the history that leads to {moment} lacks {at}", environment=moment.env)
        seen.add(at)
        position, event = published[at]
        needed[at.env] = max(needed.get(at.env, 0), position)
        before = previous(event)
        if event.op == "snapshot":
            assert before is not None
            stretches.append(Stretch(event, tuple(_whole(done.get(before, ())))))
        elif before is None:
            stretches.append(Stretch(event, ()))
        at = before
    return Way(tuple(reversed(stretches)), needed)


def _by_generation(
    control: Mapping[str, Sequence[Recorded]], acted: Mapping[str, Sequence[Recorded]]
) -> dict[Moment, list[Carried]]:
    found: dict[Moment, list[Carried]] = {}
    for env, stream in acted.items():
        births = (one.position for one in control.get(env, ()) if isinstance(one.event, EnvironmentCreated))
        created = max(births, default=0)  # an import that was given up may have told of the name before
        for one in stream:
            event = one.event
            if isinstance(event, CARRIED) and one.position > created:
                found.setdefault(Moment(env=env, generation=event.generation), []).append(event)
    return found


def _whole(done: Iterable[Carried]) -> Iterator[Carried]:
    """An action that never ended ends as unknown: its environment was recovered, or is of a torn journal."""
    under_way: dict[int, ActionBegun] = {}
    for event in done:
        if isinstance(event, ActionBegun):
            under_way[event.number] = event
        elif isinstance(event, ActionEnded):
            under_way.pop(event.number, None)
        yield event
    for begun in under_way.values():
        yield ActionEnded(
            at=begun.at,
            env=begun.env,
            generation=begun.generation,
            epoch=begun.epoch,
            activation=begun.activation,
            lease=begun.lease,
            number=begun.number,
            outcome="unknown",
            error="it never ended",
        )


def blobs_of(event: Event) -> Iterator[str]:
    """The blobs that an event names."""
    if isinstance(event, ActionEnded) and event.observation is not None:
        seen = event.observation
        rest = (seen.rest.snapshot, seen.rest.screenshot) if seen.rest is not None else ()
        yield from (digest for digest in (seen.snapshot, seen.screenshot, *seen.parts.values(), *rest) if digest)
    elif isinstance(event, InputRecorded) and event.body:
        yield event.body
    elif isinstance(event, ExchangeRecorded) and event.answer:
        yield event.answer


def without_secrets(event: Event) -> tuple[Event, tuple[str, ...]]:
    """The event without what opens doors outside of its world, and the names of the headers that were covered."""
    if isinstance(event, ExchangeRecorded):
        kept = tuple(pair for pair in event.answer_headers if pair[0].lower() != _COOKIE)
        return (replace(event, answer_headers=kept), (_COOKIE,)) if kept != event.answer_headers else (event, ())
    if not isinstance(event, InputRecorded):
        return event, ()
    covered = tuple(sorted(name for name in event.headers if name.lower() in _SECRET_HEADERS))
    if not covered:
        return event, ()
    return replace(event, headers={**event.headers, **dict.fromkeys(covered, LEFT_OUT)}), covered


def thinned(moments: Sequence[Moment], most: int) -> list[Moment]:
    """At most so many of them, the first and the last among them, evenly."""
    if len(moments) <= most:
        return list(moments)
    step = (len(moments) - 1) / (most - 1)
    return [moments[round(at * step)] for at in range(most)]


def renamed(way: Way, env: str) -> Iterator[Event]:
    """All activity as that of another environment, which was never bound in this journal."""
    for number, stretch in enumerate(way.stretches):
        for event in stretch.done:
            common = {"env": env, "generation": number, "epoch": 1, "lease": 0}
            if isinstance(event, ActionBegun | ActionEnded | ExchangeRecorded):
                common["activation"] = 0
            yield replace(event, **common)


def brought(way: Way, made: Mapping[tuple[str, str], Component]) -> tuple[Brought, ...]:
    """The generations, with the components that were made for them here."""
    return tuple(
        Brought(
            manifest={
                name: made[name, component.sealed.version] for name, component in stretch.published.manifest.items()
            },
            published=stretch.published,
        )
        for stretch in way.stretches
    )
