"""What evaluators read, found in a task file of WebArena's shape: sites, addresses, databases, files, storage keys.

A task is an object with ``sites``, ``start_url`` and ``eval``. Known of ``eval`` are ``reference_url``,
``program_html`` (its ``url``, and what the ``locator`` takes from storage), and, as other benchmarks have them,
``database`` with ``query``, ``path`` or ``file``, ``cookie``, and ``reads``: a list of ``"kind name"``. What is not
known is told, and not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from statefork.engine.errors import ContractError

KINDS = ("site", "database", "file", "storage", "cookie", "resource")
TASKS_MAX = 100_000
TASK_BYTES_MAX = 64 << 20

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z0-9_]*?)__")
_SEPARATOR = re.compile(r"\s+\|(?:AND|OR)\|\s+")
_HELPER = re.compile(r"func:(?:helper\.)?([a-z]+(?:_admin)?)_")
_TABLES = re.compile(r"\b(?:from|join|into|update)\s+[\"`]?([a-z_][\w.]*)", re.IGNORECASE)
_STORED = re.compile(
    r"\b(localStorage|sessionStorage)(?:\.getItem\(\s*['\"]([^'\"]+)['\"]|\[\s*['\"]([^'\"]+)['\"]|\.(?!getItem|setItem"
    r"|removeItem|key\b|length\b|clear\b)([A-Za-z_$][\w$]*))"
)
_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@\s]*@")
_OPENED = re.compile(r"\bindexedDB\.open\(\s*['\"]([^'\"]+)['\"]")
_DATABASE_KEYS = ("database", "db", "dsn", "connection")
_QUERY_KEYS = ("query", "sql")
_FILE_KEYS = ("path", "file", "files", "file_path", "filename")
_KNOWN_TYPES = frozenset({"string_match", "url_match", "program_html", "page_image_query", "url_exact_match"})
_SEEN_BY_KEY = frozenset({*_DATABASE_KEYS, *_FILE_KEYS, "cookie", "cookies", "reads", "reference_url", "program_html"})


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that decides what a task sees or what it is worth."""

    kind: str  # one of KINDS
    name: str  # a host or a site's name, a database, a path, a key
    details: tuple[str, ...] = ()  # addresses, tables, the kind of storage
    tasks: tuple[str, ...] = ()


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """A task file, as far as it was understood."""

    file: str
    count: int
    reads: tuple[Read, ...]
    start: str = ""  # the first address that a task begins at
    unclear: tuple[str, ...] = ()  # what could not be understood, each with its tasks


def read_tasks(file: Path) -> Tasks:
    """Understand a task file: a list, an object with ``tasks``, one task, or a line of JSON for each.

    Raises ContractError where it is none of these.
    """
    gathering = _Gathering()
    tasks = _decoded(file)
    for position, task in enumerate(tasks):
        gathering.task(str(task.get("task_id", task.get("id", position))), task)
    return gathering.tasks(str(file), len(tasks))


def _decoded(file: Path) -> list[dict[str, Any]]:
    try:
        if file.stat().st_size > TASK_BYTES_MAX:
            raise ContractError(f"{file}: a task file has at most {TASK_BYTES_MAX} bytes", file=str(file))
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"can't read the tasks {str(file)!r}: {error}", file=str(file)) from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            message = f"{file}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
            raise ContractError(message, file=str(file)) from error
    if isinstance(found, dict):
        found = found.get("tasks", [found])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        hint = "A task is an object with sites, start_url and eval; a file has a list of them"
        raise ContractError(f"{file}: these are no tasks", hint=hint, file=str(file))
    if not 0 < len(found) <= TASKS_MAX:
        raise ContractError(f"{file}: a task file has 1 to {TASKS_MAX} tasks, not {len(found)}", file=str(file))
    return found


