"""The trajectory of an environment: the actions and inputs that led to its content, from its origin, in order.

A generation is either a continuation (a snapshot: what its base held, plus everything done on the base since) or a copy
(reset, restore, recover, fork: what its source held when that was published). Following these two rules back to a
created or cloned environment gives the lineage. What an abandoned future did is not in it.

Everything here is pure: it folds events that were read elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from statefork.engine.errors import UnknownRef
from statefork.engine.refs import LEAVING, beyond_the_last
from statefork.journal.events import (
    ActionBegun,
    ActionEnded,
    EnvironmentCreated,
    Event,
    ExchangeRecorded,
    GenerationPublished,
    InputRecorded,
)
from statefork.journal.log import Recorded
from statefork.journal.values import Conditions, Json, Moment, Observation


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An action of the lineage, as it was asked for. ``number`` counts along the lineage, from 1."""

    number: int
    action: dict[str, Json]
    conditions: Conditions | None = None  # under which it was carried out; None: they were real, and nobody knows them
    asked: tuple[ExchangeRecorded, ...] = ()  # of hosts outside, from its beginning to that of the next step

    @property
    def opaque(self) -> bool:
        """What was done is not recorded (a raw page was handed out), so it can't be done again."""
        return self.action.get("type") == OPAQUE


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A mutating request that no action caused, at its place: after action number ``after``."""

    after: int
    method: str
    url: str
    headers: dict[str, str] = {}
    body: str = ""  # blob digest; empty when there was no body
    conditions: Conditions | None = None  # under which it was answered
    asked: tuple[ExchangeRecorded, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.url} after action {self.after}"


Step = Act | Given

OPAQUE = "opaque"


class Witnessed(msgspec.Struct, frozen=True, kw_only=True):
    """How a step went when it was recorded. Kept apart from the step itself, so that a re-execution can't look."""

    position: int
    outcome: Literal["ok", "failed", "unknown"]
    error: str = ""
    observation: Observation | None = None
    status: int = 0  # of a given request


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """Steps from the origin to a moment, with what was recorded of each, in two rows of equal length."""

    env: str
    generation: int
    origin: Moment
    contract: str
    steps: tuple[Step, ...]
    witnessed: tuple[Witnessed, ...]

    @property
    def actions(self) -> int:
        """Number of actions, which is also the lineage number of the last one."""
        return sum(isinstance(step, Act) for step in self.steps)


class _Done:
    """A step in the making: the end of an action is recorded later than its beginning."""

    __slots__ = ("step", "witnessed")

    def __init__(self, step: Step, witnessed: Witnessed) -> None:
        self.step = step
        self.witnessed = witnessed


class Past:
    """What the journal holds of one environment, as far as lineage is concerned. Fed with its events in order."""

    def __init__(self, env: str) -> None:
        self.env = env
        self.contract = ""
        self.published: dict[int, GenerationPublished] = {}
        self.head = 0
        self._tails: dict[int, list[_Done]] = {}
        self._asked: dict[int, list[ExchangeRecorded]] = {}
        self._brought: dict[int, list[ExchangeRecorded]] = {}
        self._since = 0  # where it was created; an import that was given up may have told of the name before

    @property
    def parents(self) -> frozenset[str]:
        """Environments whose past is needed as well."""
        named = {event.source.env for event in self.published.values() if event.source is not None}
        return frozenset(named - {self.env})

    def note(self, recorded: Recorded) -> None:
        """Take an event of this environment into account; others are ignored."""
        event = recorded.event
        if recorded.position < self._since:
            return
        match event:
            case EnvironmentCreated(env=self.env):
                self.contract = event.contract
                self._since = recorded.position
                self._tails.clear()
                self._asked.clear()
                self._brought.clear()
            case GenerationPublished(env=self.env):
                self.published[event.generation] = event
                self.head = event.generation
            case ActionBegun(env=self.env):
                step = Act(number=event.number, action=event.action, conditions=_conditions(event))
                lost = Witnessed(position=recorded.position, outcome="unknown", error="it never ended")
                self._tails.setdefault(event.generation, []).append(_Done(step, lost))
            case ActionEnded(env=self.env):
                self._ended(recorded.position, event)
            case InputRecorded(env=self.env):
                self._given(recorded.position, event)
            case ExchangeRecorded(env=self.env):
                kept = self._brought if event.cause == "binding" else self._asked
                kept.setdefault(event.generation, []).append(event)
            case _:
                pass

    def _ended(self, position: int, event: ActionEnded) -> None:
        for done in reversed(self._tails.get(event.generation, [])):
            if isinstance(done.step, Act) and done.step.number == event.number:
                done.witnessed = Witnessed(
                    position=position, outcome=event.outcome, error=event.error, observation=event.observation
                )
                return

    def _given(self, position: int, event: InputRecorded) -> None:
        step = Given(
            after=event.after_action,
            method=event.method,
            url=event.url,
            headers=event.headers,
            body=event.body,
            conditions=_conditions(event),
        )
        witnessed = Witnessed(position=position, outcome="ok", status=event.status)
        self._tails.setdefault(event.generation, []).append(_Done(step, witnessed))

    def tail(self, generation: int) -> list[tuple[Step, Witnessed]]:
        """What was done on a generation, in order."""
        tail = [(done.step, done.witnessed) for done in self._tails.get(generation, [])]
        return _with_asked(tail, self.asked(generation))

    def asked(self, generation: int) -> list[ExchangeRecorded]:
        """What pages asked of hosts outside while a generation was the present one, in the order of asking."""
        return sorted(self._asked.get(generation, ()), key=_order)

    def brought(self, generation: int) -> list[ExchangeRecorded]:
        """What they asked while a generation was bound: when pages were loaded again, or the first one was."""
        return sorted(self._brought.get(generation, ()), key=_order)


