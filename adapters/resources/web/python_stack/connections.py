"""What the hooks of all drivers share: where a connection leads, whose it is, and how many there are.

A connection belongs to the binding that opened it. Whoever else uses it is refused, so what an application keeps
beyond a request (a pool, a global) can hand nothing of one environment to another.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from statefork.adapters.resources.web.bound import CURRENT, Bound, NoEnvironment, store_lost
from statefork.journal.values import Json

Address = Mapping[str, Json]


class Raw(Protocol):
    """What is done with a driver's connection from outside of its thread."""

    def sf_is_open(self) -> bool:
        """Whether something would be closed."""
        ...

    def sf_in_transaction(self) -> bool:
        """Whether a transaction would be lost."""
        ...

    def sf_close(self) -> None:
        """Close it, at once."""
        ...

    def sf_interrupt(self) -> None:
        """Make what runs on it end soon."""
        ...


class DriverSession:
    """A driver's connection as its binding sees it (see bound.Session). The connection owns it."""

    def __init__(self, bound: Bound, label: str) -> None:
        self.bound = bound
        self.label = label
        self.closed_by_us = False
        self._raw: weakref.ref[Any] | None = None

    def is_of(self, raw: Raw) -> None:
        """It was opened. Raises BindingEnded, and it is closed, when its binding ended meanwhile."""
        self._raw = weakref.ref(raw)
        try:
            self.bound.adopt(self)
        except BaseException:
            raw.sf_close()
            raise
        CONNECTIONS.opened(self.bound)

    def _connection(self) -> Raw | None:
        return None if self._raw is None else self._raw()

    def is_open(self) -> bool:
        """Whether the driver's connection is open."""
        raw = self._connection()
        return raw is not None and raw.sf_is_open()

    def busy(self) -> str:
        """An open transaction would be lost."""
        raw = self._connection()
        if raw is None or not raw.sf_is_open() or not raw.sf_in_transaction():
            return ""
        return f"a transaction is open on {self.label}"

    def close_now(self) -> None:
        """Close it, from whichever thread."""
        raw = self._connection()
        if raw is not None and raw.sf_is_open():
            self.closed_by_us = True
            raw.sf_close()

    def interrupt(self) -> None:
        """End a running statement."""
        raw = self._connection()
        if raw is not None:
            with contextlib.suppress(Exception):  # it has just ended, in whatever way
                raw.sf_interrupt()

    def check_owner(self) -> None:
        """Raise NoEnvironment unless the binding that opened the connection is the running code's."""
        running = CURRENT.get()
        if running is not self.bound:
            whose = "code without an environment" if running is None else f"code of {running.identity}"
            raise NoEnvironment(
                f"a connection to {self.label} of {self.bound.identity} was used by {whose}: what keeps connections "
                "beyond a request must keep them for each environment (SQLAlchemy's pools are; others can't be)"
            )

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Around each use. Raises NoEnvironment to others than its owner, BindingEnded."""
        self.check_owner()
        with self.bound.using(self), self.telling_loss():
            yield

    @contextlib.contextmanager
    def telling_loss(self) -> Iterator[None]:
        """A connection that its server ended, unless we did: whoever caused the request must hear of it."""
        try:
            yield
        except Exception as error:
            if not (self.is_open() or self.closed_by_us) and self.bound.gate != "cut":
                store_lost(f"{self.label} was lost: {error}")
            raise


class Names:
    """Which store a database's name leads to: ``database.<name>`` where that is declared, else ``database``.

    Only one name of a process may lead to ``database``: two databases of an application in one store would be mixed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._default = ""

    def find(self, bound: Bound, name: str) -> tuple[str, Address]:
        """The kind of store and its address. Raises NoEnvironment."""
        own = f"database.{name}"
        if own in bound.stores:
            return own, bound.stores[own]
        if "database" not in bound.stores:
            raise NoEnvironment(f"database {name!r} is no store of this environment: declare 'database' or {own!r}")
        with self._lock:
            self._default = self._default or name
            if self._default != name:
                raise NoEnvironment(
                    f"store 'database' stands for {self._default!r} already: declare another, {own!r}, in the contract"
                )
        return "database", bound.stores["database"]


class Connections:
    """All bindings with connections, the one that opened most recently last: idle ones are closed above a limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds: OrderedDict[Bound, None] = OrderedDict()
        self.most = 64

    def opened(self, bound: Bound) -> None:
        """Of the binding, which goes last. Whoever opened longest ago, and has nothing running, loses all."""
        with self._lock:
            self._bounds[bound] = None
            self._bounds.move_to_end(bound)
            for gone in [other for other in self._bounds if other.gate == "cut"]:
                del self._bounds[gone]
            others = [other for other in self._bounds if other is not bound]
        for other in others:
            if self.count() <= self.most:
                return
            other.close_idle()

    def forget(self, bound: Bound) -> None:
        """It has been released."""
        with self._lock:
            self._bounds.pop(bound, None)

    def count(self) -> int:
        """Open connections of all bindings."""
        with self._lock:
            bounds = list(self._bounds)
        return sum(bound.open_sessions() for bound in bounds)


NAMES = Names()
CONNECTIONS = Connections()
