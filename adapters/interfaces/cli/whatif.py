"""``statefork replay --inject | --with``: what if another thing had been done?

A new environment is forked of the moment before the first change, and goes on from there: what is changed is done
instead of what was recorded, and with ``--rest`` all that was recorded after it. It is left, to go on with.
"""

from __future__ import annotations

import inspect
import runpy
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.cli.words import action_from
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Act, Fork
from statefork.engine.refs import parse_ref
from statefork.journal.errors import StateforkError
from statefork.journal.values import Json
from statefork.replay.lineage import Act as Recorded
from statefork.replay.lineage import Trajectory, Witnessed, trajectory
from statefork.replay.rebuild import pasts_of
from statefork.replay.steps import action_text

Action = dict[str, Json]
Change = Callable[[int, Action, Mapping[str, Any] | None], Any]
"""Called before each recorded action with its number, itself, and what was seen last. None: do it; an action or a list
of actions: do these instead; False: stop here."""

_SHAPE = "change(number, action, seen)"


class Injected:
    """The changes of ``--inject``: at these numbers something else is done."""

    def __init__(self, texts: list[str], *, rest: bool) -> None:
        self.changes: dict[int, list[Action]] = {}
        for text in texts:
            number, colon, words = text.partition(":")
            if not colon or not number.strip().isdecimal() or int(number) < 1:
                raise UsageError(f"--inject is 'NUMBER: ACTION', not {text!r}", hint="As in --inject '5: press Enter'")
            self.changes.setdefault(int(number), []).append(action_from(_words(words.strip(), text)))
        self._last = max(self.changes)
        self._rest = rest

    def check(self, env: str, actions: int) -> None:
        """Raises UsageError where there is nothing to do otherwise."""
        for number in sorted(self.changes):
            if number > actions:
                raise UsageError(
                    f"--inject '{number}: …': {env} has {counted(actions, 'action') if actions else 'no actions'}",
                    hint=f"The last one is action {actions}" if actions else "Do one with `statefork act`",
                )

    def __call__(self, number: int, action: Action, seen: Mapping[str, Any] | None) -> Any:
        if number > self._last and not self._rest:
            return False
        return self.changes.get(number)


def _words(text: str, whole: str) -> list[str]:
    if text.startswith("{"):
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--inject {whole!r} can't be read: {error}") from error


def change_of(file: Path) -> Change:
    """The function ``change`` of a Python file; what it raises is told with the line. Raises UsageError."""
    try:
        found = runpy.run_path(str(file)).get("change")
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}", file=str(file)) from error
    except Exception as error:
        raise _fault(file, error, "fails") from error
    if not callable(found):
        raise UsageError(f"{file} has no function {_SHAPE}", file=str(file))
    change = cast("Change", found)
    try:
        inspect.signature(change).bind(1, {}, None)
    except TypeError as error:
        raise UsageError(f"{file}: change is called as {_SHAPE}, and can't be: {error}", file=str(file)) from error

    def asked(number: int, action: Action, seen: Mapping[str, Any] | None) -> Any:
        try:
            return change(number, action, seen)
        except Exception as error:
            raise _fault(file, error, f"change fails at action {number}") from error

    return asked


def _fault(file: Path, error: Exception, what: str) -> UsageError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = f"{file}, line {line}" if line else str(file)
    return UsageError(f"{place}: {what}: {type(error).__name__}: {error}", file=str(file))


class Done(NamedTuple):
    """One action of the new environment. ``number``: of the recorded one that it stands for."""

    number: int
    action: Action
    changed: bool
    outcome: str
    same: bool | None  # whether it was seen as it was recorded; None after a change, where nothing can be compared