def _order(event: ExchangeRecorded) -> tuple[int, int]:
    return event.activation, event.asked


def _with_asked(tail: list[tuple[Step, Witnessed]], asked: list[ExchangeRecorded]) -> list[tuple[Step, Witnessed]]:
    """The same, each exchange with the last step that had begun; what came before the first step is with that."""
    if not tail or not asked:
        return tail
    of_step: dict[int, list[ExchangeRecorded]] = {}
    begins = [number_of(step) for step, _ in tail]
    for event in asked:
        of_step.setdefault(max(bisect_right(begins, event.after_action) - 1, 0), []).append(event)
    for at, events in of_step.items():
        step, witnessed = tail[at]
        tail[at] = (msgspec.structs.replace(step, asked=tuple(events)), witnessed)
    return tail


def number_of(step: Step) -> int:
    """Lineage number of an action, or of the one before an input."""
    return step.number if isinstance(step, Act) else step.after


def _conditions(event: ActionBegun | InputRecorded) -> Conditions | None:
    """What held then; clocks that were real and went on are given back as they were when it happened."""
    return Conditions(seed=event.seed, now=event.clock or event.at) if event.seed else None


def pasts(history: Iterable[Recorded]) -> dict[str, Past]:
    """The pasts of all environments that a stretch of history speaks of."""
    found: dict[str, Past] = {}
    for recorded in history:
        env = env_of(recorded.event)
        if env:
            found.setdefault(env, Past(env)).note(recorded)
    return found


def env_of(event: Event) -> str:
    """The environment that an event belongs to; empty for events of the engine."""
    return getattr(event, "env", "")


def trajectory(
    known: Mapping[str, Past], env: str, *, generation: int | None = None, actions: int | None = None
) -> Trajectory:
    """The trajectory that led to a moment of ``env``.

    With ``generation``: to that generation as it was published. Without: to the present. ``actions`` cuts it after
    that many actions of the lineage. Raises UnknownRef where the journal holds no such moment.
    """
    past = _past(known, env)
    if generation is not None and generation not in past.published:
        raise UnknownRef(f"{env} has no generation {generation}", hint=f"See: statefork show {env}", environment=env)
    if not past.head:
        raise UnknownRef(f"nothing of {env} was ever published", environment=env)
    at = past.head if generation is None else generation
    origin, done = _content(known, Moment(env=env, generation=at))
    if generation is None:
        done += past.tail(at)
    if actions is not None:
        have = sum(isinstance(step, Act) for step, _ in done)
        if actions > have:
            left = any(event.op in LEAVING for event in past.published.values())
            raise beyond_the_last(env, actions, have, left=left)
        done = _cut(done, actions)
    return Trajectory(
        env=env,
        generation=at,
        origin=origin,
        contract=past.contract,
        steps=tuple(step for step, _ in done),
        witnessed=tuple(witnessed for _, witnessed in done),
    )


