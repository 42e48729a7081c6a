"""What the tests ask of both boards beside their pages: what code without an environment meets, connections that are
kept beyond a request, a search of the whole process, and guards that are taken away and put back.
"""

from __future__ import annotations

import gc
import queue
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from statefork.adapters.resources.web import bound, chance, python_stack
from statefork.adapters.resources.web.python_stack import connections, lite, loop, pools

ELSEWHERE = "/nowhere/elsewhere.sqlite3"
kept: dict[str, Any] = {}
"""What the application keeps beyond a request, as it should not."""

Guard = tuple[Any, str, Any]


class _First:
    """Stores of whoever asked first: what a process without the hooks has."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {}

    def find(self, running: bound.Bound, name: str) -> tuple[str, Any]:
        kind = f"database.{name}" if f"database.{name}" in running.stores else "database"
        return kind, self._stores.setdefault(kind, running.stores[kind])


def guards() -> dict[str, list[Guard]]:
    """Each guard, as what stands in its place when it is gone."""
    shared: dict[str, str] = {}
    submit = next(cell.cell_contents for cell in ThreadPoolExecutor.submit.__closure__ or ())
    start = next(cell.cell_contents for cell in threading.Thread.start.__closure__ or ())
    return {
        "stores": [(connections.NAMES, "find", _First().find)],
        "pools": [(pools, "own_pool", lambda pattern: pattern)],
        "owners": [(connections.DriverSession, "check_owner", lambda self: None)],
        "caches": [(python_stack, "keep", lambda name, make: shared)],
        "audit": [(lite, "refuse_others", lambda database: None)],
        "jobs": [(ThreadPoolExecutor, "submit", submit)],
        "threads": [(threading.Thread, "start", start)],
        "errands": [(loop.Errand, "outlive", lambda self: None)],
        "closing": [(connections.DriverSession, "close_now", lambda self: None)],
        "chance": [(chance, "enter", lambda *_, **__: None)],
    }


_taken: list[Guard] = []


def without(name: str) -> None:
    """Take a guard away."""
    for owner, attribute, instead in guards()[name]:
        _taken.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, instead)


def back() -> None:
    """Put it back."""
    while _taken:
        owner, attribute, original = _taken.pop()
        setattr(owner, attribute, original)


class Nobody:
    """A thread that began with the server, and does what it is handed."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[str]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def meets(self, reach: Callable[[], Any]) -> str:
        """The name of the error that it meets there; empty if there is none."""
        answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked.put((reach, answer))
        return answer.get(timeout=20)

    def _run(self) -> None:
        while True:
            reach, answer = self._asked.get()
            answer.put(met(reach))


def met(reach: Callable[[], Any]) -> str:
    """The name of the error; empty if there is none."""
    try:
        reach()
    except Exception as error:  # noqa: BLE001 - whatever it is, its name is the answer
        return type(error).__name__
    return ""


NOBODY = Nobody()


def around() -> str:
    """SQLite without its ``connect``, from within a request."""
    return met(lambda: sqlite3.Connection(ELSEWHERE).close())


def holders(first: str, second: str) -> list[str]:
    """The kinds of all objects of this process that hold a text."""
    urllib.parse.clear_cache()  # of a pure function: nobody can read there what somebody else asked
    gc.collect()
    text = first + second
    data = text.encode()
    found = []
    for holder in gc.get_objects():
        for item in gc.get_referents(holder):
            # containers of plain values are not tracked by the collector: they are found through who holds them
            plain = gc.get_referents(item) if isinstance(item, (dict, tuple)) and not gc.is_tracked(item) else [item]
            for part in plain:
                if (type(part) is str and text in part) or (type(part) is bytes and data in part):
                    found += [f"{type(holder).__name__}: {part[:200]!r}"] if part not in (text, data) else []
    return found


def ask(name: str, asked: Mapping[str, str]) -> Any:
    """What both sites are asked alike."""
    if name == "holders":
        return holders(asked["first"], asked["second"])
    if name == "cap":
        connections.CONNECTIONS.most = int(asked["most"])
    elif name == "without":
        without(asked["guard"])
    else:
        back()
    return None
