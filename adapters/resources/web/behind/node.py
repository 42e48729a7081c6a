"""Node as a stack, an extra: one process, with our hooks loaded before the application (``node/``)."""

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
from statefork.adapters.resources.web.behind.rack import RackErrand
from statefork.adapters.resources.web.behind.site import find_program
from statefork.adapters.resources.web.bound import Bound
from statefork.adapters.resources.web.stack import Setup

HOOKS = Path(__file__).with_name("node")


class NodeStack(BehindStack):
    """An application of Node, whose database it reaches by the package ``pg``, behind the server."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._running: dict[int, threading.Event] = {}
        self._channel: Channel

    def start(self, setup: Setup) -> Path:
        """Start node by our own program, which loads the application between the hooks."""
        node = find_program("node", "nodejs", hint=self.site.install)
        socket, temporary = self.run / "node.sock", self.run / "tmp"
        temporary.mkdir()
        recorded = self.directory / self.site.recorded
        told = {
            "socket": str(socket),
            "key": self.key.hex(),
            "application": str(self.directory / self.site.application),
            "recorded": str(recorded) if self.site.recorded else "",
            "connections_max": 4 * setup.threads,
            "ready": READY_PATH,
        }
        environment = {
            **os.environ,
            "NODE_ENV": "production",
            "NODE_PATH": str(Path(self.site.root) / "node_modules"),  # for files that lie elsewhere
            **self.site.environment,
            "TMPDIR": str(temporary),  # what an application leaves there ends with it
            "STATEFORK_BEHIND": json.dumps(told),
            "STATEFORK_SITE": str(self.directory),
            "STATEFORK_HOOKS": str(HOOKS),
        }
        command = [node, "--expose-gc", str(HOOKS / "host.js")]
        process = Tethered(command, environment=environment, directory=Path(self.site.root), spoken=True)
        self.processes.append(process)
        reader, writer = process.process.stdout, process.process.stdin
        assert reader is not None
        assert writer is not None
        self._channel = Channel(reader, writer, self._told)
        return socket

    def _told(self, message: dict[str, Any]) -> None:
        ended = self._running.get(message["work"])
        if ended is not None:
            ended.set()

    def begin(self, bound: Bound, nonce: str) -> RackErrand:
        """Number the request: by its number node tells its end."""
        number = next(self._numbers)
        ended = self._running[number] = threading.Event()
        return RackErrand(self.signed({"nonce": nonce, "work": number}), number, ended, self._running)

    def keep(self, bound: Bound, nonce: str) -> None:
        """Node learns of the binding's stores."""
        identity = bound.identity
        stores = {kind: dict(address) for kind, address in bound.stores.items()}
        self._channel.ask("bind", nonce=nonce, env=identity.env, epoch=identity.epoch, stores=stores)

    def connections(self, nonce: str) -> int:
        """Of the binding's clients."""
        return int(self._channel.ask("connections", nonce=nonce))

    def busy(self, nonce: str) -> str:
        """Clients at a query or in a transaction."""
        return str(self._channel.ask("busy", nonce=nonce))

    def close(self, nonce: str) -> None:
        """End its clients."""
        self._channel.ask("close", nonce=nonce)

    def cut(self, nonce: str) -> None:
        """Shut its clients' sockets and its answers, clear its timers; later access is refused."""
        self._channel.ask("cut", nonce=nonce)

    def drop(self, nonce: str) -> None:
        """Clients, and everything that hangs on the binding."""
        self._channel.ask("drop", nonce=nonce)

    def stats(self) -> dict[str, Any]:
        """Bindings, connections and requests at work."""
        return {"behind": self._channel.ask("stats"), "behind_pids": [process.pid for process in self.processes]}

    def holders(self, first: str, second: str) -> list[str]:
        """Strings of Node's heap."""
        return [str(holder) for holder in self._channel.ask("holders", first=first, second=second)]
