"""What an evaluator is shown of the agent's page: its address, what it holds now, and the cookies of its profile."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from statefork.adapters.interfaces.webarena.sites import Sites
from statefork.engine.errors import ContractError

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment

FROZEN = (files("statefork.adapters.interfaces.webarena") / "frozen.js").read_text(encoding="utf-8")
_COOKIE_KEYS = ("name", "value", "path", "expires", "httpOnly", "sameSite")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's active tab: at the address and with the cookies that clients of the private base URLs have."""

    url: str
    html: str
    viewport: dict[str, int] | None
    cookies: list[dict[str, Any]]


async def shown(env: Environment, sites: Sites) -> Shown:
    """Read the active tab, under a lease that the caller holds. Nothing of it is moved, and nothing is journaled.

    Raises ContractError where the world has no browser.
    """
    for name, binding in env.bindings.items():
        if binding.adapter == "browser":
            resource: Any = env.kernel.resources[name]
            async with resource.raw(binding) as page:
                return Shown(
                    url=sites.private(page.url),
                    html=await page.evaluate(FROZEN),
                    viewport=page.viewport_size,
                    cookies=cookies_for_doors(await page.context.cookies(), sites),
                )
    raise ContractError(f"{env.name} has no browser: evaluators of WebArena's judge pages", environment=env.name)


def cookies_for_doors(cookies: list[dict[str, Any]], sites: Sites) -> list[dict[str, Any]]:
    """The cookies that the sites' hosts would get, for the sites' private addresses."""
    found = []
    for cookie in cookies:
        for host, door in sites.doors.items():
            domain = str(cookie["domain"])
            if host == domain or (domain.startswith(".") and f".{host}".endswith(domain)):
                kept = {key: cookie[key] for key in _COOKIE_KEYS if key in cookie}
                found.append({**kept, "domain": door.removeprefix("http://").partition(":")[0], "secure": False})
    return found
