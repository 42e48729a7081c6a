"""One client's episodes, one after the other: a child of the moment that episodes begin with, retired when it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import anyio
import msgspec

from statefork.adapters.interfaces.environment import Environment, Evaluation
from statefork.adapters.interfaces.openenv.beginning import Beginning
from statefork.adapters.interfaces.openenv.messages import (
    TYPES,
    Message,
    ResetAsked,
    State,
    error_message,
    fault_message,
    no_tools,
    observation,
    seen_message,
    state_message,
)
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.interfaces.views import Seen
from statefork.engine.errors import InvalidAction
from statefork.journal.errors import StateforkError

Judge = Callable[[Evaluation], Awaitable[tuple[float, bool]]]
"""What judges after each step: the reward, and whether the episode is over. All it reads is of one generation."""


class Session:
    """What one connection asks, in order."""

    def __init__(self, engine: Engine, beginning: Beginning, judge: Judge | None, act_timeout_s: float | None) -> None:
        self._engine = engine
        self._beginning = beginning
        self._judge = judge
        self._act_timeout_s = act_timeout_s
        self._env: Environment | None = None
        self._asked = ResetAsked()
        self._state = State(episode_id=None, step_count=0)
        self._done = False

    async def answer(self, said: str | bytes) -> dict[str, Any] | None:
        """The answer to one message; None: the client says that it ends."""
        try:
            msgspec.json.decode(said)
        except msgspec.DecodeError as error:
            return error_message("INVALID_JSON", f"Invalid JSON: {error}")
        except RecursionError:
            return error_message("INVALID_JSON", "Invalid JSON: it is nested too deep")
        try:
            message = msgspec.json.decode(said, type=Message)
        except msgspec.ValidationError as error:
            return error_message("VALIDATION_ERROR", f"Invalid message: {error}", errors=[{"msg": str(error)}])
        if message.type == "close":
            return None
        if message.type not in TYPES:
            there = ", ".join(TYPES)
            return error_message("UNKNOWN_TYPE", f"Unknown message type: {message.type[:40]}. There are: {there}")
        try:
            return await self._answer(message)
        except msgspec.ValidationError as error:
            return error_message("VALIDATION_ERROR", f"Invalid message: {error}", errors=[{"msg": str(error)}])
        except InvalidAction as error:
            return fault_message("VALIDATION_ERROR", error)
        except StateforkError as error:
            return fault_message("EXECUTION_ERROR", error)

    async def _answer(self, message: Message) -> dict[str, Any]:
        match message.type:
            case "reset":
                return await self._reset(msgspec.convert(message.data, ResetAsked))
            case "step":
                return await self._step(message.data)
            case "mcp":
                return {"type": "mcp", "data": no_tools(message.data)}
            case _:
                return state_message(self._state)

    async def _reset(self, asked: ResetAsked) -> dict[str, Any]:
        await self.end()
        self._env = env = await self._beginning.begin()
        self._asked = asked
        self._state = State(episode_id=asked.episode_id or str(uuid4()), step_count=0)
        return self._told(await env.observe(), None)

    async def _step(self, action: dict[str, Any]) -> dict[str, Any]:
        if self._env is None or self._done:
            why = "the episode is over" if self._done else "there is no episode yet"
            return error_message("EXECUTION_ERROR", f"{why}: reset first")
        action = {name: value for name, value in action.items() if name != "metadata"}  # of each action there
        seen = await self._env.act(action, timeout_s=self._act_timeout_s)
        self._state = msgspec.structs.replace(self._state, step_count=self._state.step_count + 1)
        return self._told(seen, await self._judged(self._env))

    async def _judged(self, env: Environment) -> float | None:
        judge = self._judge
        if judge is None:
            return None

        async def check(evaluation: Evaluation) -> float:
            reward, self._done = await judge(evaluation)
            return reward

        return await env.evaluate(check, name="step")

    def _told(self, seen: Seen, reward: float | None) -> dict[str, Any]:
        return seen_message(observation(seen, screenshot=self._asked.screenshots), reward, done=self._done)

    async def end(self) -> None:
        """The episode is over, however it went."""
        env, self._env, self._done = self._env, None, False
        self._state = State(episode_id=None, step_count=0)
        if env is not None:
            with anyio.CancelScope(shield=True):
                await self._engine.take_back(env.name)
