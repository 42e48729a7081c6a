"""A namespace of keys on one resident Valkey or Redis server, private to one epoch by the server's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statefork.adapters.resources.valkey.options import Options
from statefork.engine.errors import MissingDependency
from statefork.engine.ports import Services

if TYPE_CHECKING:
    from statefork.adapters.resources.valkey.resource import ValkeyResource

__all__ = ["Options", "make"]


def make(name: str, options: Options, services: Services) -> ValkeyResource:
    """The resource of one contract entry. Raises MissingDependency where the client library is not installed."""
    try:
        from statefork.adapters.resources.valkey.resource import ValkeyResource
        from statefork.adapters.resources.valkey.server import Setup, server_at
    except ModuleNotFoundError as missing:
        if missing.name != "redis":
            raise
        raise MissingDependency(
            f"{name}: adapter 'valkey' needs the Python package 'redis', which is not installed",
            hint="pip install 'statefork[valkey]'",
            resource=name,
        ) from missing
    kept = services.durability == "authoritative"
    place = services.state / "resources" / name / "server"
    setup = Setup(name=name, state=services.state, journal=services.journal, place=place, options=options, kept=kept)
    return ValkeyResource(name, options, services, server_at(setup), kept=kept)
