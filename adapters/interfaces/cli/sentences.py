"""Events as sentences, for people who read a journal."""

from __future__ import annotations

import re

from statefork.journal import events as ev
from statefork.journal.events import Event
from statefork.journal.values import Held
from statefork.replay.steps import action_text


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 action, 2 actions."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def by_number(name: str) -> list[str | int]:
    """The key by which names are sorted as people count: a-f2 before a-f10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def sentence(event: Event) -> str:
    """What happened, without when and where."""
    if isinstance(event, _ENGINE):
        return _of_engine(event)
    return _of_activity(event) if isinstance(event, _ACTIVITY) else _of_environment(event)


_NAMED_MAX = 10  # of many generations that went

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
    | ev.ExchangeRecorded
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
            where = f" in {event.where}" if event.where else ""
            return f"engine started{where} (pid {event.pid}, statefork {event.statefork})"
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
    if not (event.settled or event.recovered or event.orphans or event.retired):
        return f"nothing to recover, looked through{took}" if took else "nothing to recover"
    parts = []
    for moment in event.recovered:
        lost = ", ".join(map(str, event.lost.get(moment.env, ())))
        parts.append(f"{moment} recovered{f' without actions {lost}' if lost else ''}")
    if event.settled:
        parts.append(f"{counted(len(event.settled), 'transition')} settled ({', '.join(event.settled)})")
    if event.retired:
        parts.append(f"retired with the commands that wanted them: {', '.join(event.retired)}")
    if event.orphans:
        kinds = ", ".join(f"{kind} {number}" for kind, number in event.orphan_kinds.items())
        parts.append(f"{counted(event.orphans, 'orphan')} removed{f' ({kinds})' if kinds else ''}")
    return f"recovery{took}: {'; '.join(parts)}"


def _of_environment(event: Event) -> str:
    match event:
        case ev.EnvironmentCreated():
            parent = f" of {event.parent}" if event.parent is not None else ""
            helps = f", for one command: {event.helps}" if event.helps else ""
            return f"{event.env} begins: {event.how}{parent}{helps}"
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
        case ev.EnvironmentImported():
            return f"imported up to generation {event.generation}: {event.source} of journal {event.journal}"
        case ev.GenerationsPruned():
            names = ", ".join(f"@{one.generation}" for one in event.pruned[:_NAMED_MAX])
            more = f" and {len(event.pruned) - _NAMED_MAX} more" if len(event.pruned) > _NAMED_MAX else ""
            return f"pruned ({event.retention}): {names}{more}; each can be made again"
        case ev.GenerationMarked():
            what = f"marked {event.mark!r}" if event.mark else "no longer marked"
            return f"{event.env}@{event.generation} is {what}"
        case ev.PolicyChosen():
            said = "as the contract says"
            return f"from now on: snapshots {event.snapshots or said}, retention {event.retention or said}"
        case ev.CommandAnswered():
            return f"the key {event.key!r} ({event.request}) leads to {event.env}@{event.generation}"
        case _:
            raise AssertionError(event)


def _of_activity(event: Event) -> str:
    match event:
        case ev.ActionBegun():
            return f"#{event.number} {action_text(event.action)}"
        case ev.ActionEnded():
            looked = event.observation
            page = looked is not None and (looked.url or looked.title)
            seen = f" -> {looked.url} {looked.title!r}" if looked is not None and page else ""
            error = f": {event.error}" if event.error else ""
            return f"#{event.number} {event.outcome} in {event.elapsed_ms:.0f} ms{error}{seen}"
        case ev.LeaseRevoked():
            return f"lease {event.lease} of {event.holder} revoked: {event.reason}"
        case ev.InputRecorded():
            return f"input {event.method} {event.url} -> {event.status}"
        case ev.ExchangeRecorded():
            how = ", as recorded" if event.given else ""
            return f"outside{how}: {event.method} {event.url} -> {event.status or event.error}"
        case ev.RequestRefused():
            return f"refused {event.status} [{event.code}] {event.method} {event.url}: {event.detail}"
        case ev.EnvironmentQueued():
            return f"waits for a {event.kind} slot: number {event.position} in the queue"
        case ev.EvaluationRecorded():
            return f"evaluation {event.name}: {event.score:g} (generation {event.generation})"
        case ev.ReplayVerdict():
            where = f", first divergence at #{event.first_divergence}" if event.first_divergence else ""
            actions = counted(event.actions, "action")
            place = f"{event.copied_from}, copied to {event.child}" if event.copied_from else event.child
            return f"replay of {actions} from {event.source} in {place}: {event.verdict}{where}"
        case _:
            raise AssertionError(event)


def _held(held: tuple[Held, ...]) -> str:
    return f"; open at the freeze: {', '.join(f'{one.holder} ({one.how})' for one in held)}" if held else ""
