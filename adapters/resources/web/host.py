"""The resident application server: ``python -m statefork.adapters.resources.web.host``.

Started by the adapter, never by hand. Its standard input and output are the control channel: one JSON object a line,
requests with an ``id`` answered by replies with the same ``id``; lines with ``event`` are told unasked. Nothing else
can reach the channel, since it is inherited. When it closes, the engine is gone, and the process ends at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from statefork.adapters.resources.web import chance, inherit
from statefork.adapters.resources.web.bound import Bound, Registry, StoreBusy, Stores
from statefork.adapters.resources.web.edge import Edge
from statefork.adapters.resources.web.stack import Setup, Stack, make_stack
from statefork.engine.errors import MissingDependency
from statefork.journal.values import Identity

_HOLD_S = 1.0  # how long what an event stream has begun in a store may take to end
_log = logging.getLogger("statefork.web")


class Control:
    """The server's end of the control channel."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = threading.Lock()
        self.registry = Registry(self._idle)
        self.stack: Stack
        self._loaded = False
        self._listening: threading.Thread | None = None
        self._server: Any = None
        self._configured: dict[str, Any] = {}
        self._cut: dict[tuple[str, int], list[Bound]] = {}  # ended while something ran for them

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._writer.write(json.dumps(message) + "\n")
            self._writer.flush()

    def _idle(self, bound: Bound) -> None:
        if bound.watched:
            bound.watched = False
            with contextlib.suppress(OSError):  # the engine is gone, and this process about to be
                self._tell({"event": "idle", "env": bound.identity.env, "epoch": bound.identity.epoch})

    def run(self) -> None:
        """Answer until the channel closes."""
        for line in self._reader:
            request = json.loads(line)
            if request["op"] == "quiesce":  # may wait for a transaction to end, and others must not wait with it
                threading.Thread(target=self._answer, args=(request,), daemon=True).start()
            else:
                self._answer(request)

    def stop(self) -> None:
        """End what the stack has started outside of this process."""
        if self._loaded:
            self.stack.stop()

    def _answer(self, request: dict[str, Any]) -> None:
        handler: Callable[..., Any] = getattr(self, f"do_{request.pop('op')}")
        number = request.pop("id")
        try:
            self._tell({"id": number, "ok": handler(**request)})
        except Exception as error:  # noqa: BLE001 - told to the engine, which decides what it means
            _log.warning("control request failed", exc_info=not isinstance(error, StoreBusy))
            if isinstance(error, MissingDependency):
                self._tell({"id": number, "error": error.code, "message": error.message, "hint": error.hint})
                return
            code = {StoreBusy: "resource_busy", ValueError: "refused"}.get(type(error), "failed")
            self._tell({"id": number, "error": code, "message": f"{type(error).__name__}: {error}"})

    def _find(self, env: str, epoch: int) -> Bound | None:
        return self.registry.find(env, epoch)

    def do_configure(self, *, stack: str, setup: dict[str, Any], key: str, fd: int, determinism: str) -> Any:
        """Load the application. Nothing is served before ``serve``."""
        if determinism != "off":
            chance.install()
        self.stack = make_stack(stack)
        self._loaded = True
        given = msgspec.convert(setup, Setup)
        application = self.stack.load(given)
        inherit.install()
        edge = Edge(
            application,
            self.registry,
            bytes.fromhex(key),
            self.stack.ready,
            per_env=given.per_env,
            determinism=determinism,
        )
        self._configured = {"application": edge, "fd": fd, "threads": given.threads}
        return {"pid": os.getpid()}

    def do_serve(self) -> Any:
        """Begin to accept requests on the inherited socket."""
        from waitress.server import create_server

        sock = socket.socket(fileno=self._configured["fd"])
        self._server = create_server(
            self._configured["application"],
            sockets=[sock],
            threads=self._configured["threads"],
            connection_limit=1000,
            channel_timeout=600,
            channel_request_lookahead=1,  # notices a client that has gone while its response is being made
            outbuf_high_watermark=1 << 20,
            asyncore_use_poll=True,
            ident=None,
        )
        self._listening = threading.Thread(target=self._server.run, name="server", daemon=True)
        self._listening.start()
        return {"port": sock.getsockname()[1]}

    def do_bind(self, *, env: str, epoch: int, activation: int, stores: Stores) -> Any:
        """Bind, idempotently; other stores or another activation replace the binding."""
        self.stack.check_stores(stores)
        before = self._find(env, epoch)
        bound = self.registry.bind(Identity(env=env, epoch=epoch, activation=activation), stores)
        if before is not None and before is not bound:
            self.stack.released(before)
        return {}

    def do_release(self, *, env: str, epoch: int) -> Any:
        """Evict: cut off what still runs, close connections and cache slices in all threads. Names what lives on."""
        bound = self.registry.release(env, epoch)
        if bound is not None:
            self.stack.released(bound)
        ended = [*self._cut.pop((env, epoch), ()), *([bound] if bound is not None else [])]
        return {"living": _names(ended)}

    def do_quiesce(self, *, env: str, epoch: int) -> Any:
        """Close every connection and let none be opened until ``thaw``."""
        bound = self._find(env, epoch)
        if bound is not None:
            bound.hold(_HOLD_S)
        return {}

    def do_thaw(self, *, env: str, epoch: int) -> Any:
        """Undo ``quiesce``."""
        bound = self._find(env, epoch)
        if bound is not None:
            bound.release_hold()
        return {}

    def do_pending(self, *, env: str, epoch: int) -> Any:
        """What must end before the environment is quiet."""
        bound = self._find(env, epoch)
        if bound is None:
            return {"pending": []}
        bound.watched = True  # before looking: what ends in between is told
        return {"pending": bound.pending()}

    def do_terminate(self, *, env: str, epoch: int) -> Any:
        """Cut what runs now off from the stores for ever; new requests are served. Names what still runs."""
        old = self.registry.cut_off(env, epoch)
        if old is not None:
            self._cut.setdefault((env, epoch), []).append(old)
            self.stack.released(old)
        return self.do_living(env=env, epoch=epoch)

    def do_living(self, *, env: str, epoch: int) -> Any:
        """What was cut off and has not ended."""
        cut = self._cut.pop((env, epoch), [])
        for bound in cut:
            bound.watched = True
        living = [bound for bound in cut if bound.at_work()]
        if living:
            self._cut[env, epoch] = living
        return {"living": _names(living)}

    def do_holders(self, *, first: str, second: str) -> Any:
        """Where behind this server anything still holds the text ``first + second``, which is nowhere said whole."""
        return {"holders": self.stack.holders(first, second)}

    def do_stats(self) -> Any:
        """What the server holds now."""
        return {
            **self.stack.stats(),
            "pid": os.getpid(),
            "threads": threading.active_count(),
            "bindings": [
                {"identity": str(b.identity), "gate": b.gate, "connections": b.open_sessions(), "work": b.at_work()}
                for b in self.registry.all()
            ],
        }


def _names(bounds: list[Bound]) -> list[str]:
    return [name for bound in bounds for name in bound.at_work()]


def main() -> None:
    """Take the control channel away from standard output, so that the application can't write into it, and serve."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reader = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    control = Control(reader, channel)
    try:
        control.run()
    finally:
        control.stop()
    os._exit(0)  # threads of the application may run on; the engine is gone, and their stores with it


if __name__ == "__main__":
    main()
