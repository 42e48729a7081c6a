"""Where each key of a TOML or JSON text stands, so that an error about a value can name its line and column.

The standard parsers give values without positions. These locators walk a text that such a parser has *already
accepted*, so they need not judge it: they only have to know where a key begins and where a value ends. Pure.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

import msgspec

KeyPath = tuple[str | int, ...]
"""The way to a value from the top of the document: table keys and array indices (from 0)."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR_END = re.compile(r"[,\]}\n#]")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_JSON_BLANK = re.compile(r"[ \t\r\n]*")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A spot in a file; written ``file:line:column``. Lines and columns count from 1; 0 = not known."""

    file: str
    line: int = 0
    column: int = 0
    key: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in a file, and where."""

    place: Place
    message: str

    def __str__(self) -> str:
        key = f" {self.place.key}:" if self.place.key else ""
        return f"{self.place}:{key} {self.message}"


def key_text(path: KeyPath) -> str:
    """A key path as people write it: ``resources.db.tabs[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + part
    return text


class Places:
    """The spots of all keys of one text."""

    def __init__(
        self, file: str, text: str, offsets: Mapping[KeyPath, int], repeated: tuple[KeyPath, ...] = ()
    ) -> None:
        self.file = file
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._offsets = dict(offsets)
        self.repeated = repeated
        """Keys that stand twice in one table (JSON only: TOML's own parser refuses them)."""

    def has(self, path: KeyPath) -> bool:
        """Whether the text has this very key."""
        return path in self._offsets

    def of(self, path: KeyPath) -> Place:
        """The spot of the key, or of the nearest one around it that the text has."""
        known = path
        while known and known not in self._offsets:
            known = known[:-1]
        if not known:
            return Place(file=self.file, key=key_text(path))
        offset = self._offsets[known]
        line = bisect_right(self._starts, offset)
        return Place(file=self.file, line=line, column=offset - self._starts[line - 1] + 1, key=key_text(path))


def toml_places(text: str, file: str) -> Places:
    """The places of a text that ``tomllib`` accepted."""
    normal = text.replace("\r\n", "\n")
    walk = _TomlWalk(normal)
    walk.document()
    return Places(file, normal, walk.offsets)


def json_places(text: str, file: str) -> Places:
    """The places of a text that ``json`` accepted."""
    walk = _JsonWalk(text)
    walk.value(_skip(_JSON_BLANK, text, 0), ())
    return Places(file, text, walk.offsets, tuple(walk.repeated))


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class _TomlWalk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.offsets: dict[KeyPath, int] = {}
        self._last_index: dict[KeyPath, int] = {}  # of arrays of tables ([[name]])

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self.at = _skip(_BLANK_LINES, self.text, self.at)
            if self.at >= len(self.text):
                return
            if self.text.startswith("[[", self.at):
                self.at += 2
                table = self._header(repeats=True)
                self.at += 2
            elif self.text.startswith("[", self.at):
                self.at += 1
                table = self._header(repeats=False)
                self.at += 1
            else:
                self._pair(table)

    def _header(self, *, repeats: bool) -> KeyPath:
        path: KeyPath = ()
        segments = self._dotted_key()
        for number, (segment, offset) in enumerate(segments, 1):
            path = (*path, segment)
            self.offsets.setdefault(path, offset)
            if repeats and number == len(segments):
                self._last_index[path] = self._last_index.get(path, -1) + 1
            if path in self._last_index:
                path = (*path, self._last_index[path])
                self.offsets.setdefault(path, offset)
        return path

    def _pair(self, table: KeyPath) -> None:
        path = table
        for segment, offset in self._dotted_key():
            path = (*path, segment)
            self.offsets.setdefault(path, offset)
        self.at = _skip(_BLANK, self.text, self.at + 1)  # the equals sign
        self._value(path)

    def _dotted_key(self) -> list[tuple[str, int]]:
        segments = []
        while True:
            self.at = _skip(_BLANK, self.text, self.at)
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                raw = self.text[start : self.at]
                segments.append((str(tomllib.loads(f"key = {raw}")["key"]), start))
            else:
                self.at = _skip(_BARE_KEY, self.text, start)
                segments.append((self.text[start : self.at], start))
            self.at = _skip(_BLANK, self.text, self.at)
            if self.text[self.at] != ".":
                return segments
            self.at += 1

    def _value(self, path: KeyPath) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            end = _SCALAR_END.search(self.text, self.at)
            self.at = end.start() if end else len(self.text)

    def _array(self, path: KeyPath) -> None:
        self.at = _skip(_BLANK_LINES, self.text, self.at + 1)
        index = 0
        while self.text[self.at] != "]":
            self.offsets.setdefault((*path, index), self.at)
            self._value((*path, index))
            index += 1
            self.at = _skip(_BLANK_LINES, self.text, self.at)
            if self.text[self.at] == ",":
                self.at = _skip(_BLANK_LINES, self.text, self.at + 1)
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at = _skip(_BLANK_LINES, self.text, self.at + 1)
        while self.text[self.at] != "}":
            self._pair(path)
            self.at = _skip(_BLANK_LINES, self.text, self.at)
            if self.text[self.at] == ",":
                self.at = _skip(_BLANK_LINES, self.text, self.at + 1)
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        long = self.text.startswith(quote * 3, self.at)
        closing = quote * 3 if long else quote
        at = self.at + len(closing)
        while not self.text.startswith(closing, at):
            at += 2 if quote == '"' and self.text[at] == "\\" else 1
        at += len(closing)
        while long and self.text.startswith(quote, at):  # up to two quotes may stand right before the closing three
            at += 1
        self.at = at


class _JsonWalk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.offsets: dict[KeyPath, int] = {}
        self.repeated: list[KeyPath] = []
        self._decoder = json.JSONDecoder()

    def value(self, at: int, path: KeyPath) -> int:
        """Walk the value that begins at an offset; return the offset behind it."""
        if self.text[at] == "{":
            return self._members(at, path)
        if self.text[at] == "[":
            return self._elements(at, path)
        return self._decoder.raw_decode(self.text, at)[1]

    def _members(self, at: int, path: KeyPath) -> int:
        at = self._past(at + 1)
        seen: set[str] = set()
        while self.text[at] != "}":
            key, end = self._decoder.raw_decode(self.text, at)
            member = (*path, str(key))
            if key in seen:
                self.repeated.append(member)
            seen.add(key)
            self.offsets[member] = at
            at = self._past(self.value(self._past(self._past(end) + 1), member))
            if self.text[at] == ",":
                at = self._past(at + 1)
        return at + 1

    def _elements(self, at: int, path: KeyPath) -> int:
        at = self._past(at + 1)
        index = 0
        while self.text[at] != "]":
            self.offsets[(*path, index)] = at
            at = self._past(self.value(at, (*path, index)))
            index += 1
            if self.text[at] == ",":
                at = self._past(at + 1)
        return at + 1

    def _past(self, at: int) -> int:
        return _skip(_JSON_BLANK, self.text, at)
