"""What the resident server asks of a stack: a kind of application, and how a binding enters it.

Python runs in the server's own process. What runs in another one, *behind* the server (``behind/``), is reached by a
header that tells which binding a request belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from statefork.adapters.resources.web.bound import Bound, Stores

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

_STACKS = {
    "django": "statefork.adapters.resources.web.django_stack:DjangoStack",
    "wsgi": "statefork.adapters.resources.web.python_stack.stacks:WsgiStack",
    "asgi": "statefork.adapters.resources.web.python_stack.stacks:AsgiStack",
    "rack": "statefork.adapters.resources.web.behind.rack:RackStack",
    "node": "statefork.adapters.resources.web.behind.node:NodeStack",
    "php-fpm": "statefork.adapters.resources.web.behind.php_fpm:PhpFpmStack",
}


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack is started with."""

    settings: str  # django: its module; wsgi, asgi: module:application; else the file that describes the site
    path: str = ""  # where that file is
    threads: int = 1  # requests that the server hands on at one time
    per_env: int = 1  # of these, one environment's
    run: str = ""  # a path of the server's own, for sockets and the like; removed in the end


class Stack(Protocol):
    """A kind of server application, and how a binding enters it. One per process."""

    def load(self, setup: Setup) -> Application:
        """Start what must be started and return the application: called in the binding's context, it is bound."""
        ...

    def check_stores(self, stores: Stores) -> None:
        """Raise ValueError, naming the store, when the application needs another."""
        ...

    def ready(self, bound: Bound) -> None:
        """Reach every store once, in the bound context."""
        ...

    def released(self, bound: Bound) -> None:
        """Drop what is kept of the binding outside of it: connections and slices of caches."""
        ...

    def stats(self) -> dict[str, Any]:
        """What is kept for the bindings outside of them; of a stack in this process nothing."""
        ...

    def holders(self, first: str, second: str) -> list[str]:
        """What outside of this process holds the text ``first + second`` in memory: for tests of what leaks."""
        ...

    def stop(self) -> None:
        """End what ``load`` started. Idempotent."""
        ...


def make_stack(name: str) -> Stack:
    """The stack of that name. Raises KeyError."""
    module, _, kind = _STACKS[name].partition(":")
    stack: Stack = getattr(import_module(module), kind)()
    return stack


def described(setup: Setup) -> Path:
    """The file that ``settings`` names, below ``path``."""
    return Path(setup.path or ".") / setup.settings
