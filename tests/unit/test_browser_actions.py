"""Actions as data: what is accepted, and which field an error names."""

from __future__ import annotations

from typing import Any

import pytest

from statefork.adapters.resources.browser import actions as a
from statefork.engine.errors import InvalidAction


@pytest.mark.parametrize(
    ("action", "plain"),
    [
        (a.Goto("http://shop.example/"), {"type": "goto", "url": "http://shop.example/"}),
        (a.Click(role="button", name="Buy"), {"type": "click", "role": "button", "name": "Buy"}),
        (a.Click("#buy", count=2), {"type": "click", "selector": "#buy", "count": 2}),
        (a.Click(x=1, y=2.5), {"type": "click", "x": 1.0, "y": 2.5}),
        (a.Fill(label="Name", value=""), {"type": "fill", "label": "Name", "value": ""}),
        (a.Press(key="Enter"), {"type": "press", "key": "Enter"}),
        (a.Select("#c", labels=("red",)), {"type": "select", "selector": "#c", "labels": ["red"]}),
        (a.Scroll(dy=100), {"type": "scroll", "dy": 100.0}),
        (a.NewTab(), {"type": "new_tab"}),
        (a.CloseTab(1), {"type": "close_tab", "tab": 1}),
        (a.SwitchTab(0), {"type": "switch_tab", "tab": 0}),
        (a.Back(), {"type": "back"}),
        (a.Wait(url="**/done"), {"type": "wait", "url": "**/done"}),
        (
            a.Upload("#f", files=(a.File(name="a", content="YQ=="),)),
            {"type": "upload", "selector": "#f", "files": [{"name": "a", "content": "YQ=="}]},
        ),
    ],
)
def test_an_action_is_plain_data_and_back(action: a.Action, plain: dict[str, Any]) -> None:
    assert action.to_json() == plain
    assert a.parse_action(plain) == action


@pytest.mark.parametrize(
    ("plain", "field"),
    [
        ({}, "type"),
        ({"type": "fly"}, "type"),
        ({"type": "goto"}, "url"),
        ({"type": "goto", "url": 7}, "url"),
        ({"type": "goto", "url": "file:///etc/passwd"}, "url"),
        ({"type": "goto", "url": "javascript:alert(1)"}, "url"),
        ({"type": "goto", "url": "chrome://version"}, "url"),
        ({"type": "goto", "url": "http://"}, "url"),
        ({"type": "goto", "url": "http://a:port/"}, "url"),
        ({"type": "new_tab", "url": "data:text/html,x"}, "url"),
        ({"type": "goto", "url": "http://a/", "timeout_ms": 0}, "timeout_ms"),
        ({"type": "goto", "url": "http://a/", "speed": 1}, "speed"),
        ({"type": "click"}, "selector"),
        ({"type": "click", "selector": "#a", "text": "b"}, "text"),
        ({"type": "click", "x": 1}, "y"),
        ({"type": "click", "name": "Buy", "text": "b"}, "name"),
        ({"type": "click", "selector": "#a", "button": "side"}, "button"),
        ({"type": "click", "selector": "#a", "count": 9}, "count"),
        ({"type": "click", "selector": "#a", "nth": -1}, "nth"),
        ({"type": "fill", "selector": "#a"}, "value"),
        ({"type": "press", "key": ""}, "key"),
        ({"type": "select", "selector": "#a"}, "values"),
        ({"type": "wait"}, "selector"),
        ({"type": "wait", "x": 1, "y": 1}, "x"),
        ({"type": "wait", "url": "**", "text": "b"}, "url"),
        ({"type": "upload", "selector": "#a", "files": [{"name": "../a", "content": ""}]}, "files[0].name"),
        ({"type": "upload", "selector": "#a", "files": [{"name": "a", "content": "%"}]}, "files[0].content"),
        ({"type": "upload", "selector": "#a", "files": [{"name": "a"}]}, "files[0].content"),
    ],
)
def test_a_bad_action_is_refused_and_the_field_named(plain: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidAction) as refused:
        a.parse_action(plain)
    assert refused.value.facts["field"] == field


def test_what_a_target_may_be_named_by_is_told() -> None:
    with pytest.raises(
        InvalidAction, match=r"^click needs a target, named in one way: role \(with name\), label, text"
    ):
        a.parse_action({"type": "click"})
