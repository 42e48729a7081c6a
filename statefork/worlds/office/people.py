"""One person of the office, who has an account on each of its sites: for agents, tasks and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from statefork.adapters.resources.browser.actions import Click, Fill, Goto
from statefork.worlds.shop import catalogue

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment

NAME = "Ada"
_FORMS = {
    "shop": (
        "/accounts/login/",
        {"#id_login-username": catalogue.email(NAME), "#id_login-password": catalogue.PASSWORD},
        "button[name=login_submit]",
    ),
    "tracker": ("/login", {"#username": NAME.lower(), "#password": "password1"}, "#login-submit"),
    "wiki": (
        "/wiki/Special:UserLogin",
        {"#wpName1": NAME, "#wpPassword1": f"password of {NAME}"},
        "#wpLoginAttempt",
    ),
}
_OWN_PAGES = {"shop": "/accounts/profile/", "tracker": "/my/page", "wiki": "/wiki/Special:Watchlist"}
"""Pages that only somebody who is logged in gets; others are led to the form."""


async def log_in(env: Environment) -> None:
    """Log in on each site, by its form."""
    for site, (path, fields, button) in _FORMS.items():
        await env.act(Goto(f"http://{site}.example{path}"))
        for selector, value in fields.items():
            await env.act(Fill(selector, value=value))
        await env.act(Click(button))


async def known_to(env: Environment) -> dict[str, bool]:
    """Which sites know who uses them; the browser is led to a page of each."""
    found = {}
    for site, path in _OWN_PAGES.items():
        seen = await env.act(Goto(f"http://{site}.example{path}"))
        shown = urlsplit(seen.observation.url)  # the wiki notes its filters in the query, by a script, soon after
        found[site] = (shown.netloc, shown.path) == (f"{site}.example", path)
    return found
