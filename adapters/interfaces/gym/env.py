"""One environment as Gymnasium has them: ``reset``, ``step``, ``render``, ``close``; and ``snapshot`` and ``fork``."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium.core import RenderFrame
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from numpy.typing import NDArray

from statefork.adapters.interfaces.gym.engines import default_state, sit
from statefork.adapters.interfaces.gym.seats import Glimpse, Judged, LocalSeat, Seat, Told, take
from statefork.adapters.interfaces.gym.spaces import (
    TEXT_CHARS_MAX,
    Actions,
    draw_browsing,
    draw_nothing,
    observation_space,
)
from statefork.adapters.interfaces.sync import Engine, Environment
from statefork.adapters.interfaces.worlds import read_contract
from statefork.adapters.resources.browser.options import Options as BrowserOptions
from statefork.engine.errors import InvalidAction, MissingDependency, NotReady, OutOfRange
from statefork.journal.values import Json

Judge = Callable[[Any], float | tuple[float, bool]]
"""A task: reads one generation (see :class:`statefork.sync.Evaluation`) and gives a reward, and whether that ends the
episode. Without the second, a reward of 1 or more does."""

Pixels = NDArray[np.uint8]
DONE_AT = 1.0


class StateforkEnv(gymnasium.Env[dict[str, Any], Any]):
    """An environment of a contract.

    Nothing is opened before the first ``reset``. ``state``: the state directory, whose engine all environments share
    that name it. ``name``: use the environment of that name, and park it at the end, instead of a new one that ends
    with ``close``. ``engine``: an engine of :mod:`statefork.sync` that is open already. After ``close`` everything but
    ``close`` raises ClosedEnvironmentError.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012 -- the base class has it so

    def __init__(
        self,
        contract: str | Path,
        *,
        judge: Judge | None = None,
        state: str | Path | None = None,
        name: str | None = None,
        slots: int | None = None,
        engine: Engine | None = None,
        screenshot: bool = True,
        text_max: int = TEXT_CHARS_MAX,
        act_timeout_s: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._contract = contract
        self._judge = judge
        self._state = Path(state) if state is not None else default_state(contract)
        self._name = name
        self._slots = slots
        self._engine = engine
        self._text_max = text_max
        self._act_timeout_s = act_timeout_s
        self.render_mode = render_mode
        self._screen = screen_of(contract)
        self._shown = self._screen if screenshot else None
        self.observation_space = observation_space(self._shown, text_max)
        self.action_space = Actions(draw_browsing if has_browser(contract) else draw_nothing)
        self._seat: Seat | None = None
        self._begun = self._closed = False
        self._last = Glimpse(env="")

    # --- Gymnasium's interface ----------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode: at the origin, or where ``options={"at": ref}`` says, a moment of any history.

        ``seed`` is for ``np_random``. Raises ValueError for other options; UnknownRef, Diverged, TransitionAborted:
        then what was before serves on.
        """
        super().reset(seed=seed)
        at = (options or {}).get("at")
        if unknown := sorted(set(options or {}) - {"at"}):
            raise ValueError(f"reset knows the option 'at', not {', '.join(map(repr, unknown))}")
        seen = self._sat().begin(None if at is None else str(at))
        self._begun = True
        return self._told(seen)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out an action: JSON text, a mapping, or a value of :mod:`statefork.actions`; an empty text only looks.

        What is wrong with it is told in ``info["error"]`` and ``obs["last_action_error"]``. The episode is truncated
        where the world was taken away in the middle of it. Raises ResetNeeded before the first ``reset``.
        """
        if not (self._begun or self._closed):
            raise ResetNeeded("call reset() before step()")
        seat = self._sat()
        try:
            data = parsed(action)
        except InvalidAction as error:
            told = Told(code=error.code, message=error.message, hint=error.hint)
            last = self._last if self._last.at else seat.act(None, None)  # of a child nothing was seen yet
            seen = msgspec.structs.replace(last, error=told, value=None, number=0)
        else:
            seen = seat.act(data, self._act_timeout_s)
        if seen.over:
            if not seen.url:
                seen = msgspec.structs.replace(self._last, error=seen.error, at=seen.at or self._last.at, over=True)
            return (obs_info := self._told(seen))[0], 0.0, False, True, obs_info[1]
        reward, terminated = self._verdict()
        obs, info = self._told(seen)
        return obs, reward, terminated, False, info

    def render(self) -> RenderFrame | list[RenderFrame] | None:
        """The page as it was seen last."""
        self._check_open()
        if self.render_mode != "rgb_array":
            return None
        return pixels(self._last.png, self._screen or (1, 1))

    def close(self) -> None:
        """Give the environment back, and close its engine where nobody else uses it. Idempotent."""
        seat, self._seat, self._closed = self._seat, None, True
        if seat is not None:
            seat.leave()

    # --- what is more here --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The environment's name, by which the commands know it too: ``statefork log NAME``."""
        return self._sat().name

    @property
    def environment(self) -> Environment:
        """The environment of :mod:`statefork.sync` behind it. Raises NotReady where its engine is elsewhere."""
        seat = self._sat()
        if isinstance(seat, LocalSeat):
            return seat.env
        raise NotReady(
            f"the engine of {seat.name} runs in another process",
            hint="Make it in this process, or use what an environment of Gymnasium has",
        )

    def snapshot(self) -> str:
        """Publish the present; the ref that ``reset(options={"at": ref})`` comes back to."""
        return self._sat().snapshot()

    def fork(self, n: int = 1) -> list[StateforkEnv]:
        """``n`` environments that continue from here, with the same task. They can ``step`` at once. Raises OutOfRange
        for less than one, before anything is published."""
        if n < 1:
            raise OutOfRange(f"a fork makes at least 1 environment, not {n}", what="fork", asked=n)
        children = []
        for seat in self._sat().fork(n):
            child = StateforkEnv(
                self._contract,
                judge=self._judge,
                state=self._state,
                engine=self._engine,
                screenshot=self._shown is not None,
                text_max=self._text_max,
                act_timeout_s=self._act_timeout_s,
                render_mode=self.render_mode,
            )
            child.spec = self.spec
            child._seat, child._begun = seat, True
            child._last = msgspec.structs.replace(self._last, env=seat.name, number=0, at="")
            children.append(child)
        return children

    def look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See what is there now, without acting."""
        return self._told(self._sat().act(None, None))

    # ------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedEnvironmentError("the environment was closed: make a new one")

    def _sat(self) -> Seat:
        self._check_open()
        if self._seat is None:
            if self._engine is not None:
                self._seat = take(self._engine, self._name)
            else:
                self._seat = sit(self._contract, self._state, self._slots, self._name)
        return self._seat

    def _verdict(self) -> tuple[float, bool]:
        judge = self._judge
        if judge is None:
            return 0.0, False
        done: list[bool] = []

        def check(seen: Judged) -> tuple[float, dict[str, Any]]:
            answer = judge(seen)
            reward, over = answer if isinstance(answer, tuple) else (answer, float(answer) >= DONE_AT)
            done.append(bool(over))
            return float(reward), {"terminated": bool(over)}

        reward = self._sat().judge(check, getattr(judge, "__name__", "judge"))
        return reward, done[-1]

    def _told(self, seen: Glimpse) -> tuple[dict[str, Any], dict[str, Any]]:
        self._last = seen
        obs: dict[str, Any] = {
            "url": self._fit(seen.url),
            "title": self._fit(seen.title),
            "text": self._fit(seen.text),
            "last_action_error": self._fit(seen.error.message) if seen.error is not None else "",
        }
        if self._shown is not None:
            obs["screenshot"] = pixels(seen.png, self._shown)
        at = f"{seen.env}#{seen.number}" if seen.number else seen.at
        info: dict[str, Any] = {"env": seen.env, "at": at, "tabs": list(seen.tabs)}
        if seen.number:
            info["number"] = seen.number
        if seen.value is not None:
            info["value"] = msgspec.json.encode(seen.value).decode()  # text: a vector environment mixes no kinds
        if seen.error is not None:
            info["error"] = msgspec.to_builtins(seen.error)
        return obs, info

    def _fit(self, text: str) -> str:
        return text if len(text) <= self._text_max else f"{text[: self._text_max - 1]}…"


def parsed(action: Any) -> Mapping[str, Json] | None:
    """The action as plain data; None for an empty text. Raises InvalidAction."""
    if isinstance(action, msgspec.Struct):
        plain: Mapping[str, Json] = msgspec.to_builtins(action)
        return plain
    if isinstance(action, Mapping):
        return dict(action)
    if not isinstance(action, str):
        raise InvalidAction(f"an action is JSON text or a mapping, not {type(action).__name__}")
    if not action.strip():
        return None
    try:
        found = msgspec.json.decode(action)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAction(
            f"the action is not JSON: {error}", hint='Such as {"type": "click", "text": "Pay"}'
        ) from None
    if not isinstance(found, dict):
        raise InvalidAction(f"an action is a JSON object, not {action.strip()[:40]!r}")
    return found


def pixels(png: bytes, screen: tuple[int, int]) -> Pixels:
    """A screenshot as an array of (height, width, 3); black where there is none. Raises MissingDependency."""
    height, width = screen
    if not png:
        return np.zeros((height, width, 3), dtype=np.uint8)
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependency(
            "screenshots are decoded by the Python package 'pillow', which is not installed",
            hint="pip install 'statefork[gymnasium,pictures]', or make the environment with screenshot=False",
        ) from None
    with Image.open(io.BytesIO(png)) as picture:
        found: Pixels = np.array(picture.convert("RGB"))
    if found.shape == (height, width, 3):
        return found
    framed = np.zeros((height, width, 3), dtype=np.uint8)
    part = found[:height, :width]
    framed[: part.shape[0], : part.shape[1]] = part
    return framed


def _browser(contract: str | Path) -> BrowserOptions | None:
    read, _ = read_contract(contract)
    names = [name for name, spec in read.resources.items() if spec.adapter == "browser"]
    return read.convert(names[0], BrowserOptions) if names else None


def has_browser(contract: str | Path) -> bool:
    """Whether agents act in a browser. Raises ContractError."""
    return _browser(contract) is not None


def screen_of(contract: str | Path) -> tuple[int, int] | None:
    """Height and width of the screenshots, where there are any. Raises ContractError."""
    options = _browser(contract)
    return (options.height, options.width) if options is not None and options.screenshots else None
