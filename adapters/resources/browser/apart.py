"""What a profile holds apart from what the machine's clock said, and from the values of cookies that a contract masks.

A browser counts the seconds of ``Max-Age`` from its own clock, which no conditions reach: what is done again sets a
cookie that expires as much later as it was done later. Whether a cookie expires at all still counts. And where clocks
run, each tab notes when its page was loaded, to the millisecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import msgspec
from anyio import to_thread

from statefork.adapters.resources.browser.files import ProfileFiles
from statefork.adapters.resources.browser.state import Profile, Tab, digest_of
from statefork.engine.masks import Apart
from statefork.journal.values import Handle, Sealed

_SOME_DAY = 0.0
_MASKED = "…"


def apart_from_cookies(profile: Profile, masked: Collection[str] = ()) -> Apart:
    """The digest without that, and when each cookie that expires does (seconds since the epoch)."""
    left = msgspec.structs.replace(
        profile,
        cookies=tuple(_without(cookie, masked) for cookie in profile.cookies),
        tabs=tuple(_whenever(tab) for tab in profile.tabs),
    )
    expiries = {_name(cookie): float(cookie["expires"]) for cookie in profile.cookies if _expires(cookie)}
    return Apart(digest=digest_of(left), expiries=expiries)


def _without(cookie: dict[str, Any], masked: Collection[str]) -> dict[str, Any]:
    left = {**cookie, "expires": _SOME_DAY} if _expires(cookie) else dict(cookie)
    return {**left, "value": _MASKED} if cookie["name"] in masked else left


def _whenever(tab: Tab) -> Tab:
    if tab.conditions is None:
        return tab
    return msgspec.structs.replace(tab, conditions=msgspec.structs.replace(tab.conditions, now=_SOME_DAY))


def _expires(cookie: dict[str, Any]) -> bool:
    """Not with its session (Playwright says -1 then)."""
    return float(cookie.get("expires", -1)) >= 0


def _name(cookie: dict[str, Any]) -> str:
    partition = f" in {cookie['partitionKey']}" if cookie.get("partitionKey") else ""
    return f"{cookie['domain']}{cookie['path']} {cookie['name']}{partition}"


class ComparedProfiles(ABC):
    """Implements :class:`statefork.engine.masks.Cookied`."""

    _files: ProfileFiles

    @abstractmethod
    def _mine(self, handle: Handle) -> None:
        """Raise ForeignHandle for a handle of another journal or resource."""

    async def apart_from_cookies(self, sealed: Sealed, masked: tuple[str, ...]) -> Apart:
        """See :func:`apart_from_cookies`. Raises ResourceFailed."""
        self._mine(sealed)
        return apart_from_cookies((await to_thread.run_sync(self._files.read, sealed.version)).profile, masked)
