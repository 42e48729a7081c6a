"""Seats for other processes: a Unix socket in the state directory, a connection for each seat.

What a seat has is given back when its connection ends, however that comes to pass: a client that was killed holds
nothing. Only the user to whom the state directory belongs can open it.
"""

from __future__ import annotations

import os
import select
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.control.address import socket_address
from statefork.adapters.interfaces.control.protocol import error_object
from statefork.adapters.interfaces.gym.seats import Judged, Seat, Verdict, glimpse, take
from statefork.adapters.interfaces.gym.wire import Ask, Line, Reply
from statefork.adapters.interfaces.sync import Engine
from statefork.adapters.interfaces.views import Seen
from statefork.journal.errors import StateforkError

SOCKET = "gym.sock"
_BACKLOG = 256


class _JudgeFailed(Exception):
    """A judge raised in the process that has it, which knows what."""


class _Client:
    """One connection, and what it has."""

    def __init__(self, engine: Engine, connected: socket.socket, born: dict[str, Seat]) -> None:
        self._engine = engine
        self._connected = connected
        self._line = Line(connected)
        self._born = born  # children that nobody has taken yet
        self._seat: Seat | None = None
        self._mine: set[str] = set()  # of them, those that this connection has asked for

    def serve(self) -> None:
        """Answer until the client is gone, and give back what it had."""
        watching = threading.Thread(target=self._watch, name="gym watch", daemon=True)
        watching.start()
        try:
            with suppress(EOFError, msgspec.DecodeError):
                while True:
                    self._line.send(self._answer(self._line.ask()))
        finally:
            _cut(self._connected)
            watching.join()
            self._give_back()  # what came of the last that was asked, too
            self._line.close()

    def _watch(self) -> None:
        """When the client is gone, be it in the middle of an action, what it had is taken from it."""
        poll = select.poll()
        poll.register(self._connected, select.POLLRDHUP)
        poll.poll()
        self._give_back()

    def _give_back(self) -> None:
        left = [seat for name in tuple(self._mine) if (seat := self._born.pop(name, None)) is not None]
        for seat in (self._seat, *left):
            if seat is not None:
                with suppress(StateforkError):
                    seat.leave()

    def _answer(self, ask: Ask) -> Reply:
        try:
            return self._done(ask)
        except StateforkError as error:
            return Reply(error=error_object(error))
        except _JudgeFailed:
            return Reply()
        except EOFError:
            raise
        except Exception as error:  # noqa: BLE001 -- the client learns of it; the others' seats are not concerned
            return _fault(error)

    def _done(self, ask: Ask) -> Reply:
        if ask.what == "take":
            born = self._born.pop(ask.name or "", None)
            taken = self._seat = born if born is not None else take(self._engine, ask.name)
            return Reply(value=taken.name)
        seat = self._seat
        assert seat is not None, "a client takes a seat first"
        match ask.what:
            case "begin":
                return Reply(glimpse=seat.begin(ask.at))
            case "act":
                return Reply(glimpse=seat.act(ask.action, ask.timeout_s))
            case "judge":
                return Reply(value=seat.judge(self._judged, ask.name or "judge"))
            case "snapshot":
                return Reply(value=seat.snapshot())
            case "fork":
                children = {one.name: one for one in seat.fork(ask.n)}
                self._born.update(children)
                self._mine |= children.keys()
                return Reply(value=list(children))
            case _:
                seat.leave()
                return Reply()

    def _judged(self, seen: Judged) -> Verdict:
        """The check of an evaluation whose judge is at the other end. Raises EOFError where that is gone."""
        self._line.send(Reply(value={"env": seen.env, "generation": seen.generation, "epoch": seen.epoch}))
        while (ask := self._line.ask()).what != "score":
            if ask.what == "fail":
                raise _JudgeFailed
            try:
                self._line.send(_read(seen, ask))
            except StateforkError as error:
                self._line.send(Reply(error=error_object(error)))
            except (sqlite3.Error, ValueError, TypeError) as error:
                self._line.send(_fault(error))
        return ask.score, ask.detail


def _fault(error: Exception) -> Reply:
    message = f"{type(error).__name__}: {error}"
    return Reply(error={"code": "internal", "message": message, "hint": "", "facts": {}})


def _read(seen: Judged, ask: Ask) -> Reply:
    if ask.what == "query":
        return Reply(value=seen.query(ask.name or "", ask.sql, tuple(ask.parameters)))
    if ask.what == "look":
        found: Any = seen.look()
        return Reply(glimpse=glimpse(seen.env, found) if isinstance(found, Seen) else found)
    return Reply(value=seen.base_url(ask.name))


@contextmanager
def serving(engine: Engine) -> Iterator[Path]:
    """Let other processes have seats while the body runs; then their connections are cut."""
    path = engine.state.absolute() / SOCKET
    path.unlink(missing_ok=True)  # of a killed engine: who has the state directory open owns the name
    clients: dict[socket.socket, threading.Thread] = {}
    born: dict[str, Seat] = {}
    process = os.getpid()
    with ExitStack() as stack:
        door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        os.fchmod(door.fileno(), 0o600)
        with socket_address(engine.state, SOCKET) as address:
            door.bind(address)
        path.chmod(0o600)
        door.listen(_BACKLOG)

        def accept() -> None:
            with suppress(OSError):  # it was shut
                while True:
                    connected, _ = door.accept()
                    client = _Client(engine, connected, born)
                    clients[connected] = thread = threading.Thread(target=client.serve, name="gym seat", daemon=True)
                    thread.start()

        accepting = threading.Thread(target=accept, name="gym door", daemon=True)
        accepting.start()
        try:
            yield path
        finally:
            if os.getpid() == process:  # else it is a copy that a fork has left, whose end is nothing to the original
                path.unlink(missing_ok=True)
                _cut(door)
                accepting.join()
                for connected in list(clients):
                    _cut(connected)
                for thread in list(clients.values()):
                    thread.join()


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):  # it is cut already
        connected.shutdown(socket.SHUT_RDWR)
