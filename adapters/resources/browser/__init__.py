"""The browser as a resource: one resident Chromium, a context per environment, profiles that are sealed and forked."""

from __future__ import annotations

from statefork.adapters.resources.browser.chromium import find_chromium
from statefork.adapters.resources.browser.resource import BrowserResource, Options
from statefork.engine.ports import Resource, Services

__all__ = ["BrowserResource", "Options", "find_chromium", "make"]


def make(name: str, options: Options, services: Services) -> Resource:
    """The resource for one contract entry."""
    return BrowserResource(name, options, services)
