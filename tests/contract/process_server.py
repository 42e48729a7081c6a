"""``process_server.py DIRECTORY PORT``: keys are files of a directory, which stay open as a database's do.

Besides ``GET`` and ``PUT /keys/NAME`` there are ``GET /ready``, ``/pid`` and ``POST /spawn``, which starts what is hard
to end: a process that leads a session of its own, was orphaned and has wiped its environment. ``POST /die`` ends it.
``POST /map`` maps the key ``mapped``, ``POST /poke`` changes it through the mapping. ``POST /forks`` makes many
children. ``GET /me`` gives user and environment, ``GET /visit`` counts who comes by.
"""

from __future__ import annotations

import json
import mmap
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

FILES: dict[str, int] = {}
MAPPED: list[mmap.mmap] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.removeprefix("/keys/")
        if self.path == "/ready":
            self.answer(200, "yes")
        elif self.path == "/pid":
            self.answer(200, str(os.getpid()))
        elif self.path == "/me":
            self.answer(200, json.dumps({"uid": os.getuid(), "environment": dict(os.environ)}))
        elif self.path == "/visit":
            place("visits").write_text(place("visits").read_text() + "|" if place("visits").exists() else "|")
            self.answer(200, place("visits").read_text())
        elif place(name).exists():
            self.answer(200, place(name).read_text())
        else:
            self.answer(404, "")

    def do_PUT(self) -> None:
        name = self.path.removeprefix("/keys/")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if name not in FILES:
            FILES[name] = os.open(place(name), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(FILES[name], 0)
        os.pwrite(FILES[name], body, 0)
        self.answer(200, "")

    def do_POST(self) -> None:
        if self.path == "/die":
            os._exit(7)
        self.answer(200, DONE[self.path]())

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def place(name: str) -> Path:
    return Path(sys.argv[1], unquote(name).replace("/", "_"))


def map_key() -> str:
    place("mapped").write_bytes(b"0" * mmap.PAGESIZE)
    file = os.open(place("mapped"), os.O_RDWR)
    MAPPED.append(mmap.mmap(file, mmap.PAGESIZE))
    os.close(file)
    return ""


def poke() -> str:
    MAPPED[0][0:1] = bytes([MAPPED[0][0] + 1])
    return ""


def spawn() -> str:
    """The number of a process that has nothing of ours but its parents' number."""
    told, tell = os.pipe()
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(tell, str(os.getpid()).encode())
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os.wait()
    number = os.read(told, 20).decode()
    os.close(told)
    os.close(tell)
    return number


def fork_until_refused() -> str:
    """How many children could be had, up to a hundred; they stay."""
    for number in range(100):
        try:
            if not os.fork():
                os.execv("/bin/sleep", ["sleep", "1000"])
        except OSError:
            return str(number)
    return "100"


DONE = {"/map": map_key, "/poke": poke, "/spawn": spawn, "/forks": fork_until_refused}


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[2])), Handler) as server:
        server.serve_forever(poll_interval=0.05)
