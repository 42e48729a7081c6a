"""A terminal over a file tree, through which an agent runs commands: each one an action."""

from __future__ import annotations

from statefork.adapters.resources.shell.options import Options
from statefork.adapters.resources.shell.resource import ShellResource
from statefork.engine.ports import Services

__all__ = ["Options", "ShellResource", "make"]


def make(name: str, options: Options, services: Services) -> ShellResource:
    """The resource of one contract entry."""
    return ShellResource(name, options, services)
