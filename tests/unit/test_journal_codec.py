"""Events as bytes: deterministic, readable, liftable; and the chain over them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefork.journal.codec import GENESIS, Chain, Codec, link
from statefork.journal.errors import EventInvalid, JournalCorrupt
from statefork.journal.events import ActionBegun, Base, EvaluationRecorded, Event, RequestRefused

text = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | floats | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def evaluation(detail: Any, score: float = 0.5) -> EvaluationRecorded:
    return EvaluationRecorded(
        at=1.0, env="e", generation=1, epoch=1, lease=1, name="n", score=score, after_action=0, detail=detail
    )


def refusal(**fields: Any) -> RequestRefused:
    common: dict[str, Any] = {"at": 1.0, "env": "e", "epoch": 1, "activation": 1, "status": 503, "code": "c"}
    return RequestRefused(**{**common, "method": "GET", "url": "/", **fields})


@given(json_values, floats)
def test_an_event_comes_back_as_it_was(detail: Any, score: float) -> None:
    event = evaluation(detail, score)
    assert Codec().decode(Codec().encode(event)) == event


@given(json_values)
def test_one_event_has_one_form(detail: Any) -> None:
    codec = Codec()
    data = codec.encode(evaluation(detail))
    assert codec.encode(codec.decode(data)) == data
    if isinstance(detail, dict):
        backwards = dict(reversed(detail.items()))
        assert codec.encode(evaluation(backwards)) == data


def test_people_and_sql_can_read_it() -> None:
    data = Codec().encode(refusal(at=2))
    assert data.startswith(b'{"type":"request.refused/1","at":2.0,"env":"e",')
    assert json.loads(data)["status"] == 503


@pytest.mark.parametrize(
    "event",
    [
        refusal(url="\udc80"),
        refusal(status="many"),
        evaluation(None, float("inf")),
        evaluation({1j: 2}),
        evaluation({"deep": object()}),
    ],
)
def test_what_has_no_json_form_is_refused(event: Event) -> None:
    with pytest.raises(EventInvalid) as refused:
        Codec().encode(event)
    assert refused.value.facts["event"] == type(event).__name__


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    raw = msgspec.to_builtins(refusal())
    del raw["detail"]
    raw["of_the_future"] = [1]
    assert Codec().decode(json.dumps(raw).encode()) == refusal()


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"type":"', b'{"type":"no.such/9","at":1.0}', b'{"at":1.0}', b"\xff", b"[]", b'{"type":1}']
)
def test_what_is_no_event_is_named_by_its_position(data: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="position 7") as damage:
        Codec().decode(data, position=7)
    assert damage.value.facts["position"] == 7


class Moved(Base, frozen=True, kw_only=True, tag="thing.moved/3"):
    """The third version of an event: a pair in place of two numbers."""

    to: tuple[int, int]


class Lost(Base, frozen=True, kw_only=True, tag="thing.lost/1"):
    """Another one, which makes it a union."""


def test_upcasters_lift_an_old_event_step_by_step() -> None:
    upcasters = {
        "thing.moved/1": lambda raw: {**raw, "type": "thing.moved/2", "y": 0},
        "thing.moved/2": lambda raw: {"type": "thing.moved/3", "at": raw["at"], "to": [raw["x"], raw["y"]]},
    }
    codec = Codec(upcasters, Moved | Lost)
    assert codec.decode(b'{"type":"thing.moved/1","at":1.0,"x":5}') == Moved(at=1.0, to=(5, 0))
    assert codec.decode(b'{"at":1.0,"type":"thing.moved/2","x":5,"y":6}') == Moved(at=1.0, to=(5, 6))
    assert codec.decode(b'{"type":"thing.lost/1","at":1.0}') == Lost(at=1.0)
    with pytest.raises(JournalCorrupt):
        codec.decode(b'{"type":"thing.moved/1","at":1.0}')


def test_upcasters_in_a_circle_are_noticed() -> None:
    codec = Codec({"a/1": lambda raw: {**raw, "type": "a/2"}, "a/2": lambda raw: {**raw, "type": "a/1"}})
    with pytest.raises(JournalCorrupt, match="circle"):
        codec.decode(b'{"type":"a/1"}')


def test_the_chain_covers_place_and_content_and_all_before() -> None:
    one = link(GENESIS, "env/a", 1, b"{}")
    others = [link(one, "env/a", 1, b"{}"), link(GENESIS, "env/b", 1, b"{}"), link(GENESIS, "env/a", 2, b"{}")]
    assert len({one, *others, link(GENESIS, "env/a", 1, b"{ }")}) == 5


def test_a_chain_read_from_the_middle_asks_for_what_was_before() -> None:
    first = link(GENESIS, "s", 1, b"1")
    second = link(first, "s", 2, b"2")
    third = link(second, "s", 3, b"3")
    chain = Chain(lambda stream, version: {("s", 2): first}.get((stream, version)))
    chain.check(8, "s", 2, b"2", second)
    chain.check(9, "s", 3, b"3", third)
    for version, data, digest in ((5, b"3", third), (4, b"3", third), (3, b"3", third)):
        with pytest.raises(JournalCorrupt, match="position 10"):
            chain.check(10, "s", version, data, digest)
    with pytest.raises(JournalCorrupt, match="missing"):
        Chain(lambda stream, version: None).check(1, "s", 2, b"2", second)


def test_free_json_keeps_its_types() -> None:
    action = ActionBegun(
        at=1, env="e", generation=1, epoch=1, activation=1, lease=1, number=1, action={"x": 1, "y": 1.0}
    )
    back = Codec().decode(Codec().encode(action))
    assert isinstance(back, ActionBegun)
    assert [type(value) for value in back.action.values()] == [int, float]
