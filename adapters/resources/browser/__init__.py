"""The browser as a resource: one resident Chromium, a context per environment, profiles that are sealed and forked.

Importing this is cheap: Playwright is loaded by ``make``. See docs/design/browser.md for what a profile carries.
"""

from __future__ import annotations

from statefork.adapters.resources.browser.chromium import find_chromium
from statefork.adapters.resources.browser.options import Options
from statefork.engine.ports import Resource, Services

__all__ = ["Options", "find_chromium", "make"]


def make(name: str, options: Options, services: Services) -> Resource:
    """The resource for one contract entry."""
    from statefork.adapters.resources.browser.resource import BrowserResource

    return BrowserResource(name, options, services)
