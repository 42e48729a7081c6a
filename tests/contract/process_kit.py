"""How the tests make and touch private backends: a small HTTP server over files, asked with the standard library."""

from __future__ import annotations

import http.client
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.process import Options, ProcessResource
from statefork.adapters.resources.process.standing import started
from statefork.engine.ports import Services
from statefork.journal.values import Binding

SERVER = Path(__file__).with_name("process_server.py")
COMMAND = [sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"]
QUICK: dict[str, Any] = {"command": COMMAND, "ready": "http /ready", "settle_s": 0.0}


def ask(binding: Binding, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """One request to the backend's own port."""
    connection = http.client.HTTPConnection("127.0.0.1", int(str(binding.address["port"])), timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def write(binding: Binding, key: str, value: str) -> None:
    status, _ = ask(binding, "PUT", f"/keys/{key.replace(' ', '%20')}", value)
    assert status == 200


def read(binding: Binding, key: str) -> str | None:
    status, value = ask(binding, "GET", f"/keys/{key.replace(' ', '%20')}")
    return value if status == 200 else None


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - other processes can't set an event of ours
            await anyio.sleep(0.01)


async def gone(*pids: int) -> None:
    """Return when processes are no more."""
    await until(lambda: not any(map(started, pids)))


def settled(resource: ProcessResource) -> None:
    """Every sealed layer has its sums."""
    resource._sums.stop(threading.TIMEOUT_MAX)


def bench_for(state: Path, base_dir: Path, **options: Any) -> Bench:
    """A bench for one set of options."""
    (base_dir / "base").mkdir(exist_ok=True)
    (base_dir / "base" / "seeded").write_text("from the base")

    def make(services: Services) -> ProcessResource:
        return ProcessResource("tracker", Options(**{**QUICK, "base": "base", **options}), services)

    return Bench(make=make, write=write, read=read, state=state, base_dir=base_dir, settle=settled)
