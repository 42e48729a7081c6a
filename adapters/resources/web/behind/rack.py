"""Rack as a stack: one puma, with our Ruby hooks loaded around the application (``ruby/``)."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.behind.base import READY_PATH, BehindStack
from statefork.adapters.resources.web.behind.channel import Channel
from statefork.adapters.resources.web.behind.process import Tethered
from statefork.adapters.resources.web.behind.site import find_program
from statefork.adapters.resources.web.bound import Bound
from statefork.adapters.resources.web.chance import drawn_seed
from statefork.adapters.resources.web.stack import Setup

HOOKS = Path(__file__).with_name("ruby")
_SPARE_THREADS = 2  # of puma's: who waits for a thread is not seen by the drain
_JOBS = 4  # connections of a binding beside those of its requests


class RackErrand:
    """A request that puma has: ended when it says so."""

    def __init__(self, header: str, number: int, ended: threading.Event, forget: dict[int, threading.Event]) -> None:
        self.header = header
        self._number = number
        self._ended = ended
        self._running = forget

    def wait(self, within_s: float | None) -> bool:
        """Wait for the word that the request, and all jobs and threads that it has started, are over."""
        return self._ended.wait(within_s)

    def close(self) -> None:
        """Forget it."""
        self._running.pop(self._number, None)


class RackStack(BehindStack):
    """A Rack application, Rails in particular, behind the server."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._running: dict[int, threading.Event] = {}
        self._channel: Channel

    def start(self, setup: Setup) -> Path:
        """Start puma by our own program, which loads the application between the hooks."""
        ruby = find_program("ruby", hint=self.site.install)
        socket = self.run / "puma.sock"
        told = {
            "socket": str(socket),
            "key": self.key.hex(),
            "application": str(self.directory / self.site.application),
            "threads": setup.threads + _SPARE_THREADS,
            "connections_per_binding_max": setup.per_env + _JOBS,
            "connections_max": 4 * setup.threads,
            "ready": READY_PATH,
        }
        ours = {
            "STATEFORK_BEHIND": json.dumps(told),
            "STATEFORK_SITE": str(self.directory),
            "STATEFORK_HOOKS": str(HOOKS),
        }
        environment = {**os.environ, **self.site.environment, **ours}
        environment.setdefault("MALLOC_ARENA_MAX", "2")  # else each thread's arena keeps its peak
        command = [ruby, str(HOOKS / "host.rb")]
        puma = Tethered(command, environment=environment, directory=Path(self.site.root), spoken=True)
        self.processes.append(puma)
        reader, writer = puma.process.stdout, puma.process.stdin
        assert reader is not None
        assert writer is not None
        self._channel = Channel(reader, writer, self._told)
        return socket

    def _told(self, message: dict[str, Any]) -> None:
        ended = self._running.get(message["work"])
        if ended is not None:
            ended.set()

    def begin(self, bound: Bound, nonce: str) -> RackErrand:
        """Number the request: by its number puma tells its end."""
        number = next(self._numbers)
        ended = self._running[number] = threading.Event()
        header = self.signed({"nonce": nonce, "work": number, "seed": drawn_seed()})
        return RackErrand(header, number, ended, self._running)

    def keep(self, bound: Bound, nonce: str) -> None:
        """Puma learns of the binding's stores."""
        identity = bound.identity
        stores = {kind: dict(address) for kind, address in bound.stores.items()}
        self._channel.ask("bind", nonce=nonce, env=identity.env, epoch=identity.epoch, stores=stores)

    def connections(self, nonce: str) -> int:
        """Of the binding's pool."""
        return int(self._channel.ask("connections", nonce=nonce))

    def busy(self, nonce: str) -> str:
        """Connections that a thread has taken."""
        return str(self._channel.ask("busy", nonce=nonce))

    def close(self, nonce: str) -> None:
        """Disconnect the pool."""
        self._channel.ask("close", nonce=nonce)

    def cut(self, nonce: str) -> None:
        """Cancel its statements, shut its sockets, and raise in its threads."""
        self._channel.ask("cut", nonce=nonce)

    def drop(self, nonce: str) -> None:
        """The pool, the slices of caches, everything that hangs on the binding."""
        self._channel.ask("drop", nonce=nonce)

    def stats(self) -> dict[str, Any]:
        """Bindings, connections, and jobs queued and run."""
        return {"behind": self._channel.ask("stats"), "behind_pids": [process.pid for process in self.processes]}

    def holders(self, first: str, second: str) -> list[str]:
        """Strings of the Ruby heap."""
        return [str(holder) for holder in self._channel.ask("holders", first=first, second=second)]
