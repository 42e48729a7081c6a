"""A stack that is spoken to: one program of ours, which loads the application between hooks, tells and is told."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.behind.base import BehindStack
from statefork.adapters.resources.web.behind.channel import Channel
from statefork.adapters.resources.web.behind.process import Tethered
from statefork.adapters.resources.web.bound import Bound


class SpokenErrand:
    """A request that the program has: ended when it says so."""

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


class SpokenStack(BehindStack):
    """An application in one process, which learns of bindings and tells of requests by lines on its pipes."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._running: dict[int, threading.Event] = {}
        self._channel: Channel

    def speak_to(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program in the application's directory."""
        spoken = Tethered(command, environment=environment, directory=Path(self.site.root), spoken=True)
        self.processes.append(spoken)
        reader, writer = spoken.process.stdout, spoken.process.stdin
        assert reader is not None
        assert writer is not None
        self._channel = Channel(reader, writer, self._told)

    def _told(self, message: dict[str, Any]) -> None:
        ended = self._running.get(message["work"])
        if ended is not None:
            ended.set()

    def begin(self, bound: Bound, nonce: str) -> SpokenErrand:
        """Number the request: by its number the program tells its end."""
        number = next(self._numbers)
        ended = self._running[number] = threading.Event()
        return SpokenErrand(self.signed({"nonce": nonce, "work": number, **self.given()}), number, ended, self._running)

    def given(self) -> dict[str, Any]:
        """What each request is given besides."""
        return {}

    def keep(self, bound: Bound, nonce: str) -> None:
        """The program learns of the binding's stores."""
        identity = bound.identity
        stores = {kind: dict(address) for kind, address in bound.stores.items()}
        self._channel.ask("bind", nonce=nonce, env=identity.env, epoch=identity.epoch, stores=stores)

    def connections(self, nonce: str) -> int:
        """How many the binding has to its database."""
        return int(self._channel.ask("connections", nonce=nonce))

    def busy(self, nonce: str) -> str:
        """Which of them somebody uses."""
        return str(self._channel.ask("busy", nonce=nonce))

    def close(self, nonce: str) -> None:
        """End the connections."""
        self._channel.ask("close", nonce=nonce)

    def cut(self, nonce: str) -> None:
        """End what works for the binding, whatever it does; later access is refused."""
        self._channel.ask("cut", nonce=nonce)

    def drop(self, nonce: str) -> None:
        """Connections, slices of caches, and everything else that hangs on the binding."""
        self._channel.ask("drop", nonce=nonce)

    def stats(self) -> dict[str, Any]:
        """Bindings, connections, and what is at work for them."""
        return {"behind": self._channel.ask("stats"), "behind_pids": [process.pid for process in self.processes]}

    def holders(self, first: str, second: str) -> list[str]:
        """Strings of the program's heap that hold a marker, which comes in two parts."""
        return [str(holder) for holder in self._channel.ask("holders", first=first, second=second)]
