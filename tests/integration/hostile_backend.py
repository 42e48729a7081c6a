"""``hostile_backend.py DIRECTORY PORT``: a private backend that tries what it is told, as the user that it runs as.

``POST /try`` with a list of ``[verb, argument, ...]`` answers with what came of each: ``done ...`` or ``refused NAME``,
the name of the kernel's error. ``POST /killall``, ``/bomb`` and ``/fill`` are what programs do to their machine.
``GET /alive`` says who it is, ``GET`` and ``PUT /keys/NAME`` are files of its directory.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import socketserver
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

DATA = Path(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
SMALL = 200
BOMB_MAX = 256


def told(result: int) -> str:
    """What a call of the C library came to."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def read(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a path as it was told, whatever it is
        return f"done {file.read(SMALL)!r}"


def memory(pid: int) -> str:
    with open(f"/proc/{pid}/mem", "rb"):  # noqa: PTH123 - opening it is the right to read it
        return "done"


def write(path: str) -> str:
    with open(path, "ab") as file:  # noqa: PTH123 - a path as it was told, whatever it is
        file.write(b"mine")
    return "done"


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    return "done"


def reach(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=5):
        return "done"


def send_signal(pid: int, number: int) -> str:
    os.kill(pid, number)
    return "done"


def run(*command: str) -> str:
    return f"done {subprocess.run(command, check=False, capture_output=True, text=True, timeout=20).stdout.strip()}"


VERBS: dict[str, Callable[..., str]] = {
    "read": read,
    "memory": memory,
    "list": lambda path: f"done {len(os.listdir(path))}",  # noqa: PTH208 - a path as it was told
    "write": write,
    "remove": lambda path: f"done {os.unlink(path)}",  # noqa: PTH108 - a path as it was told
    "link": lambda source, target: f"done {os.link(source, target)}",
    "connect": connect,
    "reach": reach,
    "signal": send_signal,
    "trace": lambda pid: told(LIBC.ptrace(PTRACE_SEIZE, pid, None, None)),
    "become": lambda uid: f"done {os.setuid(uid)}",
    "mount": lambda path: told(LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", 0, None)),
    "run": run,
}


def attempt(verb: str, *arguments: Any) -> str:
    try:
        return VERBS[verb](*arguments)
    except OSError as error:
        return f"refused {errno.errorcode.get(error.errno or 0, str(error))}"


def kill_all() -> str:
    """Everything that it may end, itself included, as ``killall -9 -r .`` does."""
    os.kill(-1, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def bomb() -> str:
    """Processes that do nothing but make more of themselves; each gives up when it is refused, and stays.

    Should nothing else bound them, a limit of their own does: the machine is others' too.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = BOMB_MAX if hard == resource.RLIM_INFINITY else min(hard, BOMB_MAX)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if os.getuid() and not os.fork():
        os.setsid()
        while True:
            try:
                os.fork()
            except OSError:
                signal.pause()
    return "lit"


def fill() -> str:
    """Write until nothing more fits, or 64 MB are there; how much there was room for."""
    written = 0
    with (DATA / "all").open("wb", buffering=0) as file:
        try:
            while written < 64 << 20:
                written += file.write(bytes(1 << 16))
        except OSError as error:
            return f"{errno.errorcode[error.errno or 0]} {written}"
    return f"{written}"


DEEDS: dict[str, Callable[[], str]] = {"/killall": kill_all, "/bomb": bomb, "/fill": fill}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = DATA / self.path.rpartition("/")[2]
        if self.path == "/alive":
            self.answer(json.dumps({"uid": os.getuid(), "pid": os.getpid(), "parent": os.getppid()}))
        elif name.exists():
            self.answer(name.read_text())
        else:
            self.send_error(404)

    def do_PUT(self) -> None:
        try:
            (DATA / self.path.rpartition("/")[2]).write_bytes(self.body())
            self.answer("")
        except OSError as error:
            self.send_error(507, error.strerror)

    def do_POST(self) -> None:
        if self.path == "/try":
            self.answer(json.dumps([attempt(*one) for one in json.loads(self.body())]))
        else:
            self.answer(DEEDS[self.path]())

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[2])), Handler) as server:
        server.serve_forever(poll_interval=0.05)
