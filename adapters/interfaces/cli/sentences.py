"""Events as sentences, for people who read a journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statefork.journal import events as ev
from statefork.journal.events import Event
from statefork.journal.values import Held, Json

TEXT_CHARS_MAX = 100


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 action, 2 actions."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sentence(event: Event) -> str:
    """What happened, without when and where."""
    if isinstance(event, _ENGINE):
        return _of_engine(event)
    return _of_activity(event) if isinstance(event, _ACTIVITY) else _of_environment(event)


_ENGINE = (
    ev.JournalCreated
    | ev.EngineStarted
    | ev.EngineStopped
    | ev.ContractRegistered
    | ev.BaseProvisioned
    | ev.OrphanCollected
    | ev.RecoveryFinished
)
_ACTIVITY = (
    ev.ActionBegun
    | ev.ActionEnded
    | ev.LeaseRevoked
    | ev.InputRecorded
    | ev.RequestRefused
    | ev.EnvironmentQueued
    | ev.EvaluationRecorded
    | ev.ReplayVerdict
)


def _of_engine(event: Event) -> str:
    match event:
        case ev.JournalCreated():
            return f"journal {event.journal} created by statefork {event.statefork}"
        case ev.EngineStarted():
            return f"engine started (pid {event.pid}, statefork {event.statefork})"
        case ev.EngineStopped():
            return "engine stopped in good order"
        case ev.ContractRegistered():
            return f"contract {event.name} registered ({event.digest[:12]})"
        case ev.BaseProvisioned():
            return f"bases of {', '.join(event.manifest)} are ready"
        case ev.OrphanCollected():
            return f"orphan removed: {event.kind} {event.name} of {event.resource}"
        case ev.RecoveryFinished():
            return _of_recovery(event)
        case _:
            raise AssertionError(event)


def _of_recovery(event: ev.RecoveryFinished) -> str:
    """One line; the environments' own streams tell the rest, and each orphan has an event of its own."""
    took = f" in {event.elapsed_ms:.0f} ms" if event.elapsed_ms else ""
    if not (event.settled or event.recovered or event.orphans):
        return f"nothing to recover, looked through{took}" if took else "nothing to recover"
    parts = []
    for moment in event.recovered:
        lost = ", ".join(map(str, event.lost.get(moment.env, ())))
        parts.append(f"{moment} recovered{f' without actions {lost}' if lost else ''}")
    if event.settled:
        parts.append(f"{counted(len(event.settled), 'transition')} settled ({', '.join(event.settled)})")
    if event.orphans:
        kinds = ", ".join(f"{kind} {number}" for kind, number in event.orphan_kinds.items())
        parts.append(f"{counted(event.orphans, 'orphan')} removed{f' ({kinds})' if kinds else ''}")
    return f"recovery{took}: {'; '.join(parts)}"


def _of_environment(event: Event) -> str:
    match event:
        case ev.EnvironmentCreated():
            parent = f" of {event.parent}" if event.parent is not None else ""
            return f"{event.env} begins: {event.how}{parent}"
        case ev.TransitionBegun():
            source = f" from {event.source}" if event.source is not None else ""
            return f"{event.op}{source}: frozen at generation {event.base}"
        case ev.TransitionDrained():
            return f"drained{_held(event.held)}"
        case ev.GenerationPublished():
            lost = f", lost actions {', '.join(map(str, event.lost_actions))}" if event.lost_actions else ""
            return f"{event.env}@{event.generation} published by {event.op}, epoch {event.epoch}{lost}"
        case ev.TransitionAborted():
            component = f" ({event.component})" if event.component else ""
            return f"{event.op} aborted{component}: [{event.code}] {event.reason}"
        case ev.EnvironmentForked():
            return f"{event.how} {event.child} taken from generation {event.generation}"
        case ev.EnvironmentActivated():
            return f"activated with generation {event.generation} (activation {event.activation})"
        case ev.EnvironmentParked():
            return f"parked at generation {event.generation}" + (f": {event.reason}" if event.reason else "")
        case ev.EnvironmentRetired():
            return f"retired at generation {event.generation}"
        case ev.CommandAnswered():
            return f"the key {event.key!r} ({event.request}) leads to {event.env}@{event.generation}"
        case _:
            raise AssertionError(event)


def _of_activity(event: Event) -> str:
    match event:
        case ev.ActionBegun():
            return f"#{event.number} {action_text(event.action)}"
        case ev.ActionEnded():
            seen = f" -> {event.observation.url} {event.observation.title!r}" if event.observation is not None else ""
            error = f": {event.error}" if event.error else ""
            return f"#{event.number} {event.outcome} in {event.elapsed_ms:.0f} ms{error}{seen}"
        case ev.LeaseRevoked():
            return f"lease {event.lease} of {event.holder} revoked: {event.reason}"
        case ev.InputRecorded():
            return f"input {event.method} {event.url} -> {event.status}"
        case ev.RequestRefused():
            return f"refused {event.status} [{event.code}] {event.method} {event.url}: {event.detail}"
        case ev.EnvironmentQueued():
            return f"waits for a {event.kind} slot: number {event.position} in the queue"
        case ev.EvaluationRecorded():
            return f"evaluation {event.name}: {event.score:g} (generation {event.generation})"
        case ev.ReplayVerdict():
            where = f", first divergence at #{event.first_divergence}" if event.first_divergence else ""
            actions = counted(event.actions, "action")
            return f"replay of {actions} from {event.source} in {event.child}: {event.verdict}{where}"
        case _:
            raise AssertionError(event)


def _held(held: tuple[Held, ...]) -> str:
    return f"; open at the freeze: {', '.join(f'{one.holder} ({one.how})' for one in held)}" if held else ""


def action_text(action: Mapping[str, Json]) -> str:
    """An action in one line: its kind, then its fields."""
    fields = [f"{key}={_value(value)}" for key, value in action.items() if key != "type"]
    text = " ".join([str(action.get("type", "action")), *fields])
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"


def _value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
