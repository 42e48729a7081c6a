"""I10, the chain: whatever is done to the rows of a journal, without making every hash after it anew, is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import Audit
from tests.unit.replay.told import Told
from tests.unit.replay.true_journal import true_events

AT = 33  # an action of a begins there
Rows = list[Row]


def again(row: Row, **changed: Any) -> Row:
    """A row with something else in it."""
    fields = {"position": row.position, "stream": row.stream, "version": row.version, "digest": row.digest}
    return Row(**{**fields, "raw": row.raw, **changed})


def at(rows: Rows, **changed: Any) -> Rows:
    """The rows with the one at AT changed."""
    return [again(row, **changed) if row.position == AT else row for row in rows]


def a_byte_is_flipped(rows: Rows) -> Rows:
    return at(rows, raw=rows[AT - 1].raw.replace(b'"value":5', b'"value":6'))


def a_row_is_lost(rows: Rows) -> Rows:
    return [row for row in rows if row.position != AT]


def a_row_is_lost_and_the_others_close_up(rows: Rows) -> Rows:
    kept = [row for row in rows if row.position != AT]
    return [again(row, position=number) for number, row in enumerate(kept, 1)]


def two_rows_change_places(rows: Rows) -> Rows:
    first, second = rows[AT - 1], rows[AT]
    swapped = [again(second, position=AT), again(first, position=AT + 1)]
    return [*rows[: AT - 1], *swapped, *rows[AT + 1 :]]


def a_row_is_told_twice(rows: Rows) -> Rows:
    told = [*rows[:AT], rows[AT - 1], *rows[AT:]]
    return [again(row, position=number) for number, row in enumerate(told, 1)]


def a_hash_is_forged(rows: Rows) -> Rows:
    return at(rows, digest="0" * 64)


def an_event_is_changed_with_its_own_hash(rows: Rows) -> Rows:
    """Its hash fits; that of the next event of its stream does not."""
    row = rows[AT - 1]
    before = next(other for other in reversed(rows[: AT - 1]) if other.stream == row.stream)
    raw = row.raw.replace(b'"value":5', b'"value":6')
    fits = hashlib.sha256(f"{before.digest}\n{row.stream}\n{row.version}\n".encode() + raw).hexdigest()
    return at(rows, raw=raw, digest=fits)


def an_event_moves_to_another_stream(rows: Rows) -> Rows:
    return at(rows, stream="act/c")


def a_version_is_changed(rows: Rows) -> Rows:
    return at(rows, version=99)


@pytest.mark.parametrize(
    ("damage", "position"),
    [
        (a_byte_is_flipped, AT),
        (a_row_is_lost, AT + 1),
        (a_row_is_lost_and_the_others_close_up, AT),
        (two_rows_change_places, AT),
        (a_row_is_told_twice, AT + 1),
        (a_hash_is_forged, AT),
        (an_event_is_changed_with_its_own_hash, AT + 1),
        (an_event_moves_to_another_stream, AT),
        (a_version_is_changed, AT),
    ],
)
def test_what_is_done_to_rows_is_found_where_it_was_done(damage: Callable[[Rows], Rows], position: int) -> None:
    report = Audit().run(damage(Told(true_events()).rows()))
    found = [finding for finding in report.findings if finding.invariant == "I10"]
    assert found, list(report.lines())
    assert found[0].position == position, found
    assert report.exit_code == 1


def test_bytes_that_can_not_be_read_are_a_violation_too() -> None:
    rows = Told(true_events()).rows()
    report = Audit().run(at(rows, raw=b"\x00" + rows[AT - 1].raw[1:]))
    assert ("I10", AT) in {(finding.invariant, finding.position) for finding in report.findings}
    assert report.unreadable
    assert report.exit_code == 1


def test_a_key_that_is_named_twice_is_found() -> None:
    told = Told(true_events())
    rows = told.rows()
    text = json.dumps(told.events[AT - 1][1])[:-1] + ', "number": 9}'
    report = Audit().run(at(rows, raw=text.encode()))
    assert "the event names a key twice: number" in {finding.sentence for finding in report.findings}


def test_an_end_that_was_cut_off_is_found() -> None:
    rows = Told(true_events()).rows()
    heads = list({row.stream: (row.stream, row.version, row.digest) for row in rows}.values())
    assert Audit(kept_heads=heads).run(rows).clean
    report = Audit(kept_heads=heads).run(rows[:-2])
    assert [(finding.invariant, finding.stream) for finding in report.findings] == [("I10", "journal")]
    assert report.findings[0].sentence == "act/c ends at event 2, but the file says that it has 4: the end was cut off"


def test_an_end_that_was_replaced_is_found() -> None:
    rows = Told(true_events()).rows()
    heads = list({row.stream: (row.stream, row.version, row.digest) for row in rows}.values())
    told = Told(true_events())
    told.events[-1][1]["elapsed_ms"] = 7.0
    (finding,) = Audit(kept_heads=heads).run(told.rows()).findings
    assert "which is not the end that the file keeps" in finding.sentence


def test_the_chain_alone_finds_them() -> None:
    """No other checker does: the events themselves could be true."""
    rows = a_byte_is_flipped(Told(true_events()).rows())
    assert {finding.invariant for finding in Audit().run(rows).findings} == {"I10"}
