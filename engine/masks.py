"""Masks: what may differ between two observations of one moment, and between two end states, as a contract declares it.

::

    [masks]
    text = ["Order number: \\\\d+", "\\\\d+ minutes ago"]
    selectors = ["#clock", ".session-token"]

    [masks.columns]
    db = ["orders.placed_at", "orders.token"]

    [masks.cookies]
    browser = ["visitor"]

``text``: regular expressions over the accessibility snapshot, title and address of a page. ``selectors``: CSS; the
elements that they match are taken out of the page when it is observed. ``columns``: of tables of databases.
``cookies``: of browsers, by their names; their values may differ. What is equal when all that is left out is
*equivalent*: not the same, but different only where the contract says that nothing depends on it.

When a cookie expires needs no mask: a browser counts that from a clock of its own (see :class:`Apart`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from statefork.engine.places import Place
from statefork.journal.values import Sealed, Value

PATTERN_CHARACTERS_MAX = 1000
_MASK = "…"
_COOKIE = re.compile(r"[^\s;,=]+")
_KEYS = ("text", "selectors", "columns", "cookies")

Where = tuple[str | int, ...]
Wrong = tuple[Where, str]
"""A place in the table, and what is wrong there."""


class Column(NamedTuple):
    """A column of a table, as it is written: ``orders.placed_at``; the table may bear a schema (``crm.orders.id``)."""

    table: str
    name: str


class Selector(Value, frozen=True, kw_only=True):
    """A CSS selector, and where it stands in the contract."""

    text: str
    place: Place


@runtime_checkable
class Columned(Protocol):
    """A resource (see engine.ports) that has tables, and so columns that may differ."""

    async def digest_without(self, sealed: Sealed, columns: tuple[Column, ...]) -> str:
        """SHA-256 (hex) of the version's content, whatever stands in these columns. Those that it has not don't count.

        Everything else is in it: also how many rows there are, and what the columns are called and hold by type.
        """
        ...


class Apart(Value, frozen=True, kw_only=True):
    """What a profile holds apart from when its cookies expire: a digest; and when they do, by domain, path and name."""

    digest: str
    expiries: Mapping[str, float]  # in seconds since the epoch


@runtime_checkable
class Cookied(Protocol):
    """A resource (see engine.ports) that has cookies, which expire by a clock that is no part of the world's."""

    async def apart_from_cookies(self, sealed: Sealed, masked: tuple[str, ...]) -> Apart:
        """What a version holds whenever its cookies expire, and whatever the ``masked`` ones say.

        Everything else is in it: which cookies there are, and whether they expire at all.
        """
        ...


class Masks(Value, frozen=True, kw_only=True):
    """What may differ, as it is written."""

    text: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = {}  # by resource
    cookies: Mapping[str, tuple[str, ...]] = {}  # by resource

    def __bool__(self) -> bool:
        return bool(self.text or self.selectors or self.columns or self.cookies)

    @property
    def resources(self) -> list[tuple[str, str]]:
        """What is masked of which resources: the key and the resource's name."""
        return [("columns", name) for name in self.columns] + [("cookies", name) for name in self.cookies]

    def cover(self, text: str) -> str:
        """A text with all that may differ left out."""
        for pattern in self.text:
            text = re.sub(pattern, _MASK, text)
        return text

    def columns_of(self, resource: str) -> tuple[Column, ...]:
        """The columns of one resource that may differ."""
        return tuple(Column(*text.rsplit(".", 1)) for text in self.columns.get(resource, ()))


NO_MASKS = Masks()


def parse_masks(table: Any) -> tuple[Masks, list[Wrong]]:
    """What a contract's table says, and what is wrong with it, each with its place in the table."""
    problems = list(_problems(table))
    if problems:
        return NO_MASKS, problems
    columns, cookies = (
        {name: tuple(listed) for name, listed in table.get(key, {}).items()} for key in ("columns", "cookies")
    )
    text, selectors = (tuple(table.get(key, ())) for key in ("text", "selectors"))
    return Masks(text=text, selectors=selectors, columns=columns, cookies=cookies), []


def _problems(table: Any) -> Iterator[Wrong]:
    if not isinstance(table, dict):
        yield (), "must be a table"
        return
    for key in table:
        if key not in _KEYS:
            yield (key,), f"unknown key {key!r}; there are: {', '.join(_KEYS)}"
    yield from _listed(("text",), table.get("text", []), "regular expressions", _wrong_pattern)
    yield from _listed(("selectors",), table.get("selectors", []), "CSS selectors", _wrong_selector)
    yield from _by_resource(table, "columns", "database", "columns (table.column)", _wrong_column)
    yield from _by_resource(table, "cookies", "browser", "names of cookies", _wrong_cookie)


def _by_resource(table: dict[str, Any], key: str, kind: str, what: str, wrong: Callable[[Any], str]) -> Iterator[Wrong]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        yield (key,), f"must be a table: of each {kind}, a list of {what}"
        return
    for resource, names in found.items():
        yield from _listed((key, resource), names, what, wrong)


def _listed(where: Where, found: Any, what: str, wrong: Callable[[Any], str]) -> Iterator[Wrong]:
    if not isinstance(found, list):
        yield where, f"must be a list of {what}"
        return
    for index, one in enumerate(found):
        if fault := wrong(one):
            yield (*where, index), fault


def _wrong_pattern(pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern:
        return "must be a regular expression"
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        return f"a regular expression has at most {PATTERN_CHARACTERS_MAX} characters"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        return f"is no regular expression: {error}"
    return "matches the empty text, and so everywhere" if compiled.match("") else ""


def _wrong_selector(selector: Any) -> str:
    """Whether it is CSS is for the browser to say, when it is started."""
    if not isinstance(selector, str) or not selector.strip():
        return "must be a CSS selector"
    if len(selector) > PATTERN_CHARACTERS_MAX:
        return f"a selector has at most {PATTERN_CHARACTERS_MAX} characters"
    return ""


def _wrong_column(text: Any) -> str:
    table, dot, column = text.rpartition(".") if isinstance(text, str) else ("", "", "")
    return "" if table and dot and column else f"must be a table's column, such as 'orders.placed_at', not {text!r}"


def _wrong_cookie(name: Any) -> str:
    return "" if isinstance(name, str) and _COOKIE.fullmatch(name) else f"must be the name of a cookie, not {name!r}"
