"""A network of a command's own: there is nothing in it but its loopback, and nobody gets in but the engine.

A loopback port is open to every process of the machine, so a command that guesses one reaches its siblings' backends
and doors. In a network namespace there are none to guess. Who connects to the command needs a socket that was made
within: the namespace is the socket's, for as long as that lives, and not that of the thread that uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading

_CLONE_NEWNET = 0x40000000
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_UP = 0x1 | 0x40  # IFF_UP, IFF_RUNNING
_PRESENT = "/proc/thread-self/ns/net"
_LIBC = ctypes.CDLL(None, use_errno=True)


class Network:
    """Held by a descriptor: it ends when that is closed and the last process in it has ended."""

    def __init__(self) -> None:
        """Blocks for a moment. Raises OSError where this user may not make one."""
        self.descriptor = -1
        failed: list[OSError] = []
        maker = threading.Thread(target=self._make, args=(failed,))  # it goes into the new one, and ends there
        maker.start()
        maker.join()
        if failed:
            raise failed[0]

    def _make(self, failed: list[OSError]) -> None:
        try:
            _checked(_LIBC.unshare(_CLONE_NEWNET))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
            self.descriptor = os.open(_PRESENT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            failed.append(error)

    def new_socket(self) -> socket.socket:
        """A TCP socket in it. The calling thread is there for the moment that this takes. Raises OSError."""
        if self.descriptor < 0:
            raise OSError("the network has been closed")
        home = os.open(_PRESENT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_LIBC.setns(self.descriptor, _CLONE_NEWNET))
            try:
                return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            finally:
                _checked(_LIBC.setns(home, _CLONE_NEWNET))
        finally:
            os.close(home)

    def connected(self, host: str, port: int, within_s: float) -> socket.socket:
        """A connection to a port in it. Blocks. Raises OSError."""
        client = self.new_socket()
        try:
            client.settimeout(within_s)
            client.connect((host, port))
        except BaseException:
            client.close()
            raise
        return client

    def close(self) -> None:
        """Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def why_none() -> str:
    """Why this user can't make networks; empty where it can."""
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(Network().close)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
