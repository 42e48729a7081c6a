"""A SQL file on its way to psql: what names roles is left out, line by line, so that line numbers stay true.

Only statements that begin a line, as pg_dump writes them, are looked at; what is inside a string, a function's body, a
comment or the data of a COPY is data. Statements that leave the database are refused, and those about extensions and
event triggers, for which most need a superuser, are set aside. All of this is convenience: what a base may do is
decided by the role that psql logs in as, and by psql's restricted mode. Only where psql has none does this module see
to it that no command of psql's own gets there (``bare``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

_NAME = rb'(?:[A-Za-z_\x80-\xff][\w$\x80-\xff]*|"(?:[^"]|"")+")'
_OWNERS = re.compile(
    rb"""(?: ALTER\s .*\s OWNER\s+TO\s .* | (?:GRANT|REVOKE)\s .* | ALTER\s+DEFAULT\s+PRIVILEGES\s .*
       | SET\s+SESSION\s+AUTHORIZATION\s .* | RESET\s+SESSION\s+AUTHORIZATION\s*
       | SET\s+ROLE\s .* | RESET\s+ROLE\s* );\s*$""",
    re.IGNORECASE | re.VERBOSE,
)
_ASIDE = re.compile(
    rb"(?:(?:CREATE|ALTER|DROP)\s+|COMMENT\s+ON\s+)(?:(?P<extension>EXTENSION)|EVENT\s+TRIGGER)\s", re.IGNORECASE
)
_INTO_SCHEMA = re.compile(
    rb"CREATE\s+EXTENSION\s+(?:IF\s+NOT\s+EXISTS\s+)?" + _NAME + rb"\s.*?\bSCHEMA\s+(" + _NAME + rb")",
    re.IGNORECASE | re.DOTALL,
)
_SCHEMA = re.compile(
    rb"(?:CREATE\s+SCHEMA|DROP\s+SCHEMA\s+IF\s+EXISTS)\s+(?:IF\s+NOT\s+EXISTS\s+)?(" + _NAME + rb")"
    rb"(?:\s+AUTHORIZATION\s+" + _NAME + rb")?\s*;\s*$",
    re.IGNORECASE,
)
_SILENT = re.compile(  # commands of psql that say how it talks
    rb"\\(?:(?:un)?restrict|echo|qecho|warn|timing|pset|set\s+(?:ON_ERROR_STOP|ECHO|QUIET|VERBOSITY))(?:\s|$)"
)
_LEAVES = (
    (re.compile(rb"\\c(?:onnect)?\b"), "\\connect leads to another database"),
    (re.compile(rb"\\!"), "\\! runs a program"),
    (re.compile(rb"\\copy\b"), "\\copy reads or writes files: COPY … FROM STDIN with the rows below it is data"),
    (re.compile(rb"\\"), "it is a command of psql, not SQL"),
    (re.compile(rb"(?:CREATE|ALTER|DROP)\s+DATABASE\b", re.IGNORECASE), "it makes or changes a whole database"),
    (
        re.compile(rb"(?:CREATE|ALTER|DROP)\s+(?:ROLE|USER|GROUP)\b(?!\s+MAPPING)", re.IGNORECASE),
        "it makes or changes a role",
    ),
)
_COPY = re.compile(rb"\s*COPY\s.*\sFROM\s+STDIN\b", re.IGNORECASE | re.DOTALL)
_BARE = re.compile(rb"[\x01-\x5b\x5d-\x7f]*")  # in no encoding and under no setting psql sees a command in these
_BARE_COPY = re.compile(rb"COPY [\w.]+(?: \([\w, ]+\))? FROM stdin;\r?\n")
_PLAIN = re.compile(  # what opens nothing, or closes on the same line what it opens
    rb"""(?: [^'"$/;\-eE]++ | [eE](?!') | (?<=[\w$\x80-\xff])[eE] | '[^']*+' | "[^"]*+" | -(?!-) | /(?!\*) )*+""",
    re.VERBOSE,
)
_OPENING = re.compile(rb"[eE]?'|\"|--|/\*|;|(?<![\w$\x80-\xff])\$(?:[A-Za-z_\x80-\xff][\w\x80-\xff]*)?\$")
_ESCAPED_STRING = re.compile(rb"\\.|'", re.DOTALL)
_COMMENT = re.compile(rb"/\*|\*/")
_HEAD_BYTES = 4096


