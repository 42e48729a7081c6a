"""What of a difference is shown, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from statefork.engine.ports import Change
from statefork.journal.values import Json
from statefork.replay.covering import ITEMS_MAX, TEXT_CHARS_MAX, covered, covered_action, cut

WORD = "hunter2"


@pytest.mark.parametrize(
    ("name", "group", "value"),
    [
        ("auth_user[1]", "auth_user", {"password": WORD, "email": "a@b.example"}),
        ("cookie shop.example/ sessionid", "cookies", {"value": WORD, "httpOnly": True}),
        ("cookie shop.example/ sid", "cookies", {"value": WORD, "httpOnly": False}),
        ("cookie shop.example/ basket", "cookies", {"value": WORD, "httpOnly": True}),
        ("localStorage http://shop.example access_token", "localStorage", WORD),
        ("tab 0 field 2 password", "tabs", {"value": WORD}),
        (f"django_session[{WORD * 4}]", "django_session", {"session_key": WORD * 4, "session_data": WORD}),
        ("settings[1]", "settings", {"deep": [{"apiKey": WORD}]}),
        (
            f"objectcache[wiki:MWSession:{WORD * 4}]",
            "objectcache",
            {"keyname": f"wiki:MWSession:{WORD * 4}", "value": WORD},
        ),
    ],
)
def test_a_secret_is_not_shown(name: str, group: str, value: Json) -> None:
    for change in (
        Change(kind="added", name=name, after=value, group=group),
        Change(kind="changed", name=name, before=value, after=value, group=group),
    ):
        shown = covered(change)
        assert WORD not in str(shown)
        assert "(secret" in str(shown)
        assert shown.kind == change.kind


@pytest.mark.parametrize(
    ("name", "group", "value"),
    [
        ("product[17]", "product", {"price": 12, "title": "Passage to pinewood, authorised tokyo edition"}),
        ("cookie shop.example/ currency", "cookies", {"value": "EUR", "httpOnly": False, "expires": -1}),
        ("images/logo.png", "", {"bytes": 12, "sha256": "ab" * 32}),
        ("localStorage http://shop.example theme", "localStorage", "dark"),
        ("author[3]", "author", {"name": "Ada", "pinned": True}),
    ],
)
def test_what_is_none_is_shown(name: str, group: str, value: Json) -> None:
    change = Change(kind="changed", name=name, before=value, after=value, group=group)
    assert covered(change) == change


def test_what_is_filled_into_a_field_of_a_secret_is_covered() -> None:
    filled = {"type": "fill", "label": "Password", "value": WORD}
    assert covered_action(filled) == {**filled, "value": "(secret, 7 characters)"}
    assert covered_action({"type": "fill", "label": "City", "value": "Bern"})["value"] == "Bern"


def test_what_is_long_is_cut_and_says_so() -> None:
    assert str(cut("x" * (TEXT_CHARS_MAX + 1))).endswith(f"({TEXT_CHARS_MAX + 1} characters)")
    listed: Any = cut(list(range(ITEMS_MAX + 3)))
    assert (len(listed), listed[-1]) == (ITEMS_MAX + 1, "… 3 more")
    keyed: Any = cut({str(number): number for number in range(ITEMS_MAX + 3)})
    assert keyed["…"] == "3 more"
    deep: Json = "bottom"
    for _ in range(20):
        deep = [deep]
    assert "bottom" not in str(cut(deep))
