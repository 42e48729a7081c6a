"""The stacks ``wsgi`` and ``asgi``: ``settings = "module:application"``, any framework, in the server's own process."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.bound import Bound, NoEnvironment, Stores
from statefork.adapters.resources.web.python_stack import lite, pools, server
from statefork.adapters.resources.web.python_stack.connections import CONNECTIONS
from statefork.adapters.resources.web.stack import Application, Setup

_CONNECTIONS_PER_THREAD = 4


class WsgiStack:
    """What the host asks of a stack. One per process."""

    def load(self, setup: Setup) -> Application:
        """Hook the drivers, import the application's module and take it from there. Raises ValueError."""
        application: Application = self._imported(setup)
        return application

    def _imported(self, setup: Setup) -> Any:
        for part in (lite, server, pools):
            part.install()
        CONNECTIONS.most = _CONNECTIONS_PER_THREAD * setup.threads
        module, _, name = setup.settings.partition(":")
        try:
            found: Any = import_module(module)
            for part_of_name in (name or "application").split("."):
                found = getattr(found, part_of_name)
        except NoEnvironment as refused:
            raise ValueError(
                f"{setup.settings!r} reaches for a store while it is imported: {refused}. "
                "Tables and rows that all environments begin with belong into the store's base"
            ) from refused
        except AttributeError as error:
            raise ValueError(f"settings = {setup.settings!r}: {error}") from error
        if not callable(found):
            raise ValueError(f"settings = {setup.settings!r} is {type(found).__name__}, and can't be called")
        pools.verify(sys.modules)
        return found

    def check_stores(self, stores: Stores) -> None:
        """Raise ValueError for a database that is neither a file nor on a server."""
        for kind, address in stores.items():
            if _is_database(kind) and not {"path", "name"} & set(address):
                raise ValueError(f"store {kind!r} is no database: it must be one of adapter 'sqlite' or 'postgres'")

    def ready(self, bound: Bound) -> None:
        """Reach every store once, in the bound context; raises what reaching it raises."""
        for kind, address in bound.stores.items():
            if not _is_database(kind):
                if "path" in address and not Path(str(address["path"])).exists():
                    raise FileNotFoundError(f"store {kind!r} is not at its place")
                continue
            driver: Any = lite if "path" in address else server
            connection = driver.open_store(bound, kind, address)
            try:
                connection.execute("SELECT 1").fetchone()
            finally:
                connection.close()

    def released(self, bound: Bound) -> None:
        """The binding is gone, and its connections closed: forget it."""
        CONNECTIONS.forget(bound)
        bound.slots.clear()

    def stats(self) -> dict[str, Any]:
        """Everything is kept on the bindings."""
        return {}

    def holders(self, first: str, second: str) -> list[str]:
        """Nothing runs outside of this process."""
        return []

    def stop(self) -> None:
        """Nothing runs outside of this process."""


class AsgiStack(WsgiStack):
    """The same for an application on an event loop, which all environments share."""

    def __init__(self) -> None:
        self._loop: Any = None

    def load(self, setup: Setup) -> Application:
        """Import it, start its loop and run its lifespan up to "started". Raises ValueError with what it says."""
        from statefork.adapters.resources.web.python_stack.bridge import Bridge
        from statefork.adapters.resources.web.python_stack.loop import Loop

        found = self._imported(setup)
        self._loop = Loop(found)
        self._loop.start()
        return Bridge(found, self._loop)

    def ready(self, bound: Bound) -> None:
        """Its stores, and its loop."""
        super().ready(bound)
        self._loop.answer()

    def stop(self) -> None:
        """Let the lifespan end."""
        if self._loop is not None:
            self._loop.stop()


def _is_database(kind: str) -> bool:
    return kind.split(".")[0] == "database"
