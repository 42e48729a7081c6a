"""Inside the server process: the edge of the application. One environment per request, proved by its ticket.

The binding is held until the response's iterator is closed, so a streaming body and everything that Django does after
a response still belong to it. Each request runs in a context of its own: nothing that it sets there reaches the next.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from statefork.adapters.resources.web import chance
from statefork.adapters.resources.web.bound import CURRENT, BindingEnded, Bound, Registry, Work, watch_stores
from statefork.engine.tickets import CONDITIONS_HEADER, LOST_HEADER, TICKET_HEADER, TicketRefused, verify

READY_PATH = "/.statefork/ready"
TICKET_KEY = "HTTP_" + TICKET_HEADER.upper().replace("-", "_")
CONDITIONS_KEY = "HTTP_" + CONDITIONS_HEADER.upper().replace("-", "_")

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

_log = logging.getLogger("statefork.web")


class Refusal(Exception):
    """A request that does not reach the application."""

    def __init__(self, status: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def answer(self, start_response: StartResponse) -> list[bytes]:
        """The response: a JSON object with ``code`` and ``message``."""
        body = json.dumps({"code": self.code, "message": str(self)}).encode()
        start_response(
            self.status,
            [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Statefork-Code", self.code)],
        )
        return [body]


class Ready(Protocol):
    """Reaches every store of the binding once."""

    def __call__(self, bound: Bound) -> None:
        """Raises what reaching a store raises."""
        ...


def find_binding(registry: Registry, key: bytes, environ: dict[str, Any]) -> Bound:
    """The binding that the request's ticket opens. Takes the ticket out of ``environ``. Raises Refusal."""
    ticket = environ.pop(TICKET_KEY, "")
    try:
        claimed = verify(key, ticket)
    except TicketRefused as refused:
        raise Refusal("421 Misdirected Request", refused.code, refused.message) from None
    bound = registry.find(claimed.env, claimed.epoch)
    if bound is not None and bound.identity == claimed and bound.gate != "cut":
        if bound.gate == "held":
            raise Refusal("503 Service Unavailable", "environment_frozen", f"{claimed} is quiesced")
        return bound
    present = registry.of(claimed.env)
    if not present:
        raise Refusal("421 Misdirected Request", "unknown_environment", f"{claimed.env} is not bound to this server")
    held = ", ".join(str(other.identity) for other in present)
    raise Refusal("409 Conflict", "stale_generation", f"the ticket is of {claimed}, this server holds {held}")


def _is_event_stream(headers: list[tuple[str, str]]) -> bool:
    return any(name.lower() == "content-type" and "text/event-stream" in value.lower() for name, value in headers)


class Edge:
    """The WSGI application that the server runs: the project's own, behind the ticket."""

    def __init__(
        self,
        application: Application,
        registry: Registry,
        key: bytes,
        ready: Ready,
        *,
        per_env: int,
        determinism: str = "off",
    ) -> None:
        self._application = application
        self._registry = registry
        self._key = key
        self._ready = ready
        self._requests_per_environment_max = per_env
        self._determinism = determinism

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            bound = find_binding(self._registry, self._key, environ)
            if bound.requests() >= self._requests_per_environment_max:
                limit = self._requests_per_environment_max
                raise Refusal("503 Service Unavailable", "limit_exceeded", f"requests_per_environment_max is {limit}")
            try:
                work = bound.begin("request", f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}")
            except BindingEnded as ended:
                raise Refusal("409 Conflict", "stale_generation", str(ended)) from None
        except Refusal as refusal:
            return refusal.answer(start_response)
        environ.pop("wsgi.file_wrapper", None)  # the server would send the file without us and never close it here
        context = contextvars.Context()
        context.run(CURRENT.set, bound)
        told = environ.pop(CONDITIONS_KEY, "")
        if told and self._determinism != "off":
            request = f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}?{environ.get('QUERY_STRING', '')}"
            context.run(chance.enter, told, request, bound.asked, stands=self._determinism == "strict")
        try:
            if environ.get("PATH_INFO") == READY_PATH:
                return _Held(self._probe(bound, context, start_response), bound, work, context)
            return _Held(self._run(environ, start_response, bound, work, context), bound, work, context)
        except BaseException:
            bound.end(work)
            raise

    def _run(
        self, environ: dict[str, Any], start_response: StartResponse, bound: Bound, work: Work, context: Any
    ) -> Iterable[bytes]:
        lost = context.run(watch_stores)
        told = False

        def started(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            nonlocal told
            if lost:
                told = True
                start_response("502 Bad Gateway", [(LOST_HEADER, _header(lost[0])), ("Content-Length", "0")])
                return _unheard
            if _is_event_stream(headers):
                bound.rest(work)
            return start_response(status, headers, *exc_info)

        body: Iterable[bytes] = context.run(self._application, environ, started)
        return _Unsent(body) if told else body

    def _probe(self, bound: Bound, context: Any, start_response: StartResponse) -> Iterable[bytes]:
        try:
            context.run(self._ready, bound)
        except Exception as error:  # noqa: BLE001 - whatever a store raises is the answer to the probe
            _log.warning("%s is not ready: %r", bound.identity, error)
            return Refusal("503 Service Unavailable", "not_ready", f"{type(error).__name__}: {error}").answer(
                start_response
            )
        start_response("204 No Content", [])
        return []


def _header(text: str) -> str:
    return text.encode("ascii", "replace").decode().translate(dict.fromkeys(range(32), " "))[:500]


def _unheard(data: bytes) -> None:
    """The ``write`` of a response that is not sent."""


class _Unsent:
    """The body of a response that is not sent: it is closed, as what the application does then is part of it."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


class _Held:
    """A response body that keeps its binding until it is closed."""

    def __init__(self, body: Iterable[bytes], bound: Bound, work: Work, context: contextvars.Context) -> None:
        self._body = body
        self._bound = bound
        self._work = work
        self._context = context

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._context.run(iter, self._body)
        while True:
            if self._bound.gate == "cut":
                raise BindingEnded(f"{self._bound.identity} was ended while {self._work} was being sent")
            try:
                chunk = self._context.run(next, chunks)
            except StopIteration:
                return
            yield chunk

    def close(self) -> None:
        """Close the application's iterator inside the binding, then count the request out."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                self._context.run(close)
        finally:
            self._bound.end(self._work)