class _Gathering:
    """What is read, by kind and name."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
        self._unclear: dict[str, list[str]] = {}
        self._start = ""
        self._task = ""

    def tasks(self, file: str, count: int) -> Tasks:
        """All of it."""
        reads = [
            Read(kind=kind, name=name, details=tuple(details), tasks=tuple(tasks))
            for (kind, name), (details, tasks) in self._found.items()
        ]
        reads.sort(key=lambda read: (KINDS.index(read.kind), read.name))
        unclear = tuple(f"{what} (tasks {', '.join(tasks)})" for what, tasks in sorted(self._unclear.items()))
        return Tasks(file=file, count=count, reads=tuple(reads), start=self._start, unclear=unclear)

    def task(self, number: str, task: Mapping[str, Any]) -> None:
        """Take one in."""
        self._task = number
        for site in _texts(task.get("sites")):
            self._note("site", site)
        for url in _texts(task.get("start_url")):
            self._urls(url)
            self._start = self._start or _SEPARATOR.split(url)[0]
        if task.get("storage_state"):
            self._note("cookie", "*", "the login that the task begins with")
        evaluation = task.get("eval", task.get("evaluator", {}))
        if not isinstance(evaluation, dict):
            self._unknown(f"an evaluator that is no object: {type(evaluation).__name__}")
            return
        self._evaluation(evaluation)

    def _evaluation(self, evaluation: Mapping[str, Any]) -> None:
        understood = False
        for value in _objects(evaluation):
            understood |= self._object(value)
        for kind in _texts(evaluation.get("eval_types")):
            if kind not in _KNOWN_TYPES and not understood:
                self._unknown(f"an evaluator of type {kind!r}")

    def _object(self, value: Mapping[str, Any]) -> bool:
        for url in (*_texts(value.get("reference_url")), *_texts(value.get("url"))):
            self._urls(url)
        for locator in (*_texts(value.get("locator")), *_texts(value.get("script"))):
            self._locator(locator)
        queries = [query for key in _QUERY_KEYS for query in _texts(value.get(key))]
        tables = sorted({table.lower() for query in queries for table in _TABLES.findall(query)})
        for key in _DATABASE_KEYS:
            for name in _texts(value.get(key)):
                self._note("database", _PASSWORD.sub(r"\1@", name), *tables)
        for key in _FILE_KEYS:
            for path in _texts(value.get(key)):
                self._note("file", path)
        for key in ("cookie", "cookies"):
            for cookie in _texts(value.get(key)):
                self._note("cookie", cookie)
        for line in _texts(value.get("reads")):
            kind, _, name = line.partition(" ")
            if kind in KINDS and name:
                self._note(kind, name)
            else:
                self._unknown(f"reads {line!r}, where kinds are {', '.join(KINDS)}")
        return bool(_SEEN_BY_KEY & value.keys())

    def _urls(self, text: str) -> None:
        for url in _SEPARATOR.split(text.strip()):
            placeholder = _PLACEHOLDER.match(url)
            if placeholder:
                self._note("site", placeholder[1].lower(), url[placeholder.end() :] or "/")
            elif url.startswith("func:"):
                self._helper(url)
            elif url and url != "last":
                parts = urlsplit(url)
                if parts.scheme in ("http", "https") and parts.netloc:
                    self._note("site", parts.netloc, parts.path or "/")
                elif not url.startswith("/"):
                    self._unknown(f"an address {url!r}")

    def _locator(self, locator: str) -> None:
        for where, *names in _STORED.findall(locator):
            self._note("storage", next(filter(None, names)), where)
        for name in _OPENED.findall(locator):
            self._note("storage", name, "indexedDB")
        if "document.cookie" in locator:
            self._note("cookie", "*", "document.cookie")
        if locator.startswith("func:"):
            self._helper(locator)

    def _helper(self, call: str) -> None:
        """A function of the evaluator's own, which asks a site: by its name, as WebArena's do."""
        site = _HELPER.match(call)
        if site:
            self._note("site", site[1], call)
        else:
            self._unknown(f"a function {call!r}")

    def _note(self, kind: str, name: str, *details: str) -> None:
        known, tasks = self._found.setdefault((kind, name), ({}, {}))
        known.update(dict.fromkeys(details))
        tasks[self._task] = None

    def _unknown(self, what: str) -> None:
        tasks = self._unclear.setdefault(what, [])
        if self._task not in tasks:
            tasks.append(self._task)


def _texts(value: object) -> Iterator[str]:
    """The texts in a value that is one, or a list of them; also the ``path`` or ``name`` of objects in it."""
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, str) and one:
            yield one


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Every object in a value, at any depth."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one
