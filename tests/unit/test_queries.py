"""What an evaluator writes for any database, as PostgreSQL gets and gives it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from statefork.adapters.interfaces.queries import numbered, plain


@pytest.mark.parametrize(
    ("written", "parameters", "sent"),
    [
        ("SELECT a FROM t WHERE b = ? AND c < ?", 2, "SELECT a FROM t WHERE b = $1 AND c < $2"),
        ("SELECT '?', \"?\", 'it''s ?' FROM t WHERE b = ?", 1, "SELECT '?', \"?\", 'it''s ?' FROM t WHERE b = $1"),
        ("SELECT $$?$$, $a$ ? $$ ? $a$, ? -- ?\n/* ? */", 1, "SELECT $$?$$, $a$ ? $$ ? $a$, $1 -- ?\n/* ? */"),
        ("SELECT a ? 'key' FROM t WHERE b = $1", 2, "SELECT a ? 'key' FROM t WHERE b = $1"),
        ("SELECT a ?| array['key'] FROM t", 0, "SELECT a ?| array['key'] FROM t"),
    ],
)
def test_question_marks_are_parameters_where_they_can_be(written: str, parameters: int, sent: str) -> None:
    assert numbered(written, parameters) == sent


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (Decimal("12.50"), 12.5),
        (Decimal("1234567890.123456789"), "1234567890.123456789"),
        (Decimal("NaN"), "NaN"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02 03:04:05+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [Decimal("1.5"), None, True]}, {"a": [1.5, None, True]}),
        (b"\x00", b"\x00"),
    ],
)
def test_values_are_those_of_sqlite_and_json(value: Any, seen: Any) -> None:
    assert plain(value) == seen
