"""What decides: a callable that is given the goal, what is seen and what was done, and gives an action or stops."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from statefork.adapters.interfaces.rollout.calling import asked, harmless, raised
from statefork.adapters.interfaces.rollout.errors import PolicyFailed
from statefork.adapters.interfaces.rollout.trajectory import Look, Step
from statefork.engine.ports import Blobs
from statefork.journal.values import Json

_TEXT_TOLD = 60


class Stop(msgspec.Struct, frozen=True):
    """Nothing more is to be done; the answer, where the task asks for one."""

    answer: str = ""


class Observed:
    """What a policy sees. ``error``: why the last action was not done; ``task``, ``attempt``: which rollout this is."""

    def __init__(self, look: Look, blobs: Blobs, *, task: str, attempt: int, error: str = "") -> None:
        self.look = look
        self.task = task
        self.attempt = attempt
        self.error = error
        self._blobs = blobs

    @property
    def url(self) -> str:
        """Address of the active page."""
        return self.look.url

    @property
    def title(self) -> str:
        """Title of the active page."""
        return self.look.title

    @property
    def text(self) -> str:
        """The accessibility snapshot."""
        return self.look.text

    @property
    def value(self) -> Json:
        """What the action itself returned, if it returns something."""
        return self.look.value

    @property
    def png(self) -> bytes:
        """The screenshot; empty where there is no screen."""
        return self._blobs.get(self.look.screenshot) if self.look.screenshot else b""


Decision = msgspec.Struct | Mapping[str, Json] | str | Stop
"""An action (``Click(...)``, ``{"type": "click", ...}``, or that as JSON text), or the end."""


class Policy(Protocol):
    """Asynchronous, or plain: a plain one runs in a thread, several side by side. A class is made anew for each
    rollout."""

    def __call__(self, goal: str, observation: Observed, history: Sequence[Step], /) -> Decision | Awaitable[Decision]:
        """What to do next."""
        ...


def load_policy(name: str) -> Any:
    """What ``module:name`` means; the current directory is looked in first. Raises PolicyFailed."""
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise PolicyFailed(f"{name!r} names no policy", hint="Write it as module:function, such as agent:act")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise PolicyFailed(f"{name}: {error}", hint="Is its module in this directory, or installed?") from error
    except AttributeError as error:
        raise PolicyFailed(f"{name}: {error}", hint=f"Look into {module}") from error
    except (Exception, SystemExit) as error:
        raise PolicyFailed(f"{name}: its module raised {raised(harmless(error))}") from error
    if not callable(found):
        raise PolicyFailed(f"{name} can't be called: its type is {type(found).__name__}")
    return found


def made(policy: Any) -> Any:
    """For one rollout: what is a class is made. Raises PolicyFailed with what it raises."""
    try:
        return policy() if inspect.isclass(policy) else policy
    except (Exception, SystemExit) as error:
        raise PolicyFailed(f"{policy.__qualname__} can't be made: {raised(harmless(error))}") from error


async def decided(policy: Any, goal: str, observation: Observed, history: Sequence[Step]) -> dict[str, Json] | Stop:
    """The next action as plain data. Raises PolicyFailed with what the policy raised."""
    rollout: dict[str, Any] = {"task": observation.task, "attempt": observation.attempt}
    try:
        decision = await asked(policy, goal, observation, history)
    except Exception as error:
        raise PolicyFailed(
            f"the policy raised at step {len(history) + 1} of {observation.task}/{observation.attempt}: "
            f"{raised(error)}",
            **rollout,
        ) from error
    return plain(decision, rollout)


def plain(decision: Any, rollout: Mapping[str, str | int]) -> dict[str, Json] | Stop:
    """An action as plain data; ``{"type": "stop", "answer": …}`` is a stop. Both may be JSON text, as models write it.

    Raises PolicyFailed for anything else.
    """
    hint = "Give Click(...), {'type': 'click', ...} (also as JSON text) or Stop(answer)"
    if isinstance(decision, Stop):
        return decision
    if isinstance(decision, msgspec.Struct):
        decision = msgspec.to_builtins(decision)
    if isinstance(decision, str):
        text = " ".join(decision.split())[:_TEXT_TOLD]
        try:
            decision = msgspec.json.decode(decision)
        except (msgspec.DecodeError, RecursionError) as error:
            told = f"the policy gave a text that is not JSON ({error}): {text!r}"
            raise PolicyFailed(told, hint=hint, task=rollout["task"], attempt=rollout["attempt"]) from None
    if not isinstance(decision, Mapping):
        told = f"what the policy gave is no action and no stop: its type is {type(decision).__name__}"
        raise PolicyFailed(told, hint=hint, task=rollout["task"], attempt=rollout["attempt"])
    if decision.get("type") == "stop":
        return Stop(str(decision.get("answer") or ""))
    return dict(decision)
