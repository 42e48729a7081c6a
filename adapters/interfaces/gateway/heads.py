"""Rules for request and response heads: what passes, what is taken out, what is refused. Pure functions.

Whatever a client sends is parsed once, here and by h11, and written anew: no byte of a head is passed through. Framing
headers are ours. So upstream can't read a request differently from how it was admitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h11
import msgspec

from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Headers, Refused
from statefork.engine.ports import Route
from statefork.engine.tickets import RESERVED_PREFIX

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = frozenset({b"host", b"content-length", b"expect"})  # written by us where they are needed
_FORWARDING = (b"forwarded", b"x-forwarded-", b"x-real-ip")  # claims about the way here, which only we know
_AUTHORITY = re.compile(rb"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::([0-9]{1,5}))?", re.ASCII)
_ABSOLUTE = re.compile(rb"http://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_LOCATION_HEADERS = frozenset({b"location", b"content-location"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def canonical(authority: bytes) -> str:
    """``host`` or ``host:port``, lower case, without the default port 80. Raises Refused when it is neither."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None or int(match[2] or b"80") > 65535:
        raise Refused(400, "bad_request", "the authority is not host or host:port")
    host = match[1].decode().lower()
    port = int(match[2] or b"80")
    return host if port == 80 else f"{host}:{port}"


def split_target(target: bytes) -> tuple[str | None, bytes]:
    """(authority, path) of a request target in absolute or origin form; no authority in origin form."""
    if target.startswith(b"/"):
        path, authority = target, None
    else:
        match = _ABSOLUTE.fullmatch(target)
        if match is None:
            raise Refused(400, "bad_request", "the request target is neither a path nor an http:// URL")
        authority = canonical(match[1])
        path = match[2] if match[2].startswith(b"/") else b"/" + match[2]
    if b"#" in path:
        raise Refused(400, "bad_request", "the request target has a fragment")
    return authority, path


def check_framing(request: h11.Request, limits: Limits) -> int | None:
    """The declared length of the body; None = chunked. Raises Refused for what two servers could read differently."""
    if len(request.headers) > limits.headers_max:
        raise Refused(431, "limit_exceeded", f"headers_max is {limits.headers_max}", close=True)
    lengths = [value for name, value in request.headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if chunked and (lengths or request.http_version < b"1.1"):
        raise Refused(400, "bad_request", "Content-Length and Transfer-Encoding contradict each other", close=True)
    length = int(lengths[0]) if lengths else 0
    if length > limits.body_bytes_max:
        raise Refused(413, "limit_exceeded", f"body_bytes_max is {limits.body_bytes_max}", close=True)
    return None if chunked else length


def listed(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    """The lower-case items of a comma-separated header, over all its lines."""
    return {item.strip().lower() for key, value in headers if key == name for item in value.split(b",")} - {b""}


def is_reserved(name: bytes) -> bool:
    """Whether a header could be taken for one of ours, in any spelling that a server may fold together."""
    return name.lower().replace(b"_", b"-").startswith(RESERVED_PREFIX.encode())


def _passes(name: bytes, nominated: set[bytes]) -> bool:
    return not (
        name in _HOP_BY_HOP
        or name in _OURS
        or name in nominated
        or b"_" in name  # a WSGI or CGI server can't tell it from the same name with a dash
        or is_reserved(name)
        or name.startswith(_FORWARDING)
    )


def request_headers(request: h11.Request, length: int | None, host: str, ours: Iterable[tuple[str, str]]) -> Headers:
    """The headers that go upstream, with our Host, framing and what only the gateway may say."""
    nominated = listed(request.headers, b"connection")
    kept = [(name, value) for name, value in request.headers if _passes(name, nominated)]
    headers = [(b"host", host.encode()), *kept]
    if length is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif length > 0 or request.method not in (b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"DELETE", b"CONNECT"):
        headers.append((b"content-length", str(length).encode()))
    headers += [(name.encode(), value.encode()) for name, value in ours]
    return headers


def response_headers(received: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that go back to the client: all but those of the upstream connection."""
    headers = list(received)
    drop = _HOP_BY_HOP | (listed(headers, b"connection") - {b"content-length"})
    if any(name == b"transfer-encoding" for name, _ in headers):
        drop |= {b"content-length"}  # it was ignored in reading, so it must not be told
    return [(name, value) for name, value in headers if name not in drop]


def is_websocket(request: h11.Request) -> bool:
    """Whether the request asks to become a WebSocket. Only a GET may: all others are requests like any other."""
    asked = listed(request.headers, b"upgrade") if request.method == b"GET" else set()
    return b"websocket" in asked and b"upgrade" in listed(request.headers, b"connection")


def is_event_stream(response: h11.Response) -> bool:
    """Whether the body is a stream of server-sent events."""
    return any(
        name == b"content-type" and value.split(b";")[0].strip().lower() == b"text/event-stream"
        for name, value in response.headers
    )


class SiteNames(msgspec.Struct, frozen=True, kw_only=True):
    """The two names of a site behind a private base URL: what its client uses, and what the application knows."""

    base_url: str  # http://127.A.B.C:PORT
    host: str  # shop.example

    def inward(self, headers: Headers) -> Headers:
        """Origin and Referer as a client of the canonical host would send them."""
        base, canonical_url = self.base_url.encode(), b"http://" + self.host.encode()
        return [
            (name, _swap(value, base, canonical_url) if name in (b"origin", b"referer") else value)
            for name, value in headers
        ]

    def outward(self, headers: Headers) -> Headers:
        """Locations on the canonical host as locations on the base URL; cookies of the host alone."""
        base, canonical_url = self.base_url.encode(), b"http://" + self.host.encode()
        done = []
        for name, value in headers:
            if name in _LOCATION_HEADERS:
                value = _swap(value, canonical_url, base)
            elif name == b"set-cookie":
                value = _without_domain(value, self.host.split(":")[0])
            done.append((name, value))
        return done


def _swap(value: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the origin ``old`` at the beginning of a URL, and only a whole origin."""
    rest = value[len(old) :]
    if value[: len(old)].lower() == old.lower() and (not rest or rest[:1] in b"/?#"):
        return new + rest
    return value


def _without_domain(cookie: bytes, host: str) -> bytes:
    """The cookie without a Domain that covers the host: a client of the base URL knows neither of the two names.

    A Domain that does not cover it stays, and makes the client refuse the cookie, as it would have to.
    """
    pair, *attributes = cookie.split(b";")
    return b";".join([pair, *(part for part in attributes if not _covers(part, host.lower().encode()))])


def _covers(attribute: bytes, host: bytes) -> bool:
    """Whether this is a Domain of the host or of a parent of it, save for a bare top-level one: clients refuse that."""
    name, _, value = attribute.partition(b"=")
    domain = value.strip().lower().removeprefix(b".")
    if name.strip().lower() != b"domain" or not domain:
        return False
    return host == domain or (b"." in domain and host.endswith(b"." + domain))


def find_route(routes: Iterable[Route], authority: str) -> Route:
    """The route of a host. Raises Refused with 421."""
    for route in routes:
        if canonical(route.host.encode()) == authority:
            return route
    raise Refused(421, "unknown_host", f"{authority} is not a host of this environment's world")
