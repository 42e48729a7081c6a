"""Asking a running engine through its control door. Blocking: one command asks one thing."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statefork.adapters.interfaces.control.address import socket_address, socket_path
from statefork.adapters.interfaces.control.protocol import Request, error_from
from statefork.journal.errors import StateforkError
from statefork.journal.lock import holder_of, owner_of

if TYPE_CHECKING:
    import httpx


class NoEngine(StateforkError):
    """No engine runs on the state directory, and the command needs one."""

    code = "no_engine"


class EngineDeaf(StateforkError):
    """A process has the state directory open and takes no commands: it starts, closes, or is a program's own engine."""

    code = "engine_deaf"


class EngineForeign(StateforkError):
    """The engine of the state directory answers to the user who started it, and to nobody else."""

    code = "engine_foreign"


class EngineLost(StateforkError):
    """The engine ended, or closed the connection, before it answered: the outcome is unknown."""

    code = "engine_lost"


class WorldNotUp(StateforkError):
    """The engine of a world ended before it was ready; its own words are in the hint."""

    code = "world_not_up"


def engine_runs(state: Path) -> bool:
    """Whether an engine listens on the state directory's control socket, be it another user's."""
    try:
        return _knock(state) in (0, errno.EAGAIN)  # EAGAIN: somebody listens, and others stand in the queue
    except PermissionError:
        with suppress(PermissionError):
            return holder_of(state) is not None
    return False


class Held(NamedTuple):
    """Who has a state directory open."""

    pid: int | None  # None: that can't be seen
    takes_commands: bool
    closing: bool = False

    def __str__(self) -> str:
        if self.takes_commands:
            return "an engine runs"
        if self.closing:
            return f"open in process {self.pid}, an engine that is closing and takes no commands any more"
        return f"open in process {self.pid}, which takes no commands (an engine within a program, or one that starts)"

    @property
    def hint(self) -> str:
        """What to do about one that takes no commands."""
        if self.closing:
            return "Wait until it has parked its environments and ended, then start one again"
        return "Use the engine there, wait until it has started, or end it"


def held(state: Path) -> Held | None:
    """Who has a state directory open, by its lock and its control socket; None: nobody, as far as this user sees."""
    holder = None
    with suppress(PermissionError):
        holder = holder_of(state)
    closing = holder is not None and holder.closing
    takes_commands = not closing and engine_runs(state)
    pid = holder.pid if holder is not None else None
    return Held(pid, takes_commands, closing) if takes_commands or pid is not None else None


def _knock(state: Path) -> int:
    """What comes of connecting: 0 or the number of an error. Raises PermissionError where this user may not."""
    if not socket_path(state).is_socket():
        return errno.ENOENT
    with socket_address(state) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.setblocking(False)
        number = door.connect_ex(address)
    if number in (errno.EACCES, errno.EPERM):
        raise PermissionError(number, os.strerror(number), str(socket_path(state)))
    return number


class Control:
    """The engine of one state directory. ``patience_s``: how long it may take to answer; None: as long as it needs."""

    def __init__(self, state: Path, *, patience_s: float | None = None) -> None:
        self._state = state
        self._patience_s = patience_s
        self._held: httpx.Client | None = None

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Ask all in the body over one connection: what the engine lends on it, it takes back at its end."""
        with socket_address(self._state) as address:
            self._held = self._client(address)
            try:
                with self._held:
                    yield
            finally:
                self._held = None

    def ask(self, verb: str, request: Request) -> dict[str, Any]:
        """The engine's answer. Raises the engine's error with its own code; NoEngine, EngineLost."""
        response = self._send("POST", f"/v1/{verb}", msgspec.json.encode(request))
        answer: dict[str, Any] = json.loads(response.content)
        return answer

    def blob(self, digest: str) -> bytes:
        """The bytes of a blob, also of one that is not on disk yet. Raises like ``ask``."""
        return self._send("GET", f"/v1/blobs/{digest}", b"").content

    def _send(self, method: str, path: str, body: bytes) -> httpx.Response:
        try:
            if _knock(self._state) not in (0, errno.EAGAIN):
                raise self._nobody()
        except PermissionError:
            raise self._closed() from None
        if self._held is not None:
            response = self._asked(self._held, method, path, body)
        else:
            with socket_address(self._state) as address, self._client(address) as client:
                response = self._asked(client, method, path, body)
        if response.is_success:
            return response
        try:
            told = json.loads(response.content)["error"]
        except (ValueError, KeyError, TypeError):
            told = {"code": "internal", "message": f"the engine answered {response.status_code}"}
        raise error_from(told)

    def _client(self, address: str) -> httpx.Client:
        import httpx  # takes longer than most commands do

        # There is no TLS here, and to read what that needs would take longer than all else.
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        transport = httpx.HTTPTransport(uds=address, verify=False, limits=limits)
        return httpx.Client(transport=transport, trust_env=False, timeout=self._patience_s, base_url="http://statefork")

    def _asked(self, client: httpx.Client, method: str, path: str, body: bytes) -> httpx.Response:
        import httpx

        try:
            return client.request(method, path, content=body)
        except httpx.ConnectError:
            raise self._nobody() from None
        except httpx.HTTPError as error:
            raise EngineLost(
                f"the engine on {self._state} did not answer: {error or type(error).__name__}",
                hint="Whether it was done is unknown: look with `statefork log` before trying again",
            ) from None

    def _closed(self) -> StateforkError:
        """The error where the door may not be tried: somebody else's engine, or what one has left."""
        try:
            holder = holder_of(self._state)
        except PermissionError as error:
            return EngineForeign(
                f"whether an engine runs on the state directory {self._state} can't be seen: {error.strerror}",
                hint=self._as_owner(),
                state=str(self._state),
            )
        if holder is None:
            return self._nobody()
        return EngineForeign(
            f"the engine on {self._state} (process {holder.pid}) answers only to the user who started it",
            hint=f"{self._as_owner()}. Reading is possible meanwhile: ls, log, show, audit",
            state=str(self._state),
            pid=holder.pid,
        )

    def _as_owner(self) -> str:
        owner = owner_of(socket_path(self._state)) or owner_of(self._state)
        return f"Do it as {owner or 'that user'}, or start an engine on a directory of your own"

    def _nobody(self) -> StateforkError:
        with suppress(PermissionError):
            if (holder := holder_of(self._state)) is not None:
                there = Held(holder.pid, takes_commands=False, closing=holder.closing)
                return EngineDeaf(
                    f"the state directory {self._state} is {there}",
                    hint=f"{there.hint}; reading is possible meanwhile: ls, log, show, audit",
                    state=str(self._state),
                    pid=holder.pid,
                )
        why = "" if self._state.is_dir() else f" ({errno.errorcode[errno.ENOENT]}: there is no such directory)"
        return NoEngine(
            f"no engine runs on the state directory {self._state}{why}",
            hint=f"Start one in another terminal: statefork up CONTRACT --state {self._state}",
            state=str(self._state),
        )
