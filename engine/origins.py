"""Origins outside of an environment's world: how a contract writes them, and exactly what that means. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Literal

from statefork.journal.values import Value

_USUAL = {"http": 80, "https": 443}
_ORIGIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?)(?::(?P<port>[0-9]{1,5}))?/?", re.ASCII
)
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
FORM = "'https://host' or 'http://host:port'"


class Origin(Value, frozen=True, kw_only=True):
    """Scheme, host and port: all three have to fit."""

    scheme: Literal["http", "https"]
    host: str
    port: int

    @property
    def authority(self) -> str:
        """``host`` or ``host:port``, as a page of the origin would send it in Host."""
        return self.host if self.port == _USUAL[self.scheme] else f"{self.host}:{self.port}"

    @property
    def secure(self) -> bool:
        """Whether it is reached through TLS."""
        return self.scheme == "https"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_origin(text: str) -> Origin | None:
    """The origin that a text is, in any case of letters; None for all else: paths, names of users, wildcards, IPv6."""
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        return None
    scheme: Literal["http", "https"] = "https" if match["scheme"] == "https" else "http"
    port = int(match["port"] or _USUAL[scheme])
    return Origin(scheme=scheme, host=match["host"], port=port) if 0 < port <= 65535 else None


def parse_origins(texts: Iterable[str]) -> tuple[Origin, ...]:
    """The origins of a list. Raises ValueError, naming the one that is wrong."""
    found: dict[Origin, None] = {}
    for text in texts:
        origin = parse_origin(text)
        if origin is None:
            raise ValueError(f"an origin is {FORM}, exactly and without a path, not {text!r}")
        if any((origin.host, origin.port) == (other.host, other.port) for other in found):
            raise ValueError(f"{origin.host}:{origin.port} stands twice")
        found[origin] = None
    return tuple(found)


def is_metadata(address: str) -> bool:
    """Whether an IP address is one at which clouds tell their machines secrets, or of one link only."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    return mapped.is_link_local or mapped in _METADATA
