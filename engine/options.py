"""What is wrong with the options of a contract's entry: all at once, each with its key, in a contract's words. Pure.

A value is never repeated unless it is one of a few that can be chosen: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

import msgspec

from statefork.engine.places import KeyPath
from statefork.journal.values import Json

_PATH = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_FIELD = re.compile(r"unknown field `(?P<field>[^`]+)`")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]+)`(?P<rest>[^,]*)(?:, got `(?P<got>[^`]+)`)?$")
_ABSENT = "missing: the adapter needs it"
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


class BadOptions(ValueError):
    """Raised by an options Struct's ``__post_init__``: what is wrong with which option, as (key, message)."""

    def __init__(self, *faults: tuple[str, str]) -> None:
        super().__init__("; ".join(message for _, message in faults))
        self.faults = faults


def unknown(noun: str, name: str, known: Collection[str], of: str = "") -> str:
    """The words for a name that is none of those known."""
    told = f"unknown {noun} {name!r}{of}"
    near = get_close_matches(name, known, n=1)
    if near:
        return f"{told}; did you mean {near[0]!r}?"
    return f"{told}; there are: {', '.join(known)}" if known else told


def faults(
    values: Mapping[str, Json], options: type[msgspec.Struct], adapter: str, error: msgspec.ValidationError
) -> list[tuple[KeyPath, str]]:
    """What is wrong with values that ``msgspec`` did not take, and where below the entry.

    Options that are right each by itself are then looked at together, by the Struct.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(options)}
    found: list[tuple[KeyPath, str]] = []
    for key, value in values.items():
        if key not in fields:
            found.append(((key,), unknown("key", key, list(fields), f" of adapter {adapter!r}")))
            continue
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as wrong:
            found.append(_told(key, value, fields[key].type, adapter, wrong))
    meant = {near for key in values if key not in fields for near in get_close_matches(key, fields, n=1)}
    found += [
        ((key,), _ABSENT) for key, field in fields.items() if field.required and key not in values and key not in meant
    ]
    if found:
        return found
    cause = error.__cause__
    if isinstance(cause, BadOptions):
        return [((key,), message) for key, message in cause.faults]
    return [((), str(error))]


def _told(key: str, value: Json, kind: Any, adapter: str, wrong: msgspec.ValidationError) -> tuple[KeyPath, str]:
    message, path = str(wrong), (key,)
    at = _PATH.search(message)
    steps: list[str | int] = []
    if at:
        message = message[: at.start()]
        steps = [field or int(index) for field, index in _STEP.findall(at["path"])]
    if field := _FIELD.search(message):
        return (*path, *steps, field["field"]), unknown("key", field["field"], (), f" of adapter {adapter!r}")
    if field := _MISSING.search(message):
        return (*path, *steps, field["field"]), _ABSENT
    if get_origin(kind) is Literal and isinstance(value, str):
        allowed = get_args(kind)
        near = get_close_matches(value, allowed, n=1)
        asked = f"; did you mean {near[0]!r}?" if near else ""
        return path, f"must be one of {', '.join(map(repr, allowed))}, not {value!r}{asked}"
    return (*path, *steps), _in_words(message)


def _in_words(message: str) -> str:
    expected = _EXPECTED.match(message)
    if expected is None:
        return message
    kinds = " or ".join(_WORDS.get(kind, kind) for kind in expected["kinds"].split(" | "))
    got = expected["got"]
    return f"must be {kinds}{expected['rest']}" + (f", not {_WORDS.get(got, got)}" if got else "")
