"""Web applications on a resident shared server: the request's ticket decides whose stores it uses."""

from __future__ import annotations

from statefork.adapters.resources.web.resource import Options, WebResource
from statefork.engine.ports import Services

__all__ = ["Options", "WebResource", "make"]


def make(name: str, options: Options, services: Services) -> WebResource:
    """The resource of one contract entry with ``adapter = "web"``."""
    return WebResource(name, options, services)
