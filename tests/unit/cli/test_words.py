"""Actions as people type them."""

from __future__ import annotations

from typing import get_args

import pytest

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.words import MAIN_FIELDS, action_from, known_actions
from statefork.adapters.resources.browser.actions import KINDS, AnyAction, parse_action
from statefork.engine.errors import InvalidAction


@pytest.mark.parametrize(
    ("words", "action"),
    [
        (["goto", "http://shop.example/"], {"type": "goto", "url": "http://shop.example/"}),
        (["click", "#buy"], {"type": "click", "selector": "#buy"}),
        (["click", "--role", "button", "--name", "Buy it"], {"type": "click", "role": "button", "name": "Buy it"}),
        (["click", "--role=button", "--exact"], {"type": "click", "role": "button", "exact": True}),
        (["click", "--role=button", "--exact=false"], {"type": "click", "role": "button", "exact": False}),
        (["click", "--x", "10", "--y", "20.5"], {"type": "click", "x": 10.0, "y": 20.5}),
        (["click", "--text", "a=b"], {"type": "click", "text": "a=b"}),
        (["fill", "Ada", "--label", "First name"], {"type": "fill", "value": "Ada", "label": "First name"}),
        (["fill", "--label", "Amount", "--value", "12"], {"type": "fill", "value": "12", "label": "Amount"}),
        (["press", "Enter"], {"type": "press", "key": "Enter"}),
        (["select", "red", "blue", "--label", "Ink"], {"type": "select", "labels": ["red", "blue"], "label": "Ink"}),
        (["select", "--values", "1", "--values", "2", "--selector", "#c"],
         {"type": "select", "values": ["1", "2"], "selector": "#c"}),
        (["scroll", "-5"], {"type": "scroll", "dy": -5.0}),
        (["back"], {"type": "back"}),
        (["new-tab", "http://shop.example/"], {"type": "new_tab", "url": "http://shop.example/"}),
        (["switch_tab", "1"], {"type": "switch_tab", "tab": 1}),
        (["wait", "Thank you"], {"type": "wait", "text": "Thank you"}),
        (['{"type": "click",', '"selector": "#a"}'], {"type": "click", "selector": "#a"}),
    ],
)  # fmt: skip
def test_words_become_an_action_that_the_browser_knows(words: list[str], action: dict[str, object]) -> None:
    assert action_from(words) == action
    parse_action(action_from(words))


def test_actions_of_other_adapters_are_left_to_the_engine() -> None:
    assert action_from(["turn", "--angle", "90", "--slowly", "true", "--axis", "x"]) == {
        "type": "turn",
        "angle": 90,
        "slowly": True,
        "axis": "x",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no action"),
        (["click", "--rule", "button"], "no field 'rule'"),
        (["click", "--role"], "needs a value"),
        (["click", "--x", "left"], "--x 'left'"),
        (["back", "twice"], "does not know what 'twice' is"),
        (["{nothing"], "not valid JSON"),
        (['{"a": 1'], "not valid JSON"),
    ],
)
def test_what_is_not_understood_is_told(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        action_from(words)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["put", "x", "1"], "Name the field that it is for, as the world calls it: such as --key, --value"),
        (["back", "twice"], "Name the field: --timeout_ms"),
        (["goto", "http://a.example/", "b"], "Name the field: --url"),
        (["run", "ls", "-l"], "Give the command as one text, in quotes"),
    ],
)
def test_what_a_word_is_for_is_asked_in_words_of_its_action(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as told:
        action_from(words)
    assert told.value.hint.startswith(hint)


def test_main_fields_are_fields_of_their_actions() -> None:
    known = known_actions()
    assert len(known) == len(get_args(AnyAction)) + 1  # and run, of terminals
    assert set(MAIN_FIELDS) <= set(known)
    assert all(field in known[kind].__struct_fields__ for kind, fields in MAIN_FIELDS.items() for field in fields)


@pytest.mark.parametrize(("kind", "meant"), [("got", "goto"), ("clik", "click"), ("new-tabs", "new_tab")])
def test_an_action_that_is_nearly_one(kind: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        action_from([kind, "x"])


@pytest.mark.parametrize("kind", ["put", "get", "add", "delete", "fail", "leave"])
def test_actions_of_other_worlds_are_not_mistaken_for_the_browsers(kind: str) -> None:
    assert action_from([kind, "--key", "k"]) == {"type": kind, "key": "k"}


def test_an_action_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(InvalidAction, match="there is no action 'fly'") as told:
        parse_action({"type": "fly"})
    assert told.value.hint == f"There are: {', '.join(KINDS)}"
    assert told.value.facts["field"] == "type"
    with pytest.raises(InvalidAction, match="there is no action 'fil'; did you mean 'fill'"):
        parse_action({"type": "fil"})
    with pytest.raises(InvalidAction, match="the action has no type"):
        parse_action({"url": "http://shop.example/"})
