"""What of a difference may be shown: secrets are covered, and what is long is cut and says so.

A value is taken for a secret by the name it stands under (a column, a cookie, a key of storage, a field of a form).
That it has changed is told; what it was and is, is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from statefork.engine.ports import Change
from statefork.journal.values import Json

TEXT_CHARS_MAX = 500
ITEMS_MAX = 50
DEPTH_MAX = 6
_KEY_CHARS = 4  # of a key that is itself a secret: enough to tell two from each other

_SECRET = re.compile(
    r"passw|passphrase|secret|token|csrf|credential|authoriz|api[_-]?key|private[_-]?key|session[_-]?(?:id|key|data)"
    r"|\b(?:pin|cvv|cvc|otp)\b|(?:^|\W)(?:jwt|auth|sid)(?:$|\W)",
    re.IGNORECASE,
)
_SESSIONS = re.compile(r"session", re.IGNORECASE)
_SESSION_KEY = re.compile(
    r"(session[\w-]*[:/=][\w-]{4})[\w-]{4,}", re.IGNORECASE
)  # as caches name what they keep of one
_LINE = "\N{HORIZONTAL ELLIPSIS}"


def is_secret(name: str) -> bool:
    """Whether what stands under a name is not to be shown."""
    return _SECRET.search(name) is not None


def covered(change: Change) -> Change:
    """The change as it may be shown."""
    name = change.name
    hide = (
        is_secret(name) or _SESSION_KEY.search(name) is not None or (change.group == "cookies" and _http_only(change))
    )
    if change.group and _SESSIONS.search(change.group) and name.startswith(f"{change.group}["):
        name = f"{change.group}[{_shortened(name[len(change.group) + 1 : -1])}]"
    before = _shown(change.before, hide=hide, whole=change.group == "cookies")
    after = _shown(change.after, hide=hide, whole=change.group == "cookies")
    return msgspec.structs.replace(
        change, name=_cut(name), before=before, after=_told(change.before, change.after, before, after)
    )


def _told(was: Json, now: Json, before: Json, after: Json) -> Json:
    """The covered new side, in which a secret that changed says so also where both are equally long."""
    if isinstance(was, dict) and isinstance(now, dict) and isinstance(before, dict) and isinstance(after, dict):
        return {key: _told(was.get(key), now.get(key), before.get(key), one) for key, one in after.items()}
    if was != now and before == after and isinstance(after, str) and after.startswith("(secret"):
        return f"{after.removesuffix(')')}, changed)"
    return after


def covered_action(action: Mapping[str, Json]) -> dict[str, Json]:
    """An action as it may be shown: what is filled into a field that bears a secret's name is covered."""
    aimed = any(is_secret(value) for key, value in action.items() if key != "value" and isinstance(value, str))
    return {key: _secret(value) if aimed and key == "value" else cut(value, key=key) for key, value in action.items()}


def cut(value: Json, *, key: str = "", depth: int = 0) -> Json:
    """A value with its secrets covered and its long parts cut."""
    if key and value not in (None, "") and is_secret(key):
        return _secret(value)
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, list | dict) and depth == DEPTH_MAX:
        return _LINE
    if isinstance(value, list):
        kept: list[Any] = [cut(one, depth=depth + 1) for one in value[:ITEMS_MAX]]
        return [*kept, f"{_LINE} {len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else kept
    if isinstance(value, dict):
        left = len(value) - ITEMS_MAX
        some = {name: cut(one, key=name, depth=depth + 1) for name, one in [*value.items()][:ITEMS_MAX]}
        return {**some, _LINE: f"{left} more"} if left > 0 else some
    return value


def _shown(value: Json, *, hide: bool, whole: bool) -> Json:
    if value is None:
        return None
    if not hide:
        return cut(value)
    if whole and isinstance(value, dict):  # of a cookie: its value, not its expiry
        return {key: _secret(one) if key == "value" else cut(one, key=key) for key, one in value.items()}
    return _secret(value)


def _http_only(change: Change) -> bool:
    sides = (change.before, change.after)
    return any(isinstance(side, dict) and bool(side.get("httpOnly")) for side in sides)


def _secret(value: Json) -> str:
    return f"(secret, {len(value)} characters)" if isinstance(value, str) else "(secret)"


def _shortened(key: str) -> str:
    return key if len(key) <= 2 * _KEY_CHARS else f"{key[:_KEY_CHARS]}{_LINE}"


def _cut(text: str) -> str:
    text = _SESSION_KEY.sub(rf"\1{_LINE}", text)
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}{_LINE} ({len(text)} characters)"
