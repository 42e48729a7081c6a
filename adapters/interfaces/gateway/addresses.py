"""Loopback addresses: one for each site of each environment.

Cookies ignore ports. Two private base URLs on one address would therefore share the cookies of a client that uses one
jar for both, and each log-in would end the other. On Linux all of 127.0.0.0/8 is the machine itself, so every
site gets an address out of it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.abc
from anyio.streams.stapled import MultiListener

SHARED = "127.0.0.1"
"""Where proxies listen, and sites where the machine has no other loopback address."""

SAMPLE = "127.1.0.1"
"""An address to try out whether this machine has more than the shared one."""

_WIDTHS = (254, 256, 254)  # of the last three bytes; see _spell
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM})
Listening = MultiListener[anyio.abc.SocketStream]  # what anyio makes of one address
_log = logging.getLogger("statefork.gateway")


class Addresses:
    """The addresses of one gateway's sites.

    An address follows from the gateway's name, the environment and the host: so it is the same when the engine is
    opened again (a client's saved cookies fit), and another engine on this machine, of another name, has others.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._taken: set[str] = set()
        self._told = False

    @asynccontextmanager
    async def listening(self, env: str, host: str) -> AsyncIterator[Listening]:
        """Listen on a free port of the site's own address; of the shared one, and say so, where there is no other."""
        with self.lent(env, host) as address:
            async with await self._open(address) as listener:
                yield listener

    async def _open(self, address: str) -> Listening:
        try:
            return await anyio.create_tcp_listener(local_host=address)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            self._tell(address, error)
        return await anyio.create_tcp_listener(local_host=SHARED)

    @contextmanager
    def lent(self, env: str, host: str) -> Iterator[str]:
        """An address that nobody else holds in this gateway."""
        attempt = 0
        while (address := _spell(f"{self._name}\n{env}\n{host}\n{attempt}")) in self._taken:
            attempt += 1
        self._taken.add(address)
        try:
            yield address
        finally:
            self._taken.discard(address)

    def _tell(self, address: str, error: OSError) -> None:
        if not self._told:
            _log.warning(
                "base URLs share the address %s, because %s can't be had here (%s): "
                "give an HTTP client a cookie jar for each of them",
                SHARED,
                address,
                error.strerror,
            )
        self._told = True


def _spell(text: str) -> str:
    """127.A.B.C, spread evenly. Not in 127.0.0.0/16, where hosts files and resolvers live, and no broadcast address."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    number, a = divmod(number, _WIDTHS[0])
    number, b = divmod(number, _WIDTHS[1])
    return f"127.{a + 1}.{b}.{number % _WIDTHS[2] + 1}"


@asynccontextmanager
async def on_shared_address() -> AsyncIterator[Listening]:
    """Listen on a free port of the shared address."""
    async with await anyio.create_tcp_listener(local_host=SHARED) as listener:
        yield listener


@asynccontextmanager
async def on_reserved_port(reserved: socket.socket) -> AsyncIterator[Listening]:
    """Listen on a port that was taken before. The socket is closed at the end."""
    reserved.setblocking(False)
    async with MultiListener([await anyio.abc.SocketListener.from_socket(reserved)]) as listener:
        yield listener


def many() -> bool:
    """Whether this machine has loopback addresses besides the shared one."""
    try:
        with socket.create_server((SAMPLE, 0)):
            return True
    except OSError:
        return False