def steps_after(known: Mapping[str, Past], moment: Moment, actions: int) -> list[tuple[Step, Witnessed]]:
    """What followed a generation, up to the given number of actions, across the snapshots that were taken meanwhile.

    Raises UnknownRef where fewer actions followed before the next switch.
    """
    past = _past(known, moment.env)
    published = past.published.get(moment.generation)
    if published is None:
        raise UnknownRef(f"{moment} was never published", environment=moment.env)
    done = _all_after(past, moment)
    if actions > (have := _acts(done)):
        raise too_far(moment, have, actions)
    return _cut(done, published.actions + actions)


def actions_after(known: Mapping[str, Past], moment: Moment) -> int:
    """How many actions followed a generation before the next switch."""
    return _acts(_all_after(_past(known, moment.env), moment))


def too_far(moment: Moment, have: int, wanted: int) -> UnknownRef:
    """The error of a ref that counts more actions after a generation than there are."""
    number = f"only {have} actions were" if have > 1 else "only one action was" if have else "no action was"
    last = f"{moment}+{have}" if have else str(moment)
    return UnknownRef(
        f"{moment}+{wanted}: {number} done after {moment}, until it was left",
        hint=f"The last moment there is {last}",
        environment=moment.env,
        ref=f"{moment}+{wanted}",
    )


def _all_after(past: Past, moment: Moment) -> list[tuple[Step, Witnessed]]:
    done: list[tuple[Step, Witnessed]] = []
    at = moment.generation
    while True:
        done += past.tail(at)
        at += 1
        if at not in past.published or past.published[at].op != "snapshot":
            return done


def _acts(done: list[tuple[Step, Witnessed]]) -> int:
    return sum(isinstance(step, Act) for step, _ in done)


def steps_to(known: Mapping[str, Past], moment: Moment) -> list[tuple[Step, Witnessed]]:
    """What led to a generation, from its origin. What led to one that it goes on from is a beginning of that."""
    return _content(known, moment)[1]


def last_seen(known: Mapping[str, Past], moment: Moment) -> Observation | None:
    """What was seen right before a generation was published; None where nothing was, or something came after it."""
    steps = steps_to(known, moment)
    if not steps:
        return None
    step, witnessed = steps[-1]
    return witnessed.observation if isinstance(step, Act) and witnessed.outcome != "unknown" else None


def _past(known: Mapping[str, Past], env: str) -> Past:
    if env not in known:
        raise UnknownRef(f"the journal holds no environment {env}", hint="See: statefork ls --all", environment=env)
    return known[env]


def answers_before(known: Mapping[str, Past], moment: Moment) -> Iterator[ExchangeRecorded]:
    """What pages had asked of hosts outside by the time a generation was published, or was bound, oldest first."""
    for at, led_on in path_to(known, moment):
        yield from _past(known, at.env).brought(at.generation)
        if led_on:
            yield from _past(known, at.env).asked(at.generation)


def _content(known: Mapping[str, Past], moment: Moment) -> tuple[Moment, list[tuple[Step, Witnessed]]]:
    """Where the lineage of a generation starts, and the steps from there to what it held when it was published."""
    path = path_to(known, moment)
    steps = [item for at, led_on in path if led_on for item in _past(known, at.env).tail(at.generation)]
    return path[0][0], steps


def path_to(known: Mapping[str, Past], moment: Moment) -> list[tuple[Moment, bool]]:
    """The generations that led to one, from its origin, that one included; and of each, whether what was done on it
    did (it was followed by a snapshot), or only what it held when it was published."""
    path = [(moment, False)]
    seen: set[Moment] = set()
    at = moment
    while True:
        assert at not in seen, f"{at} descends from itself"
        seen.add(at)
        published = _past(known, at.env).published.get(at.generation)
        if published is None:
            raise UnknownRef(f"{at} is named as a source, but was never published", environment=at.env)
        before = Moment(env=at.env, generation=at.generation - 1)
        match published.op:
            case "create" | "clone" | "import":
                return path[::-1]
            case "snapshot":
                at = before
            case "recover":  # the last published components, without what was done on them since
                at = published.source or before
            case "reset" | "restore" | "fork":
                assert published.source is not None, f"{published.op} of {at} names no source"
                at = published.source
        path.append((at, published.op == "snapshot"))


def _cut(done: list[tuple[Step, Witnessed]], actions: int) -> list[tuple[Step, Witnessed]]:
    """The steps up to the end of the action with that number."""
    kept = []
    for step, witnessed in done:
        last = step.number if isinstance(step, Act) else step.after + 1
        if last <= actions:
            kept.append((step, witnessed))
    return kept
