"""BrowserGym's tasks and agents on environments of statefork, without a browser for each episode.

::

    from statefork.browsergym import register_task

    register_task("shop.basket", Basket, contract="shop")
    env = gymnasium.make("browsergym/shop.basket")

BrowserGym (0.14) pins a Playwright that is too old for statefork: it is installed without what it asks for, see
``docs/how-to/use-with-browsergym.md``.
"""

from __future__ import annotations

from statefork.engine.errors import MissingDependency

try:
    from statefork.adapters.interfaces.browsergym.env import StateforkBrowserEnv
    from statefork.adapters.interfaces.browsergym.registration import register_task
except ImportError as missing:
    raise MissingDependency(
        f"BrowserGym, or what it needs, is not installed: {missing}",
        hint="pip install --no-deps browsergym-core==0.14.3; pip install beautifulsoup4 'lxml<6' pillow pyparsing",
    ) from missing

__all__ = ["StateforkBrowserEnv", "register_task"]
