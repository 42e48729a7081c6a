"""Values as a journal, a terminal and a web page can show them; what is long is cut by the server and says so."""

from __future__ import annotations

import math

import msgspec

from statefork.adapters.resources.postgres.reading import name
from statefork.journal.values import Json

_TEXT_BYTES_MAX = 16_000  # longer ones are not sent
_TEXT_CHARACTERS_MAX = 4000  # of a longer one, shown
_BYTES_MAX = 64

NUMBERS = frozenset({"smallint", "integer", "bigint", "oid"})
_FLOATS = frozenset({"real", "double precision"})
_JSON = frozenset({"json", "jsonb"})


def shown(column: str, type_name: str) -> str:
    """The expression that gives a column of ``x`` as text for :func:`readable`; equal texts mean equal values."""
    at = f"x.{name(column)}"
    if type_name == "bytea":
        return (
            f"CASE WHEN octet_length({at}) <= {_BYTES_MAX} THEN 's' || encode({at}, 'hex') "
            f"ELSE 'b' || octet_length({at}) || ':' || encode(sha256({at}), 'hex') END"
        )
    text = f"{at}::text"
    return (
        f"CASE WHEN octet_length({text}) <= {_TEXT_BYTES_MAX} THEN 's' || {text} ELSE 'l' || length({text}) || ':' "
        f"|| encode(sha256(convert_to({text}, 'UTF8')), 'hex') || ':' || left({text}, {_TEXT_CHARACTERS_MAX}) END"
    )


def readable(text: str | None, type_name: str) -> Json:
    """What :func:`shown` gave, as a person reads it: numbers, truth values and documents as such, the rest as text."""
    if text is None:
        return None
    form, rest = text[0], text[1:]
    if form == "b":
        length, digest = rest.split(":")
        return {"bytes": int(length), "sha256": digest}
    if form == "l":
        length, _, beginning = rest.split(":", 2)
        return f"{beginning}… ({length} characters)"
    if type_name == "bytea":
        return {"hex": rest}
    if type_name in NUMBERS:
        return int(rest)
    if type_name == "boolean":
        return rest == "true"
    if type_name in _FLOATS:
        number = float(rest)
        return number if math.isfinite(number) else rest
    if type_name in _JSON:
        return _document(rest)
    return rest


def _document(text: str) -> Json:
    try:
        decoded: Json = msgspec.json.decode(text)
    except msgspec.DecodeError:  # a number that no float holds
        return text
    return decoded
