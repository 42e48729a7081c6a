"""The page of settings: where uploads and the cache are. The one module here that knows of environments."""

from __future__ import annotations

from pathlib import Path

from statefork.adapters.resources.web import python_stack


def uploads() -> Path:
    """Where the environment's uploads are."""
    return Path(str(python_stack.store("media")["path"]))


def cache() -> dict[str, str]:
    """The environment's cache."""
    cached: dict[str, str] = python_stack.keep("cache", dict)
    return cached
