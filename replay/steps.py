"""What became of each step of a re-execution, in a user's words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Literal

import msgspec

from statefork.journal.values import Json
from statefork.replay.lineage import Act, Step
from statefork.replay.script import Played

TEXT_CHARS_MAX = 100

StepOutcome = Literal["same", "masked", "skipped", "not compared", "differs"]
"""``masked``: equal but for what the contract's masks cover. ``skipped``: it can't be done again. ``not compared``: it
was done again, and what came of it when it was recorded is not known."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``number``: lineage number of its action (of an input: of the action before it)."""

    place: int  # in the re-execution, from 1
    of: int  # steps of the re-execution
    number: int
    kind: Literal["action", "input"]
    done: str  # the action in one line, or the request
    outcome: StepOutcome
    why: str = ""  # what differs, or why it was skipped or not compared
    digest: str = ""  # of what was seen this time; empty where nothing was
    url: str = ""
    title: str = ""
    snapshot: str = ""  # digests of blobs
    screenshot: str = ""


OnStep = Callable[[StepResult], Awaitable[bool | None] | bool | None]
"""Called, and awaited where it is asynchronous, after each step; False: stop here."""


def nobody_asks(_step: StepResult) -> None:
    """Goes on to the end."""


async def goes_on(on_step: OnStep, step: StepResult) -> bool:
    """What a callback says of a step."""
    answer = on_step(step)
    if isawaitable(answer):
        answer = await answer
    return answer is not False


def step_result(place: int, of: int, step: Step, played: Played, outcome: StepOutcome, why: str) -> StepResult:
    """What became of a step."""
    seen = played.observation
    return StepResult(
        place=place,
        of=of,
        number=step.number if isinstance(step, Act) else step.after,
        kind="action" if isinstance(step, Act) else "input",
        done=action_text(step.action) if isinstance(step, Act) else f"{step.method} {step.url}",
        outcome=outcome,
        why=why,
        digest=seen.digest if seen is not None else "",
        url=seen.url if seen is not None else "",
        title=seen.title if seen is not None else "",
        snapshot=seen.snapshot if seen is not None else "",
        screenshot=seen.screenshot if seen is not None else "",
    )


def action_text(action: Mapping[str, Json]) -> str:
    """An action in one line: its kind, then its fields."""
    fields = [f"{key}={_value(value)}" for key, value in action.items() if key != "type"]
    text = " ".join([str(action.get("type", "action")), *fields])
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"


def _value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
