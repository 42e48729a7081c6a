"""A seat: one environment as a Gymnasium environment uses it, through an engine of this process.

What an action did not do is told, not raised: an agent goes on from it. What nothing can go on from is raised.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from statefork.adapters.interfaces.sync import Engine, Environment
from statefork.adapters.interfaces.views import Seen
from statefork.engine.errors import (
    ActionFailed,
    ActionTimeout,
    EngineClosed,
    EnvironmentExists,
    EnvironmentFrozen,
    EnvironmentRetired,
    InvalidAction,
    LeaseRevoked,
    ObservationLost,
    ResourceUnreachable,
    RuntimeDied,
    StaleGeneration,
    UnknownEnvironment,
)
from statefork.journal.errors import LimitExceeded, StateforkError
from statefork.journal.values import Json

_NAMES = "gym-"
"""How the names of environments begin that nobody has named."""
_SEAT = re.compile(rf"{_NAMES}\d+(-f\d+)*")
_ACTION_BYTES_MAX = 3 * 1024 * 1024  # what the journal takes as one event, with room for the rest of it

_TOLD = (InvalidAction, ActionFailed, ActionTimeout, ObservationLost, LimitExceeded)
"""The action is at fault, or what it met; the episode goes on."""
_OVER = (LeaseRevoked, RuntimeDied, EnvironmentFrozen, StaleGeneration, ResourceUnreachable)
"""What the episode ran in was taken away."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An error, as it is told in ``info["error"]``."""

    code: str
    message: str
    hint: str = ""


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. ``number``: of the action, 0 where none was done. ``over``: the episode can't go on.

    ``at``: the moment that is there now, as a ref; empty where that is not known.
    """

    env: str
    url: str = ""
    title: str = ""
    text: str = ""
    tabs: list[dict[str, Any]] = []
    png: bytes = b""
    value: Json = None
    number: int = 0
    at: str = ""
    error: Told | None = None
    over: bool = False


class Judged(Protocol):
    """What a judge may read (see :class:`statefork.sync.Evaluation`); ``look`` may give a Glimpse."""

    env: str
    generation: int
    epoch: int

    def query(self, resource: str, sql: str, parameters: tuple[Json, ...] = ()) -> list[dict[str, Json]]:
        """Rows of one read-only statement on a database of the environment."""
        ...

    def look(self) -> Any:
        """What the agent would see now: ``url``, ``title``, ``text``, ``png``, ``value``."""
        ...

    def base_url(self, resource: str | None = None) -> str:
        """Where a site of the environment is reachable."""
        ...


Verdict = tuple[float, dict[str, Any]]
"""A reward, and what the journal keeps beside it."""


class Seat(Protocol):
    """One environment, wherever its engine runs."""

    name: str

    def begin(self, at: str | None) -> Glimpse:
        """A new episode, at the origin or at a moment. Raises UnknownRef, TransitionAborted, Diverged."""
        ...

    def act(self, action: Mapping[str, Json] | None, timeout_s: float | None) -> Glimpse:
        """Carry out an action (None: only look) and see what came of it."""
        ...

    def judge(self, check: Callable[[Judged], Verdict], name: str) -> float:
        """The reward; all that ``check`` reads is of one generation. It runs in this thread."""
        ...

    def snapshot(self) -> str:
        """Publish the present; its ref."""
        ...

    def fork(self, n: int) -> Sequence[Seat]:
        """Seats in children of the present."""
        ...

    def leave(self) -> None:
        """Give the environment back. Idempotent."""
        ...


class LocalSeat:
    """A seat in an engine of this process. ``kept``: the environment stays when it is left, parked."""

    def __init__(self, engine: Engine, env: Environment, *, kept: bool, fresh: bool) -> None:
        self.name = env.name
        self._engine = engine
        self.env = env
        self._kept = kept
        self._fresh = fresh
        self._left = False

    def begin(self, at: str | None) -> Glimpse:
        """See :class:`Seat`."""
        self.go_back(at)
        return self._look()

    def go_back(self, at: str | None) -> None:
        """To the origin, or to a moment. What nobody has used yet needs no reset."""
        fresh, self._fresh = self._fresh, False
        if at is not None:
            self.env.restore(at)
        elif not fresh:
            self.env.reset()

    def act(self, action: Mapping[str, Json] | None, timeout_s: float | None) -> Glimpse:
        """See :class:`Seat`."""
        self._fresh = False
        try:
            if action is None:
                return self._look()
            check_size(action)
            return self._glimpse(self.env.act(action, timeout_s=timeout_s))
        except _TOLD as error:
            return self._after(error, over=False)
        except _OVER as error:
            return self._after(error, over=True)

    def _after(self, error: StateforkError, *, over: bool) -> Glimpse:
        told = Told(code=error.code, message=error.message, hint=error.hint)
        number = int(error.facts.get("action") or 0) if isinstance(error, ActionFailed | ActionTimeout) else 0
        seen = error.seen if isinstance(error, ActionFailed) else None
        try:
            found = self._glimpse(seen) if isinstance(seen, Seen) else self._look()
        except (*_TOLD, *_OVER):
            found, over = Glimpse(env=self.name, at=self._present()), True
        return msgspec.structs.replace(found, number=number or found.number, error=told, over=over)

    def _look(self) -> Glimpse:
        return self._glimpse(self.env.observe())

    def _glimpse(self, seen: Seen) -> Glimpse:
        return msgspec.structs.replace(glimpse(self.name, seen), at=self._present())

    def _present(self) -> str:
        """The last action; where that is in the published generation, or there is none, the generation."""
        capsule = self.env.capsule
        return f"{self.name}#{capsule.actions}" if capsule.actions > capsule.head.actions else str(capsule.moment)

    def judge(self, check: Callable[[Judged], Verdict], name: str) -> float:
        """See :class:`Seat`."""
        return self.env.evaluate(check, name=name)

    def snapshot(self) -> str:
        """See :class:`Seat`."""
        return str(self.env.snapshot())

    def fork(self, n: int) -> Sequence[LocalSeat]:
        """See :class:`Seat`. One snapshot for all children; each is retired when it is left. Raises PartialFork."""
        children = self._engine.fork(self.env.snapshot(), n=n)
        return [LocalSeat(self._engine, child, kept=False, fresh=False) for child in children]

    def leave(self) -> None:
        """See :class:`Seat`."""
        if self._left:
            return
        self._left = True
        with suppress(EngineClosed, EnvironmentRetired):  # a closed engine has parked it
            if self._kept:
                self.env.park("its Gymnasium environment was closed")
            else:
                self.env.retire()


def check_size(action: Mapping[str, Json]) -> None:
    """Raise LimitExceeded for an action that no journal would take, InvalidAction for what is no data."""
    try:
        size = len(msgspec.json.encode(action))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAction(f"an action is plain data: {error}", hint="Use numbers, texts, lists and objects") from None
    if size > _ACTION_BYTES_MAX:
        raise LimitExceeded(
            f"the action has {size} bytes, and at most {_ACTION_BYTES_MAX} are taken",
            hint="Nothing was done",
            limit="action_bytes_max",
            value=size,
            maximum=_ACTION_BYTES_MAX,
        )


def glimpse(name: str, seen: Seen) -> Glimpse:
    """What was seen, with all its bytes."""
    parts = seen.observation.parts
    tabs = msgspec.json.decode(seen.part("tabs")) if "tabs" in parts else []
    text = seen.text if seen.observation.snapshot else msgspec.json.encode(seen.value).decode()
    return Glimpse(
        env=name,
        url=seen.url,
        title=seen.title,
        text=text,
        tabs=tabs,
        png=seen.png,
        value=seen.value,
        number=seen.number,
    )


_naming = threading.Lock()


def take(engine: Engine, name: str | None) -> LocalSeat:
    """A seat in the environment of that name, which is made where there is none; without a name in one of its own."""
    if name is not None:
        try:
            return LocalSeat(engine, engine.find(name), kept=True, fresh=False)
        except UnknownEnvironment:
            return LocalSeat(engine, engine.create(name), kept=True, fresh=True)
    while True:
        name = f"{_NAMES}{_number(engine)}"
        with suppress(EnvironmentExists):  # engines of other machines may share the journal
            return LocalSeat(engine, engine.create(name), kept=False, fresh=True)


_numbers: dict[Path, int] = {}  # given last, by state directory


def _number(engine: Engine) -> int:
    """One that no environment has had."""
    with _naming:
        found = _numbers.get(engine.state, 0) + 1
        while f"{_NAMES}{found}" in engine.capsules:
            found += 1
        _numbers[engine.state] = found
        return found


def clear(engine: Engine) -> None:
    """Retire the seats' environments that a killed process has left; nobody else may have a seat yet."""
    for env in engine.environments():
        if _SEAT.fullmatch(env.name):
            env.retire()
