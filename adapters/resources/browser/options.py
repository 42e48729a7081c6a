"""What a contract says of a browser, and what the browser needs of others. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

import msgspec

from statefork.adapters.resources.browser.actions import invalid_url
from statefork.engine.origins import parse_origins
from statefork.engine.ports import Needs, Route


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a contract may say of a ``browser`` resource."""

    start: str = "about:blank"  # what a fresh profile opens
    width: int = 1280  # of the viewport, in CSS pixels
    height: int = 800
    locale: str = "en-US"
    timezone: str = "UTC"
    executable: str = ""  # of Chromium; empty = found (see find_chromium)
    screenshots: bool = True
    settle_s: float = 5.0  # how long an action waits for the page to come to rest
    external: list[str] = []  # origins outside of the world that pages may reach

    def __post_init__(self) -> None:
        parse_origins(self.external)
        problem = invalid_url(self.start)
        if problem is not None:
            raise ValueError(f"start {problem[1]}")
        if self.width < 1 or self.height < 1 or self.settle_s <= 0:
            raise ValueError("width, height and settle_s must be positive")


def routes_of(needs: Needs) -> tuple[Route, ...]:
    """The gateway's routes for the web applications among the bindings."""
    return tuple(
        Route(
            host=str(binding.address["host"]),
            upstream_host=str(binding.address["upstream_host"]),
            upstream_port=int(str(binding.address["upstream_port"])),
            ticket_key=bytes.fromhex(str(binding.address.get("ticket_key_hex", ""))),
            private=str(binding.address.get("private", "")),
        )
        for _, binding in sorted(needs.bindings.items())
        if "upstream_port" in binding.address
    )


def routes_outside(options: Options) -> tuple[Route, ...]:
    """The gateway's routes to what lies outside of the world."""
    return tuple(
        Route(
            host=f"{origin.host}:{origin.port}",
            upstream_host=origin.host,
            upstream_port=origin.port,
            outside=origin.scheme,
        )
        for origin in parse_origins(options.external)
    )


def context_options(options: Options, port: int) -> dict[str, Any]:
    """What Playwright makes a context with. ``port``: of the proxy door, 0 where there is none."""
    made: dict[str, Any] = {
        "viewport": {"width": options.width, "height": options.height},
        "device_scale_factor": 1,
        "locale": options.locale,
        "timezone_id": options.timezone,
        "color_scheme": "light",
    }
    if any(origin.secure for origin in parse_origins(options.external)):
        made["ignore_https_errors"] = True  # TLS ends at the gateway, which alone can be reached, and checks the hosts
    if port:
        # Chromium would go to *.localhost and loopback addresses directly. Playwright forbids that by itself,
        # unless an environment variable tells it not to: so it is said here.
        made["proxy"] = {"server": f"http://127.0.0.1:{port}", "bypass": "<-loopback>"}
    return made
