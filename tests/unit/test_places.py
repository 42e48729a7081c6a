"""Where keys stand: the locators agree with the parsers about which keys there are, and with the eye about where."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefork.engine.places import KeyPath, json_places, key_text, toml_places

ODD = '''\
title = """a [not.a] table = "x" \\""" # still inside
"""  # done
raw = \'\'\'it''s\'\'\'\'
[a."quoted.key".'lit']   # comment
"\\u0061b" . c = { d = [1, { e = "}" }, [ # in an array
  2 ]], f.g = 1979-05-27T07:32:00Z }
[[list]]
x = 1
[[list.sub]]
y = 2
[[list.sub]]
[[list]]
[list.sub]
z = "]" # ]
'''


def all_paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    """Every key path of a decoded document."""
    found = {path} - {()}
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found |= all_paths(member, (*path, key))
    return found


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("title",), 1, 1),
        (("raw",), 3, 1),
        (("a",), 4, 2),
        (("a", "quoted.key", "lit"), 4, 17),
        (("a", "quoted.key", "lit", "ab", "c"), 5, 13),
        (("a", "quoted.key", "lit", "ab", "c", "d"), 5, 19),
        (("a", "quoted.key", "lit", "ab", "c", "d", 1, "e"), 5, 29),
        (("a", "quoted.key", "lit", "ab", "c", "d", 2, 0), 6, 3),
        (("a", "quoted.key", "lit", "ab", "c", "f", "g"), 6, 11),
        (("list", 0, "sub", 1), 11, 8),
        (("list", 1), 12, 3),
        (("list", 1, "sub", "z"), 14, 1),
    ],
)
def test_given_odd_toml_when_located_then_each_key_is_where_the_eye_finds_it(
    path: KeyPath, line: int, column: int
) -> None:
    place = toml_places(ODD, "odd.toml").of(path)
    assert (place.line, place.column) == (line, column)


def test_given_odd_toml_when_located_then_no_key_is_missed() -> None:
    places = toml_places(ODD, "odd.toml")
    assert all(places.has(path) for path in all_paths(tomllib.loads(ODD)))


def test_given_a_key_that_is_absent_when_located_then_the_nearest_around_it_answers() -> None:
    places = toml_places("[a]\nb = 1\n", "f")
    assert str(places.of(("a", "x", "y"))) == "f:1:2"
    assert places.of(("a", "x", 0)).key == "a.x[0]"
    assert str(places.of(("z",))) == "f"


def test_given_windows_line_ends_when_located_then_lines_are_the_same() -> None:
    windows = toml_places(ODD.replace("\n", "\r\n"), "f")
    unix = toml_places(ODD, "f")
    assert all(windows.of(path) == unix.of(path) for path in all_paths(tomllib.loads(ODD)))


keys = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)
documents = st.dictionaries(
    keys,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=12,
    ),
    max_size=4,
)


@given(documents, st.sampled_from([None, 0, 3]))
def test_given_any_json_when_located_then_each_key_stands_at_its_place(document: Any, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    places = json_places(text, "f")
    lines = text.split("\n")
    for path in all_paths(document):
        place = places.of(path)
        if isinstance(path[-1], str):
            assert lines[place.line - 1][place.column - 1 :].startswith(json.dumps(path[-1]))
    assert places.repeated == ()


def as_toml(value: Any) -> str:
    """A value as inline TOML (JSON strings are TOML strings but for the escaping of surrogate pairs)."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_string(k)} = {as_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[\n " + ", # c ]\n".join(as_toml(member) for member in value) + "\n]"
    if isinstance(value, bool):
        return str(value).lower()
    return toml_string(value) if isinstance(value, str) else str(int(value or 0) % 2**60)


def toml_string(text: str) -> str:
    """A TOML basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


@given(documents)
def test_given_any_toml_when_located_then_each_key_stands_at_its_place(document: Any) -> None:
    text = "\n".join(f"{toml_string(key)} = {as_toml(value)}" for key, value in document.items())
    places = toml_places(text, "f")
    lines = text.split("\n")
    for path in all_paths(tomllib.loads(text)):
        place = places.of(path)
        assert places.has(path)
        if isinstance(path[-1], str):
            assert lines[place.line - 1][place.column - 1 :].startswith(toml_string(path[-1]))


def test_key_text_is_how_people_write_paths() -> None:
    assert key_text(("resources", "db", "tabs", 0, "url")) == "resources.db.tabs[0].url"
