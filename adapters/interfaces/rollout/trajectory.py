"""What a policy did in one environment, step by step, and as trainers read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from statefork.journal.values import Json

FORMAT = "statefork-rollout/1"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen: text, and of the screenshot the digest by which the engine's blobs have it."""

    url: str = ""
    title: str = ""
    text: str = ""
    screenshot: str = ""
    value: Json = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One action, and what was seen after it."""

    action: dict[str, Json]
    outcome: str  # ok | failed (the world said no) | invalid (nothing was done) | unknown
    seen: Look
    number: int = 0  # of the action in its environment; 0: it was not done
    ref: str = ""  # the moment after it: `statefork fork REF` makes it again
    error: str = ""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout: from what was seen first to the answer, and what it is worth."""

    task: str
    goal: str
    attempt: int = 1
    env: str = ""
    contract: str = ""  # its digest
    origin: str = ""  # the generation that it began at
    end: str = ""  # the generation that was judged
    first: Look = Look()  # after the page was opened that the task begins at
    steps: tuple[Step, ...] = ()
    answer: str = ""
    stopped: str = ""  # policy | steps_max
    reward: float = 0.0
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """Which rollout this is, among those of a task file."""
        return f"{self.task}/{self.attempt}"

    @property
    def rewards(self) -> list[float]:
        """One for each step: all of it comes with the last. Of none where nothing was done."""
        return [0.0] * (len(self.steps) - 1) + [self.reward] if self.steps else []

    @property
    def refs(self) -> list[str]:
        """The moments from the first on."""
        return [self.origin, *(step.ref for step in self.steps if step.ref)]

    def messages(self) -> list[dict[str, str]]:
        """The same as a chat: the goal and what is seen from the user, actions and the answer from the assistant."""
        return list(_messages(self.goal, self.first, self.steps, self.answer, stopped=self.stopped == "policy"))

    def line(self) -> bytes:
        """One line of JSON, with its end."""
        record = {
            "format": FORMAT,
            "id": self.id,
            **msgspec.to_builtins(self),
            "messages": self.messages(),
            "actions": [step.action for step in self.steps],
            "observations": [msgspec.to_builtins(look) for look in (self.first, *(step.seen for step in self.steps))],
            "rewards": self.rewards,
            "refs": self.refs,
        }
        record["steps"] = [
            {key: value for key, value in msgspec.to_builtins(step).items() if key not in ("action", "seen")}
            for step in self.steps
        ]
        del record["first"]
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _messages(goal: str, first: Look, steps: Sequence[Step], answer: str, *, stopped: bool) -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": f"{goal}\n\n{shown(first)}"}
    for step in steps:
        yield {"role": "assistant", "content": json.dumps(step.action, ensure_ascii=False)}
        error = f"{step.outcome}: {step.error}\n\n" if step.error else ""
        yield {"role": "user", "content": f"{error}{shown(step.seen)}"}
    if stopped:
        yield {"role": "assistant", "content": json.dumps({"type": "stop", "answer": answer}, ensure_ascii=False)}


def shown(look: Look) -> str:
    """A look as text."""
    page = f"{look.url} {look.title!r}\n" if look.url or look.title else ""
    value = f"{json.dumps(look.value, ensure_ascii=False)}\n" if look.value is not None else ""
    return f"{page}{value}{look.text}".rstrip("\n")


def told(record: dict[str, Any]) -> str:
    """The id of a line that was read."""
    return str(record["id"])
