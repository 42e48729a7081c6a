"""Clients of a gateway in a process of their own, so that they are no part of what is measured.

``python _gateway_client.py`` reads one JSON object from its standard input and prints one. ``op`` is

``latency``   ask the ``places`` in turn, ``rounds`` times each, one request at a time: milliseconds of each, by place
``load``      ask the places over ``clients`` connections that are never at rest, for ``seconds``: how many answers
``idle``      open ``clients`` connections to the places and ask once over each; say ``held``; when a line comes, ask
              again over each, and say how many were answered
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from typing import Any


class Place:
    """Where to ask, and with what."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.name: str = told["name"]
        address, _, port = told["address"].partition(":")
        self.address = (address, int(port))
        self.lasts: bool = told.get("lasts", True)  # one connection for all requests
        lines = [f"GET {told['target']} HTTP/1.1", f"Host: {told['host']}", *told.get("headers", ())]
        lines += [] if self.lasts else ["Connection: close"]
        self.request = "\r\n".join([*lines, "", ""]).encode()


def answered(connection: socket.socket, request: bytes) -> None:
    """One request, and its answer whole. Raises RuntimeError for another answer than 2xx."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 2"):
        raise RuntimeError(f"{request[:80]!r} was answered with {head[:200]!r}")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if fields.get(b"transfer-encoding") == b"chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += _some(connection)
        return
    left = int(fields.get(b"content-length", 0)) - len(body)
    while left > 0:
        left -= len(_some(connection))


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise RuntimeError("the connection was closed within an answer")
    return data


def opened(place: Place) -> socket.socket:
    """A connection that sends at once."""
    connection = socket.create_connection(place.address, timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def latency(places: list[Place], rounds: int, warm: int) -> dict[str, list[float]]:
    """Side by side: what disturbs one place disturbs all of them."""
    lasting = {place.name: opened(place) for place in places if place.lasts}
    took: dict[str, list[float]] = {place.name: [] for place in places}
    for number in range(-warm, rounds):
        for place in places:
            began = time.perf_counter()
            if place.lasts:
                answered(lasting[place.name], place.request)
            else:
                with opened(place) as connection:
                    answered(connection, place.request)
            if number >= 0:
                took[place.name].append((time.perf_counter() - began) * 1000)
    return took


async def load(places: list[Place], clients: int, seconds: float) -> dict[str, float]:
    """How many were answered in how long."""
    give_up = time.perf_counter() + seconds
    answers = 0

    async def ask(place: Place) -> None:
        nonlocal answers
        reader, writer = await asyncio.open_connection(*place.address)
        while time.perf_counter() < give_up:
            writer.write(place.request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"answered with {head[:200]!r}")
            length = head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
            answers += 1
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask(places[number % len(places)]) for number in range(clients)))
    return {"answers": answers, "seconds": time.perf_counter() - began}


def idle(places: list[Place], clients: int) -> dict[str, int]:
    """Connections that rest meanwhile, and work afterwards."""
    resting = []
    for number in range(clients):
        place = places[number % len(places)]
        connection = opened(place)
        answered(connection, place.request)
        resting.append((connection, place))
    print("held", flush=True)
    sys.stdin.readline()
    for connection, place in resting:
        answered(connection, place.request)
    return {"answered_afterwards": len(resting)}


def main() -> None:
    """One operation."""
    told = json.loads(sys.stdin.readline())
    if told["core"] is not None:
        os.sched_setaffinity(0, {told["core"]})
    places = [Place(one) for one in told["places"]]
    match told["op"]:
        case "latency":
            found: Any = latency(places, told["rounds"], told["warm"])
        case "load":
            found = asyncio.run(load(places, told["clients"], told["seconds"]))
        case "idle":
            found = idle(places, told["clients"])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
