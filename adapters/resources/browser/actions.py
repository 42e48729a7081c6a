"""Actions of the browser, as data.

An action is a small frozen value with a stable tag in its ``type`` field; its JSON form is what the journal keeps::

    Goto("http://shop.example/")                 {"type": "goto", "url": "http://shop.example/"}
    Click(role="button", name="Add to basket")   {"type": "click", "role": "button", "name": "Add to basket"}

A *target* is named in exactly one way: ``role`` (with ``name``), ``selector``, ``label``, ``text``, or ``x`` and ``y``
(CSS pixels of the viewport). Several matches are an error unless ``nth`` (from 0) picks one. ``timeout_ms`` bounds the
wait for the target and for the action itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from statefork.engine.errors import InvalidAction
from statefork.journal.values import Json

TIMEOUT_MS_DEFAULT = 10_000
TIMEOUT_MS_MAX = 600_000
UPLOAD_BYTES_MAX = 16 * 1024 * 1024
TEXT_CHARS_MAX = 1_000_000
_NO_TARGET = "needs a target, named in one way: role (with name), label, text, selector, or x and y"

LoadState = Literal["commit", "domcontentloaded", "load"]
MouseButton = Literal["left", "middle", "right"]
Modifier = Literal["Alt", "Control", "Meta", "Shift"]


class Action(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag=str.lower,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of all actions."""

    def to_json(self) -> dict[str, Json]:
        """The action as plain data: its tag and every field that differs from its default."""
        plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    def invalid(self) -> tuple[str, str] | None:
        """The first field that does not fit, and why; None when all do."""
        timeout_ms = getattr(self, "timeout_ms", TIMEOUT_MS_DEFAULT)
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            return "timeout_ms", f"must be from 1 to {TIMEOUT_MS_MAX}"
        return None


