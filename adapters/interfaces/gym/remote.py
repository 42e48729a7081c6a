"""A seat in an engine of another process, over the socket of :mod:`statefork.adapters.interfaces.gym.door`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from statefork.adapters.interfaces.control.address import socket_address
from statefork.adapters.interfaces.control.client import EngineLost
from statefork.adapters.interfaces.control.protocol import error_from
from statefork.adapters.interfaces.gym.door import SOCKET
from statefork.adapters.interfaces.gym.seats import Glimpse, Judged, Seat, Verdict
from statefork.adapters.interfaces.gym.wire import Ask, Line, Reply
from statefork.journal.values import Json


def dial(state: Path) -> socket.socket | None:
    """A connection to whoever serves seats there; None where nobody does."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(state, SOCKET) as address:
            door.connect(address)
    except OSError:  # there is no such directory, or none who listens
        door.close()
        return None
    return door


class RemoteSeat:
    """See :class:`Seat`. ``left`` is called when it is given back."""

    def __init__(self, state: Path, connected: socket.socket, name: str | None, left: Callable[[], None]) -> None:
        self._state = state
        self._line = Line(connected)
        self._told_left = left
        self._left = False
        self._turn = threading.RLock()
        try:
            self.name = str(self._ask(Ask(what="take", name=name)).value)
        except BaseException:
            self._line.close()
            raise

    def _ask(self, ask: Ask) -> Reply:
        with self._turn:
            try:
                self._line.send(ask)
                reply = self._line.reply()
            except EOFError as error:
                raise EngineLost(
                    f"the engine on {self._state} is gone: {error}",
                    hint="Make the environment again; what it had is given up",
                    state=str(self._state),
                ) from None
        if reply.error is not None:
            raise error_from(reply.error)
        return reply

    def _seen(self, ask: Ask) -> Glimpse:
        found = self._ask(ask).glimpse
        assert found is not None
        return found

    def begin(self, at: str | None) -> Glimpse:
        """See :class:`Seat`."""
        return self._seen(Ask(what="begin", at=at))

    def act(self, action: Mapping[str, Json] | None, timeout_s: float | None) -> Glimpse:
        """See :class:`Seat`."""
        return self._seen(Ask(what="act", action=None if action is None else dict(action), timeout_s=timeout_s))

    def judge(self, check: Callable[[Judged], Verdict], name: str) -> float:
        """See :class:`Seat`. The engine holds the lease while ``check`` runs here."""
        with self._turn:
            judged = _Judged(self, self._ask(Ask(what="judge", name=name)).value)
            try:
                score, detail = check(judged)
            except BaseException:
                self._ask(Ask(what="fail"))
                raise
            return float(self._ask(Ask(what="score", score=float(score), detail=detail)).value)

    def snapshot(self) -> str:
        """See :class:`Seat`."""
        return str(self._ask(Ask(what="snapshot")).value)

    def fork(self, n: int) -> list[Seat]:
        """See :class:`Seat`. Each child has a connection of its own."""
        children: list[Seat] = []
        for name in self._ask(Ask(what="fork", n=n)).value:
            connected = dial(self._state)
            if connected is None:
                raise EngineLost(f"the engine on {self._state} is gone", state=str(self._state))
            children.append(RemoteSeat(self._state, connected, name, lambda: None))
        return children

    def leave(self) -> None:
        """See :class:`Seat`. Returns when it is given back."""
        if self._left:
            return
        self._left = True
        with suppress(EngineLost):
            self._ask(Ask(what="leave"))
        self._line.close()
        self._told_left()


class _Judged:
    """What a judge may read, asked of the engine."""

    def __init__(self, seat: RemoteSeat, told: dict[str, Any]) -> None:
        self._seat = seat
        self.env: str = told["env"]
        self.generation: int = told["generation"]
        self.epoch: int = told["epoch"]

    def query(self, resource: str, sql: str, parameters: tuple[Json, ...] = ()) -> list[dict[str, Json]]:
        """Rows of one read-only statement on a database of the environment."""
        ask = Ask(what="query", name=resource, sql=sql, parameters=list(parameters))
        rows: list[dict[str, Json]] = self._seat._ask(ask).value
        return rows

    def look(self) -> Glimpse:
        """What the agent would see now."""
        return self._seat._seen(Ask(what="look"))

    def base_url(self, resource: str | None = None) -> str:
        """Where a site of the environment is reachable."""
        return str(self._seat._ask(Ask(what="base_url", name=resource)).value)
