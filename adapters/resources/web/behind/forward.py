"""Handing a request on to the server behind, over its Unix socket, and its answer back as it comes.

A request counts as long as anything that it caused is at work there: also what the application does after its answer.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import quote

from statefork.adapters.resources.web.bound import Bound, current, store_lost
from statefork.engine.tickets import LOST_HEADER

BOUND_HEADER = "Statefork-Bound"
"""Tells the server behind which binding a request belongs to; nobody else knows how to sign it."""

_CHUNK_BYTES = 1 << 16
_AS_IT_IS = "".join(chr(code) for code in range(0x21, 0x7F))  # of a request's target; the rest is quoted
_SOON_S = 0.002  # what is over by then is not worth a thread
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection", "expect"}
)


class Errand(Protocol):
    """One request on its way through the server behind."""

    header: str

    def wait(self, within_s: float | None) -> bool:
        """Whether everything that the request caused has ended; waits for it, for ever with None."""
        ...

    def close(self) -> None:
        """It has ended: nothing need be kept of it."""
        ...


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Forward:
    """The WSGI application that hands everything on."""

    def __init__(self, path: str, begin: Callable[[Bound], Errand]) -> None:
        self._path = path
        self._begin = begin

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        what = f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"
        bound = current()
        errand = self._begin(bound)
        connection = UnixConnection(self._path)
        try:
            _send(connection, environ, errand.header)
            response = connection.getresponse()
        except ValueError:  # a header that HTTP has no words for
            start_response("400 Bad Request", [("Content-Length", "0")])
            return Answer(connection, None, bound, errand, what)
        except (OSError, http.client.HTTPException) as error:
            if bound.gate != "cut":  # else the connection was closed by us
                store_lost(f"the server behind did not answer {what}: {error!r}")
            start_response("502 Bad Gateway", [("Content-Length", "0")])
            return Answer(connection, None, bound, errand, what)
        lost = response.getheader(LOST_HEADER)
        if lost is not None and bound.gate != "cut":
            store_lost(lost)
        start_response(f"{response.status} {response.reason or 'Unknown'}", _headers(response))
        return Answer(connection, response, bound, errand, what)


def _send(connection: http.client.HTTPConnection, environ: dict[str, Any], bound: str) -> None:
    target = quote(environ.get("REQUEST_URI") or environ["PATH_INFO"], safe=_AS_IT_IS, encoding="latin-1")
    connection.putrequest(environ["REQUEST_METHOD"], target, skip_host=True, skip_accept_encoding=True)
    for key, value in environ.items():
        name = key.removeprefix("HTTP_").replace("_", "-").title()
        if key.startswith("HTTP_") and name.lower() not in _HOP_BY_HOP and name != BOUND_HEADER:
            connection.putheader(name, value.encode("latin-1"))
    connection.putheader(BOUND_HEADER, bound)
    connection.putheader("Connection", "close")
    left = int(environ.get("CONTENT_LENGTH") or 0)
    if environ.get("CONTENT_TYPE"):
        connection.putheader("Content-Type", environ["CONTENT_TYPE"])
    if left or environ.get("CONTENT_LENGTH"):
        connection.putheader("Content-Length", str(left))
    connection.endheaders()
    while left and (data := environ["wsgi.input"].read(min(left, _CHUNK_BYTES))):
        connection.send(data)
        left -= len(data)


def _headers(response: http.client.HTTPResponse) -> list[tuple[str, str]]:
    """Those that are the application's, which none is that bears our name."""
    return [
        (name, value)
        for name, value in response.getheaders()
        if name.lower() not in _HOP_BY_HOP and not name.lower().startswith("statefork-")
    ]


class Answer:
    """The body of an answer. Closing it leaves a thread of the binding's waiting for what still runs behind."""

    def __init__(
        self,
        connection: UnixConnection,
        response: http.client.HTTPResponse | None,
        bound: Bound,
        errand: Errand,
        what: str,
    ) -> None:
        self._connection = connection
        self._response = response
        self._bound = bound
        self._errand = errand
        self._what = what

    def __iter__(self) -> Iterator[bytes]:
        while self._response is not None and (data := self._response.read1(_CHUNK_BYTES)):
            yield data

    def close(self) -> None:
        """The connection ends; the request counts on as long as it must."""
        if self._response is not None:
            self._response.close()
        self._connection.close()
        if self._errand.wait(_SOON_S):
            self._errand.close()
        elif self._bound.gate == "cut":
            self._wait_out()
        else:
            # counted as the binding's, for it is started in its context (see inherit)
            threading.Thread(target=self._wait_out, name=f"what {self._what} left to do", daemon=True).start()

    def _wait_out(self) -> None:
        self._errand.wait(None)
        self._errand.close()
