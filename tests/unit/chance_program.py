"""What code draws and reads under given conditions, under others and under none. Run in a process of its own."""

from __future__ import annotations

import contextvars
import datetime
import json
import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from statefork.adapters.resources.web import chance

REAL = time.time()
chance.install()

import random  # noqa: E402 - as an application is: after the installation
from random import gauss, randint, sample  # noqa: E402 - by their names, too


def drawn() -> list[Any]:
    """One draw from each source."""
    return [
        os.urandom(4).hex(),
        secrets.token_hex(4),
        str(uuid.uuid4()),
        random.random(),
        randint(1, 10**9),
        random.getrandbits(60),
        sample(range(1000), 3),
        random.Random().random(),
        random.SystemRandom().random(),
        gauss(0, 1),
    ]


def clocks() -> list[float]:
    """What each clock says."""
    return [
        time.time(),
        time.time_ns() / 1e9,
        datetime.datetime.now().timestamp(),  # noqa: DTZ005 - what applications do
        datetime.datetime.now(datetime.UTC).timestamp(),
        float(time.strftime("%s", time.localtime())),
    ]


def seeded() -> bool:
    """Whether a seed of the application's own does what it says."""
    random.seed(7)
    first = random.random()
    random.seed(7)
    return first == random.random()


def request(told: str, name: str, asked: chance.Asked, ask: Callable[[], Any] = drawn, *, stands: bool = False) -> Any:
    """Ask in a context of its own."""

    def run() -> Any:
        chance.enter(told, name, asked, stands=stands)
        return ask()

    return contextvars.Context().run(run)


def years() -> list[list[int]]:
    """What year it is in each of twelve threads at once: all that each of them has seen."""
    found: dict[int, set[int]] = {}

    def look(number: int) -> None:
        told = f"ab;{number}00000000"
        found[number] = request(told, "/", chance.Asked(), lambda: {time.gmtime().tm_year for _ in range(500)})

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sorted(found[number]) for number in range(4, 16)]


def main() -> None:
    """Print it."""
    one, two = chance.Asked(), chance.Asked()
    order = ("GET /", "GET /", "GET /x")
    out: dict[str, Any] = {
        "once": [request("ab;", name, one) for name in order],
        "again": [request("ab;", name, two) for name in order],
        "other seed": request("cd;", "GET /", two),
        "the seed again": request("ab;", "GET /", two),
        "real": [drawn(), drawn()],
        "own seed": [request("ab;", "GET /s", one, seeded), seeded()],
        "shifted": request("ab;1000000000.5", "GET /", one, clocks),
        "standing": request("ab;1000000000.25", "GET /", one, clocks, stands=True),
        "years": years(),
        "leaked_s": abs(time.time() - REAL),
    }
    began = time.monotonic()
    time.sleep(0.01)
    out["slept_s"] = time.monotonic() - began
    print(json.dumps(out))


if __name__ == "__main__":
    main()
