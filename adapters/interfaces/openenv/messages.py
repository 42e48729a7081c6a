"""OpenEnv's messages: one JSON object each, ``type`` and ``data``; errors with its codes, and ours beside them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from statefork.adapters.interfaces.views import Seen
from statefork.journal.errors import StateforkError
from statefork.journal.values import Json

Code = Literal[
    "INVALID_JSON",
    "UNKNOWN_TYPE",
    "VALIDATION_ERROR",
    "EXECUTION_ERROR",
    "CAPACITY_REACHED",
    "FACTORY_ERROR",
    "SESSION_ERROR",
]
TYPES = ("reset", "step", "state", "close", "mcp")
_NO_METHOD, _NO_JSON = -32601, -32700  # of JSON-RPC


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client says."""

    type: str
    data: dict[str, Any] = {}


class ResetAsked(msgspec.Struct, frozen=True, kw_only=True):
    """``seed`` is taken and means nothing: what chance gives is recorded. ``screenshots``: they are wanted too."""

    seed: int | None = None
    episode_id: str | None = None
    screenshots: bool = False


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen. ``text``: the accessibility snapshot; ``screenshot``: a PNG in base64, where it was wanted."""

    url: str
    title: str
    text: str
    value: Json
    digest: str
    screenshot: bytes | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where an episode stands; without one ``episode_id`` is None."""

    episode_id: str | None
    step_count: int


def observation(seen: Seen, *, screenshot: bool) -> Observation:
    """What was seen, as it is sent."""
    png = seen.png if screenshot else b""
    return Observation(
        url=seen.url,
        title=seen.title,
        text=seen.text,
        value=seen.value,
        digest=seen.digest,
        screenshot=png or None,
    )


def seen_message(seen: Observation, reward: float | None, *, done: bool) -> dict[str, Any]:
    """The answer to a reset or a step."""
    plain = msgspec.to_builtins(seen)
    return {"type": "observation", "data": {"observation": plain, "reward": reward, "done": done}}


def state_message(state: State) -> dict[str, Any]:
    """The answer to ``state``."""
    return {"type": "state", "data": msgspec.to_builtins(state)}


def no_tools(said: bytes | dict[str, Any]) -> dict[str, Any]:
    """What is answered to a JSON-RPC request, whatever it asks for: there are no tools of MCP here."""
    try:
        asked = msgspec.json.decode(said) if isinstance(said, bytes) else said
    except msgspec.DecodeError as error:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": _NO_JSON, "message": str(error)}}
    number = asked.get("id") if isinstance(asked, dict) else None
    message = "no tools are offered here: `statefork mcp agent` serves them"
    return {"jsonrpc": "2.0", "id": number, "error": {"code": _NO_METHOD, "message": message}}


def error_message(code: Code, message: str, **more: Any) -> dict[str, Any]:
    """An error."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def fault_message(code: Code, error: StateforkError) -> dict[str, Any]:
    """An error of the engine: its own code is ``statefork``."""
    field = error.facts.get("field")
    more: dict[str, Any] = {"errors": [{"loc": [field], "msg": error.message}]} if code == "VALIDATION_ERROR" else {}
    return error_message(code, str(error), statefork=error.code, **more)
