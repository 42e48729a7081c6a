"""Actions as people type them: ``goto URL``, ``click --role button --name "Add to basket"``, ``{"type": …}``.

The first word is the action's type, ``--field value`` sets a field, and words without a dash fill the fields that the
action is mostly about. Which fields there are is read from the actions' own types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.resources.browser.actions import AnyAction
from statefork.adapters.resources.shell.actions import Run
from statefork.journal.values import Json

_CLOSE = 0.8  # "got" is close to "goto"; the memory world's "fail" is not to "fill"

MAIN_FIELDS: dict[str, tuple[str, ...]] = {
    "goto": ("url",),
    "click": ("selector",),
    "hover": ("selector",),
    "fill": ("value",),
    "press": ("key",),
    "run": ("command",),
    "select": ("labels",),
    "check": ("selector",),
    "scroll": ("dy", "dx"),
    "new_tab": ("url",),
    "close_tab": ("tab",),
    "switch_tab": ("tab",),
    "wait": ("text",),
}
"""What words without a dash mean, in order, for each type of action."""


def known_actions() -> dict[str, type[msgspec.Struct]]:
    """The actions of browsers and terminals by their type."""
    return {str(kind.__struct_config__.tag): kind for kind in (*get_args(AnyAction), Run)}


def action_from(words: Sequence[str]) -> dict[str, Json]:
    """The action that the words mean. Raises UsageError; whether its values fit, the engine says."""
    if not words:
        raise UsageError("no action was given", hint="Write for example: statefork act ENV goto http://shop.example/")
    if words[0].lstrip().startswith("{"):
        return _from_json(" ".join(words))
    kind = words[0].replace("-", "_")
    known = known_actions().get(kind)
    if known is None and (meant := get_close_matches(kind, known_actions(), n=1, cutoff=_CLOSE)):
        raise UsageError(
            f"there is no action {kind!r}; did you mean {meant[0]!r}?",
            hint="An action of another kind of world can be given as JSON: '{\"type\": …}'",
        )
    fields = {field.name: field for field in msgspec.structs.fields(known)} if known is not None else {}
    action: dict[str, Json] = {"type": kind}
    free: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if not _is_option(word):
            free.append(word)
            continue
        name, given, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        field = fields.get(name)
        if known is not None and field is None:
            raise UsageError(f"{kind} has no field {name!r}", hint=f"It has: {', '.join(fields)}")
        if field is not None and field.type is bool and not given:
            action[name] = True
            continue
        if not given and not rest:
            raise UsageError(f"--{name} needs a value")
        _set(action, name, value if given else rest.pop(0), field)
    _fill_free(action, kind, free, fields)
    return action


def _is_option(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _from_json(text: str) -> dict[str, Json]:
    try:
        action = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the action is not valid JSON: {error}") from None
    except RecursionError:
        raise UsageError("the action is nested too deep") from None
    if not isinstance(action, dict):
        raise UsageError("the action is not a JSON object")
    return action


def _set(action: dict[str, Json], name: str, value: str, field: Any) -> None:
    if field is None:
        action[name] = _guess(value)
        return
    if _is_list(field.type):
        already = action.get(name)
        action[name] = [*(already if isinstance(already, list) else []), value]
        return
    try:
        action[name] = msgspec.to_builtins(msgspec.convert(value, field.type, strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"--{name} {value!r}: {error}") from None


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is tuple


def _guess(value: str) -> Json:
    """The value of a field of which nothing is known: JSON where it reads as JSON, else text."""
    try:
        guessed: Json = json.loads(value)
    except ValueError:
        return value
    return guessed


def _how_to_name(kind: str, fields: dict[str, Any]) -> str:
    if kind == "run":
        return "Give the command as one text, in quotes"
    if kind not in known_actions():
        return "Name the field that it is for, as the world calls it: such as --key, --value"
    return f"Name the field: {', '.join(f'--{name}' for name in fields)}"


def _fill_free(action: dict[str, Json], kind: str, free: list[str], fields: dict[str, Any]) -> None:
    meant = [name for name in MAIN_FIELDS.get(kind, ()) if name not in action]
    for value in free:
        if not meant:
            raise UsageError(f"{kind} does not know what {value!r} is", hint=_how_to_name(kind, fields))
        field = fields.get(meant[0])
        _set(action, meant[0], value, field)
        if field is None or not _is_list(field.type):
            meant.pop(0)
