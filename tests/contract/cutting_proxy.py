"""A TCP proxy that cuts connections in the very moment that a test is about."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Literal

DEADLINE_S = 30.0
How = Literal["before", "after", "late"]


class Trap:
    """Closes upon the first bytes from a client that hold ``marker``.

    ``before``: they never reach the server. ``after``: they do, and the server's answer is dropped when it is there.
    ``late``: they are held back, and reach the server when ``deliver`` is called, long after the client has gone.
    """

    def __init__(self, marker: bytes, how: How, *, then_refuse: bool = False) -> None:
        self.marker = marker
        self.how = how
        self.then_refuse = then_refuse
        self.sprung = threading.Event()
        self._held: tuple[socket.socket, bytes] | None = None

    def catch(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        """Do it, and end both ends that are to end."""
        if self.how == "after":
            server.sendall(data)
            server.recv(1)
        if self.how == "late":
            self._held = (server.dup(), data)
        client.close()
        server.close()

    def deliver(self) -> bytes:
        """Let the bytes that were held back reach the server; what it answers."""
        assert self._held is not None
        server, data = self._held
        self._held = None
        with server, contextlib.suppress(ConnectionError):  # or the server has given it up
            server.settimeout(DEADLINE_S)
            server.sendall(data)
            return server.recv(1 << 16)
        return b""


class CuttingProxy:
    """Stands before a port of 127.0.0.1 until its context is left."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.refusing = False
        self.trap: Trap | None = None
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refusing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join()

    def cut(self) -> None:
        """End every connection."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def set(self, marker: bytes, how: How, *, then_refuse: bool = False) -> Trap:
        """Cut the next connection through which the marker comes; ``then_refuse``: and every other, old and new."""
        self.trap = Trap(marker, how, then_refuse=then_refuse)
        return self.trap

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            if self.refusing:
                client.close()
                continue
            threads.append(threading.Thread(target=self._serve, args=(client,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        ends = {client: server, server: client}
        self._open |= ends.keys()
        try:
            with client, server, selectors.DefaultSelector() as selector:
                if self.refusing:  # since it was accepted: who cut the others may not have seen this one
                    return
                for end in ends:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(end, selectors.EVENT_READ)
                while self._pass_on(selector, ends, client):
                    pass
        except OSError:
            pass
        finally:
            self._open -= ends.keys()

    def _pass_on(
        self, selector: selectors.BaseSelector, ends: dict[socket.socket, socket.socket], client: socket.socket
    ) -> bool:
        for key, _ in selector.select():
            end = key.fileobj
            assert isinstance(end, socket.socket)
            data = end.recv(1 << 20)
            if not data:
                return False
            trap = self.trap
            if trap is not None and end is client and trap.marker in data:
                self.trap = None
                self.refusing = trap.then_refuse
                trap.catch(client, ends[client], data)
                if trap.then_refuse:
                    self.cut()
                trap.sprung.set()
                return False
            ends[end].sendall(data)
        return True
