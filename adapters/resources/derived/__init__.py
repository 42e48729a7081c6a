"""A file tree that a program makes from other resources: built when their versions change, shared where they do not."""

from __future__ import annotations

from statefork.adapters.resources.derived.options import Options
from statefork.adapters.resources.derived.resource import DerivedResource
from statefork.engine.ports import Services

__all__ = ["DURABILITIES", "DerivedResource", "Options", "make"]

DURABILITIES = ("derived",)


def make(name: str, options: Options, services: Services) -> DerivedResource:
    """The resource of one contract entry."""
    return DerivedResource(name, options, services)