class Refused(Exception):
    """A line that can't be in a base. Its number, from 1, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


class Aside(msgspec.Struct):
    """A statement about an extension or an event trigger, as it stands, with whatever else is on its last line."""

    line: int
    text: bytes
    extension: bool

    @property
    def schema(self) -> str:
        """Where an extension wants to be made; empty: it does not say."""
        found = _INTO_SCHEMA.match(self.text.lstrip())
        return _plain(found[1]) if found else ""


def adapted(
    lines: Iterable[bytes], aside: list[Aside], schemas: Collection[str] = (), *, bare: bool = False
) -> Iterator[bytes]:
    """The lines for psql, as many as came. Raises Refused.

    What is set aside is added to ``aside``; ``schemas`` are there already; ``bare``: psql has no restricted mode.
    """
    scanner = _Scanner()
    data = False  # whether data of a COPY is certainly that
    kept: Aside | None = None
    for number, line in enumerate(lines, 1):
        if scanner.in_data and (data or not bare):
            scanner.take(line)
            yield line
            continue
        fresh, data = scanner.fresh, False
        text = line.lstrip()
        if bare and not _BARE.fullmatch(line) and not (fresh and _SILENT.match(text)):
            raise Refused(number, "this psql, which knows no \\restrict, takes only ASCII without a backslash here")
        scanner.take(line)
        data = fresh and _BARE_COPY.fullmatch(line) is not None
        if kept is None and fresh:
            kept = _set_aside(number, text, aside, whole=scanner.fresh)
        elif kept is not None:
            kept.text += line
        elif not fresh:
            yield line
            continue
        if kept is not None:
            if scanner.fresh:
                kept = None
            yield b"\n"
        elif scanner.fresh and _is_left_out(text, schemas):
            yield b"\n"
        else:
            _refuse(number, text)
            yield line


def _set_aside(number: int, text: bytes, aside: list[Aside], *, whole: bool) -> Aside | None:
    found = _ASIDE.match(text)
    if found is None or (whole and _OWNERS.match(text)):
        return None
    aside.append(Aside(number, text, found["extension"] is not None))
    return aside[-1]


def _is_left_out(text: bytes, schemas: Collection[str]) -> bool:
    if _OWNERS.match(text) or _SILENT.match(text):
        return True
    schema = _SCHEMA.match(text) if schemas else None
    return schema is not None and _plain(schema[1]) in schemas


def _refuse(number: int, text: bytes) -> None:
    for pattern, why in _LEAVES:
        if pattern.match(text):
            raise Refused(number, why)


def _plain(name: bytes) -> str:
    """A name as the catalog has it."""
    text = name.decode(errors="replace")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


class _Scanner:
    """Follows where a line begins: between two statements (``fresh``), or inside something."""

    def __init__(self) -> None:
        self._inside = b""  # what has to come: a quote, a dollar tag, "*/", or the end of COPY's data
        self._depth = 0  # of comments
        self._escapes = False
        self._statement = b""  # the beginning of the one that is open

    @property
    def fresh(self) -> bool:
        """Whether no statement is open."""
        return not self._inside and not self._statement.strip()

    @property
    def in_data(self) -> bool:
        """Whether a line is data of a COPY."""
        return self._inside == b"\\."

    def take(self, line: bytes) -> None:
        """Go over a line."""
        if self.in_data:
            if line.rstrip(b"\r\n") == b"\\.":
                self._inside = b""
            return
        if self.fresh and line.lstrip().startswith(b"\\"):  # a command of psql ends with its line
            return
        at = 0
        while at < len(line):
            at = self._within(line, at) if self._inside else self._between(line, at)

    def _between(self, line: bytes, at: int) -> int:
        plain = _PLAIN.match(line, at)
        assert plain is not None
        found = _OPENING.match(line, plain.end())
        self._keep(line[at : plain.end() if found else plain.end() + 1])
        if found is None:
            return plain.end() + 1  # a lone dollar, or the end
        token = found[0]
        if token == b"--":
            return len(line)
        if token == b";":
            copies = _COPY.match(self._statement) is not None
            self._statement = b""
            if copies:
                self._inside = b"\\."
                return len(line)
        elif token == b"/*":
            self._inside, self._depth = b"*/", 1
        else:
            self._escapes = token[:-1] in (b"e", b"E")
            self._inside = token[-1:] if self._escapes else token
            self._keep(token)
        return found.end()

    def _within(self, line: bytes, at: int) -> int:
        found = self._ending().search(line, at)
        if found is None:
            return len(line)
        if self._inside == b"*/":
            self._depth += 1 if found[0] == b"/*" else -1
            if self._depth == 0:
                self._inside = b""
        elif found[0] == self._inside:
            self._inside = b""
        return found.end()

    def _ending(self) -> re.Pattern[bytes]:
        if self._inside == b"*/":
            return _COMMENT
        return _ESCAPED_STRING if self._escapes else re.compile(re.escape(self._inside))

    def _keep(self, text: bytes) -> None:
        if len(self._statement) < _HEAD_BYTES:
            self._statement += text
