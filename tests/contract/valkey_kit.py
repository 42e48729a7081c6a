"""How the tests make and touch namespaces: the client library, no code of the adapter."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.valkey import Options, make
from statefork.engine.ports import Services
from statefork.journal.values import Binding


def missing_valkey() -> str:
    """Why there can be no server; empty when there can."""
    if find_spec("redis") is None:
        return "this needs redis: pip install 'statefork[valkey]'"
    if not any(shutil.which(name) for name in ("valkey-server", "redis-server")):
        return "this needs valkey-server or redis-server (Debian: apt-get install redis-server)"
    return ""


def client(binding: Binding) -> Any:
    """As an application connects: by the URL alone."""
    import redis

    return redis.Redis.from_url(str(binding.address["url"]), decode_responses=True, protocol=2)


def key(binding: Binding, name: str) -> str:
    return f"{binding.address['prefix']}{name}"


def write(binding: Binding, name: str, value: str) -> None:
    with client(binding) as server:
        server.set(key(binding, name), value)


def read(binding: Binding, name: str) -> str | None:
    with client(binding) as server:
        found = server.get(key(binding, name))
        assert found is None or isinstance(found, str)
        return found


def settled(resource: Any) -> None:
    """Every sealed layer has its sums."""
    resource._sums.stop(30)


def bench_for(tmp_path: Path, **options: Any) -> Bench:
    """A bench; the server is started with the first resource."""

    def new(services: Services) -> Any:
        return make("sessions", Options(**options), services)

    return Bench(make=new, write=write, read=read, state=tmp_path / "state", base_dir=tmp_path, settle=settled)