def what_if(out: Out, state: Path, ref: str, start: int, change: Change) -> None:
    """Fork before the first change from action ``start`` on, and go on; say what was done and what came of it."""
    recorded = run(lambda: _recorded(state, ref))
    env = recorded.env
    if isinstance(change, Injected):
        change.check(env, recorded.actions)
    control = Control(state)
    start, first = _first_change(control, recorded, start, change)
    child = cast("list[dict[str, Any]]", control.ask("fork", Fork(ref=f"{env}#{start - 1}"))["children"])[0]
    done: list[Done] = []
    for one in _played(control, str(child["env"]), recorded, start, first, change):
        done.append(one)
        told = {True: "as recorded", False: "seen otherwise", None: ""}[one.same]
        mark = "instead: " if one.changed else ""
        out.say(f"  {one.number}  {mark}{action_text(one.action)}  {one.outcome}  {told}".rstrip())
    out.data({"env": child["env"], "from": f"{env}#{start - 1}", "done": [one._asdict() for one in done]})
    inputs = len(recorded.steps) - recorded.actions
    left_out = f"; {counted(inputs, 'input')} from outside left out" if inputs else ""
    out.say(f"{child['env']} goes on from {env}#{start - 1}: {counted(len(done), 'action')}{left_out}", "bold")


def _first_change(control: Control, recorded: Trajectory, start: int, change: Change) -> tuple[int, Any]:
    """The number of the first action that is not to be done as it was, and what instead; what was seen then is shown.

    Nothing is changed: the number after the last action.
    """
    seen: Mapping[str, Any] | None = None
    number = start - 1
    with control.holding():
        for step, witnessed in zip(recorded.steps, recorded.witnessed, strict=True):
            if not isinstance(step, Recorded) or step.number < start:
                continue
            number = step.number
            wanted = change(number, step.action, seen)
            if wanted is not None:
                return number, wanted
            seen = _seen_then(control, number, witnessed)
    return number + 1, False


def _seen_then(control: Control, number: int, witnessed: Witnessed) -> Mapping[str, Any] | None:
    """What was recorded, as ``act`` would have answered."""
    observation = witnessed.observation
    if observation is None or witnessed.outcome != "ok":
        return None
    text = control.blob(observation.snapshot).decode(errors="replace") if observation.snapshot else ""
    return {"number": number, "text": text, **msgspec.to_builtins(observation)}


async def _recorded(state: Path, ref: str) -> Trajectory:
    named = parse_ref(ref)
    async with view(state) as opened:
        known = await pasts_of(opened.journal, named.env)
        return trajectory(known, named.env, generation=named.generation, actions=named.action)


def _played(control: Control, env: str, recorded: Trajectory, start: int, first: Any, change: Change) -> Iterator[Done]:
    """``first``: what the change said of action ``start``, of which it is not asked again."""
    seen: Mapping[str, Any] | None = None
    changed = False
    for step, witnessed in zip(recorded.steps, recorded.witnessed, strict=True):
        if not isinstance(step, Recorded) or step.number < start:
            continue
        wanted = first if step.number == start else change(step.number, step.action, seen)
        if wanted is False:
            return
        actions = [step.action] if wanted is None else _actions(wanted)
        changed = changed or wanted is not None
        for action in actions:
            outcome, seen = _act(control, env, action)
            digest = witnessed.observation.digest if witnessed.observation is not None else None
            same = None if changed or digest is None else seen is not None and seen["digest"] == digest
            yield Done(step.number, action, wanted is not None, outcome, same)


def _actions(wanted: Any) -> list[Action]:
    """What a change said: one action, or a list of them."""
    found = wanted if isinstance(wanted, list | tuple) else [wanted]
    if not all(isinstance(action, dict) for action in found):
        raise UsageError(f"change() returned {wanted!r}", hint="It returns None, an action, a list of actions or False")
    return list(found)


def _act(control: Control, env: str, action: Action) -> tuple[str, Mapping[str, Any] | None]:
    try:
        return "ok", control.ask("act", Act(env=env, action=action))
    except StateforkError as error:
        if error.code in ("action_failed", "action_timeout"):
            return f"{error.code}: {error.message}", None
        raise