class Targeted(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the actions that have a target on the page. ``frame`` is the selector of an inner frame to look in."""

    selector: str = ""
    role: str = ""
    name: str = ""
    label: str = ""
    text: str = ""
    x: float | None = None
    y: float | None = None
    nth: int | None = None
    exact: bool = False
    frame: str = ""
    timeout_ms: int = TIMEOUT_MS_DEFAULT

    def ways(self) -> list[str]:
        """By which of the ways the target is named."""
        ways = [way for way in ("selector", "role", "label", "text") if getattr(self, way)]
        return ways + (["x"] if self.x is not None or self.y is not None else [])

    def invalid(self) -> tuple[str, str] | None:
        return super().invalid() or self._invalid_target(required=True)

    def _invalid_target(self, *, required: bool) -> tuple[str, str] | None:
        ways = self.ways()
        if len(ways) > 1:
            return ways[1], f"the target is already named by {ways[0]!r}; name it in one way"
        if not ways and required:
            return "selector", _NO_TARGET
        if (self.x is None) != (self.y is None):
            return "y" if self.y is None else "x", "x and y go together"
        if self.name and not self.role:
            return "name", "goes with role; use text or label alone"
        if self.nth is not None and self.nth < 0:
            return "nth", "counts from 0"
        return None


class Goto(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Open an address (http, https or about:blank) in the active tab and wait for it to load."""

    url: str
    wait_until: LoadState = "load"
    timeout_ms: int = 30_000

    def invalid(self) -> tuple[str, str] | None:
        return super().invalid() or invalid_url(self.url)


class Click(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Click a target. ``dialog`` says how a confirm or prompt that it opens is answered (dismissed by default)."""

    button: MouseButton = "left"
    count: int = 1
    modifiers: tuple[Modifier, ...] = ()
    dialog: Literal["accept", "dismiss"] = "dismiss"
    dialog_text: str = ""

    def invalid(self) -> tuple[str, str] | None:
        if not 1 <= self.count <= 3:
            return "count", "must be 1, 2 or 3"
        return super().invalid()


class Hover(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Move the mouse over a target."""


class Fill(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replace the content of a text field. ``keys`` types it key by key instead, after what is there."""

    value: str
    keys: bool = False

    def invalid(self) -> tuple[str, str] | None:
        if len(self.value) > TEXT_CHARS_MAX:
            return "value", f"has more than {TEXT_CHARS_MAX} characters"
        return super().invalid()


class Press(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Press a key or a chord (``Enter``, ``Control+A``) on a target, or where the focus is when none is named."""

    key: str

    def invalid(self) -> tuple[str, str] | None:
        if not self.key:
            return "key", "must not be empty"
        return Action.invalid(self) or self._invalid_target(required=False)


class Select(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Choose options of a select element, by value or by visible label."""

    values: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def invalid(self) -> tuple[str, str] | None:
        if bool(self.values) == bool(self.labels):
            return "values", "give values or labels"
        return super().invalid()


class Check(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tick (or untick) a check box or radio button."""

    checked: bool = True


class Scroll(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Turn the wheel by ``dx`` and ``dy`` CSS pixels over a target (the viewport's middle when none is named)."""

    dx: float = 0.0
    dy: float = 0.0

    def invalid(self) -> tuple[str, str] | None:
        return Action.invalid(self) or self._invalid_target(required=False)


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file to upload; its content is part of the action (base64), so that a replay needs nothing else."""

    name: str
    content: str
    mime: str = "application/octet-stream"


class Upload(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Choose files in a file field."""

    files: tuple[File, ...]

    def invalid(self) -> tuple[str, str] | None:
        total = 0
        for number, file in enumerate(self.files):
            if not file.name or "/" in file.name:
                return f"files[{number}].name", "must be a plain file name"
            try:
                total += len(base64.b64decode(file.content, validate=True))
            except binascii.Error:
                return f"files[{number}].content", "is not base64"
        if total > UPLOAD_BYTES_MAX:
            return "files", f"hold more than {UPLOAD_BYTES_MAX} bytes"
        return super().invalid()


class Back(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Go back in the active tab's history."""

    timeout_ms: int = 30_000


class Forward(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Go forward in the active tab's history."""

    timeout_ms: int = 30_000


class Reload(Action, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Load the active tab's page again."""

    timeout_ms: int = 30_000


class NewTab(Action, frozen=True, tag="new_tab", forbid_unknown_fields=True, omit_defaults=True):
    """Open a tab, at an address if one is given, and make it the active one."""

    url: str = "about:blank"
    timeout_ms: int = 30_000

    def invalid(self) -> tuple[str, str] | None:
        return super().invalid() or invalid_url(self.url)


class CloseTab(Action, frozen=True, tag="close_tab", forbid_unknown_fields=True, omit_defaults=True):
    """Close a tab (the active one unless ``tab``, from 0, says which). The last one is replaced by a blank one."""

    tab: int | None = None


class SwitchTab(Action, frozen=True, tag="switch_tab", forbid_unknown_fields=True, omit_defaults=True):
    """Make another tab the active one; ``tab`` counts from 0."""

    tab: int


class Wait(Targeted, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Wait until a target is visible (or ``gone``), or until the address matches the glob ``url``."""

    url: str = ""
    gone: bool = False

    def invalid(self) -> tuple[str, str] | None:
        if self.x is not None or self.y is not None:
            return "x", "coordinates can't be waited for"
        if self.url and self.ways():
            return "url", "wait for an address or for a target, one at a time"
        return Action.invalid(self) or self._invalid_target(required=not self.url)


AnyAction = (
    Goto
    | Click
    | Hover
    | Fill
    | Press
    | Select
    | Check
    | Scroll
    | Upload
    | Back
    | Forward
    | Reload
    | NewTab
    | CloseTab
    | SwitchTab
    | Wait
)


def invalid_url(url: str) -> tuple[str, str] | None:
    """Only the world's own addresses may be opened: no file:, chrome:, data: or javascript: ones."""
    if url == "about:blank":
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return "url", str(error)
    if parts.scheme not in ("http", "https"):
        return "url", f"scheme {parts.scheme!r} is not allowed: use http, https or about:blank"
    if not host:
        return "url", "has no host"
    return None


KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyAction))
"""The types that there are."""


def parse_action(action: Mapping[str, Any]) -> AnyAction:
    """The action that the plain data means. Raises InvalidAction, naming the field in ``facts['field']``."""
    kind = action.get("type")
    if kind not in KINDS:
        raise InvalidAction.unknown(kind, KINDS)
    try:
        parsed: AnyAction = msgspec.convert(dict(action), AnyAction)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        if "field `" in message:
            field = f"{field}.".lstrip(".") + message.split("field `")[1].split("`")[0]
        raise InvalidAction(f"not a browser action: {message}", field=field or "type") from None
    problem = parsed.invalid()
    if problem is not None:
        field, why = problem
        told = f"{kind} {why}" if why == _NO_TARGET else f"{kind}: {field} {why}"
        raise InvalidAction(told, field=field, action=kind)
    return parsed


__all__ = [
    "Action",
    "AnyAction",
    "Back",
    "Check",
    "Click",
    "CloseTab",
    "File",
    "Fill",
    "Forward",
    "Goto",
    "Hover",
    "NewTab",
    "Press",
    "Reload",
    "Scroll",
    "Select",
    "SwitchTab",
    "Upload",
    "Wait",
    "parse_action",
]
