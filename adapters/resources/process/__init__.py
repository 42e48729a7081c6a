"""Any command as a resource: a private process for each environment, over a private tree."""

from __future__ import annotations

from statefork.adapters.resources.process.options import Options
from statefork.adapters.resources.process.resource import ProcessResource
from statefork.engine.ports import Services

__all__ = ["Options", "ProcessResource", "make"]


def make(name: str, options: Options, services: Services) -> ProcessResource:
    """The resource of one contract entry."""
    return ProcessResource(name, options, services)
