"""What all stacks behind the server have in common: a signed header, and a session for what a binding keeps there."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import json
import logging
import os
import secrets
import shutil
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.behind.forward import Errand, Forward, UnixConnection
from statefork.adapters.resources.web.behind.process import Tethered
from statefork.adapters.resources.web.behind.site import Site, read_site
from statefork.adapters.resources.web.bound import BindingEnded, Bound, Stores
from statefork.adapters.resources.web.stack import Application, Setup

READY_PATH = "/.statefork/ready"
_START_S = 120.0  # the engine gives up before, and says what the log says
_ASK_AGAIN_S = 0.02
_KEPT = "behind"
_log = logging.getLogger("statefork.web")


class Kept:
    """What a binding has behind the server, as a session that can be closed (see bound.Session).

    ``nonce`` names this very binding and no later one of the same environment: whatever is kept there is kept under it.
    """

    def __init__(self, bound: Bound, stack: BehindStack) -> None:
        self.nonce = secrets.token_hex(12)
        self._bound = bound
        self._stack = stack

    def is_open(self) -> bool:
        """Whether any connection is open behind."""
        return self._stack.connections(self.nonce) > 0

    def busy(self) -> str:
        """What holds a connection there."""
        return "" if self._bound.gate == "cut" else self._stack.busy(self.nonce)

    def close_now(self) -> None:
        """Close its connections; once the binding is cut off, for ever."""
        if self._bound.gate == "cut":
            self._stack.cut(self.nonce)
        else:
            self._stack.close(self.nonce)

    def interrupt(self) -> None:
        """As closing after a cut."""
        self._stack.cut(self.nonce)


class BehindStack(ABC):
    """A stack whose application runs in processes of its own."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self.site: Site
        self.directory: Path  # the description's
        self.run: Path
        self.processes: list[Tethered] = []
        self._lock = threading.Lock()
        self._forward: Forward

    # -- what each stack does its own way ---------------------------------------------------------------------

    @abstractmethod
    def start(self, setup: Setup) -> Path:
        """Start the processes; the path of the Unix socket that will answer."""

    @abstractmethod
    def begin(self, bound: Bound, nonce: str) -> Errand:
        """Before a request is handed on."""

    @abstractmethod
    def keep(self, bound: Bound, nonce: str) -> None:
        """A binding is met for the first time."""

    @abstractmethod
    def connections(self, nonce: str) -> int:
        """How many connections to databases it has."""

    @abstractmethod
    def busy(self, nonce: str) -> str:
        """What would break if its connections were closed; empty when nothing would."""

    @abstractmethod
    def close(self, nonce: str) -> None:
        """Close its connections. They may be opened again."""

    @abstractmethod
    def cut(self, nonce: str) -> None:
        """For ever: nothing of it reaches a store again, and what runs is ended."""

    @abstractmethod
    def drop(self, nonce: str) -> None:
        """Forget it: connections and slices of caches."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """What is kept for the bindings."""

    @abstractmethod
    def holders(self, first: str, second: str) -> list[str]:
        """What holds the text ``first + second`` in memory there."""

    # -- the port ---------------------------------------------------------------------------------------------

    def load(self, setup: Setup) -> Application:
        """Start the application's processes and wait until they answer. Raises MissingDependency, ValueError."""
        self.site, self.directory = read_site(setup)
        self.run = private_directory(Path(setup.run))
        socket = self.start(setup)
        for process in self.processes:
            process.watch(self._died)
        self._wait_until_it_answers(str(socket))
        self._forward = Forward(str(socket), self._begin)
        return self._forward

    def _died(self, status: int) -> None:
        """Without them this server is none: it ends too, and is started anew with them."""
        _log.error("a process behind the server ended with status %s", status)
        logging.shutdown()
        os._exit(1)

    def _wait_until_it_answers(self, socket: str) -> None:
        give_up = time.monotonic() + _START_S
        while True:
            try:
                connection = UnixConnection(socket, timeout=_START_S)
                with contextlib.closing(connection):
                    connection.request("GET", READY_PATH)
                    status = connection.getresponse().status
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_ASK_AGAIN_S)
            else:
                if status != 421:
                    raise ValueError(f"a request without a binding was answered with {status}, not refused with 421")
                return

    def check_stores(self, stores: Stores) -> None:
        """Each store that the description names is there, and the database is on a server."""
        for kind in self.site.stores:
            if kind not in stores:
                raise ValueError(f"the site needs a store {kind!r}, and the contract declares none")
        if "path" in stores.get("database", {}):
            raise ValueError("store 'database' is a file: this stack needs one of a server (adapter = \"postgres\")")

    def kept(self, bound: Bound) -> Kept:
        """What the binding has behind, from now on if it had nothing."""
        with self._lock:
            kept: Kept | None = bound.slots.get(_KEPT)
            if kept is None:
                kept = Kept(bound, self)
                self.keep(bound, kept.nonce)
                bound.slots[_KEPT] = kept
                bound.sessions.add(kept)
        return kept

    def _begin(self, bound: Bound) -> Errand:
        bound.pass_gate()
        kept = self.kept(bound)
        if bound.gate == "cut":  # since it was asked: whoever cut it may not have seen what was just made
            self.released(bound)
            raise BindingEnded(f"{bound.identity} was ended")
        return self.begin(bound, kept.nonce)

    def ready(self, bound: Bound) -> None:
        """Ask the hooks behind to reach every store; raises RuntimeError with what they say."""
        told: list[str] = []
        asked = {"REQUEST_METHOD": "GET", "PATH_INFO": READY_PATH, "HTTP_HOST": "localhost"}
        environ = {**asked, "wsgi.input": io.BytesIO()}
        answer = self._forward(environ, lambda status, headers, *_: told.append(status))
        try:
            said = b"".join(answer).decode(errors="replace")
        finally:
            answer.close()
        if not told[0].startswith("204"):
            raise RuntimeError(f"{told[0]}: {said[:500]}")

    def released(self, bound: Bound) -> None:
        """Forget what the binding has behind."""
        kept: Kept | None = bound.slots.pop(_KEPT, None)
        if kept is not None:
            self.drop(kept.nonce)

    def signed(self, payload: dict[str, Any]) -> str:
        """The header's value: what it says, and the proof that this process says it."""
        text = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode()
        return f"{text}.{hmac.digest(self.key, text.encode(), hashlib.sha256).hex()}"

    def stop(self) -> None:
        """End the processes, and remove what they ran with."""
        for process in reversed(self.processes):
            process.stop()
        if hasattr(self, "run"):
            shutil.rmtree(self.run, ignore_errors=True)


def private_directory(path: Path) -> Path:
    """An empty directory that nobody else may enter. Raises OSError when it is somebody else's."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, parents=True)
    return path
