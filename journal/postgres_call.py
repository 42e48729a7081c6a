"""One append as the database's function takes it (see :mod:`statefork.journal.postgres_schema`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statefork.journal.batch import Placed

_WORDS = r"string_to_array(%s::text, E'\n')"
_NUMBERS = _WORDS + "::bigint[]"
_KINDS = (
    *("%s::uuid", "%s::bigint", "%s::bigint"),
    *(_WORDS, _NUMBERS, _WORDS),
    *(_WORDS, _NUMBERS, _WORDS, _WORDS),
    *(_WORDS, _NUMBERS, _WORDS),
    *(_WORDS, _NUMBERS),
)
CALL = f"SELECT outcome, reached, bad FROM {{s}}.append({', '.join(_KINDS)})"
"""Lists go as lines of one text: names of streams, events and hashes have none in them, and to write them as arrays,
every quotation mark escaped, took most of a group commit's time."""


def arguments(
    batch: uuid.UUID,
    writer: int,
    session: int,
    touched: Mapping[str, tuple[int, str]],
    placed: Placed,
    claimed: Mapping[str, int],
) -> Sequence[Any]:
    """What CALL is given. ``touched``: the streams' heads as they are believed to be; ``claimed``: tokens by stream."""
    rows, moved = placed.rows, placed.changed
    return (
        *(batch, writer, session),
        *(_lines(touched), _lines(version for version, _ in touched.values())),
        _lines(last for _, last in touched.values()),
        *(_lines(row.stream for row in rows), _lines(row.version for row in rows)),
        *(b"\n".join(row.event for row in rows).decode(), _lines(row.hash for row in rows)),
        *(_lines(moved), _lines(version for version, _ in moved.values())),
        _lines(last for _, last in moved.values()),
        *(_lines(claimed), _lines(claimed.values())),
    )


def _lines(values: Iterable[object]) -> str:
    return "\n".join(map(str, values))
