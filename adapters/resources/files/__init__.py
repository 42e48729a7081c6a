"""A file tree as a resource: a private writable tree per environment over a shared immutable base."""

from __future__ import annotations

from statefork.adapters.resources.files.resource import FilesResource, Options
from statefork.engine.ports import Services

__all__ = ["FilesResource", "Options", "make"]


def make(name: str, options: Options, services: Services) -> FilesResource:
    """The resource of one contract entry."""
    return FilesResource(name, options, services)
