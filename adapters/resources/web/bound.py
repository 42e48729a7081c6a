"""Inside the server process: which environment the running code belongs to, and what of it is still at work.

Everything that an application keeps (connections, caches, open indexes) hangs on a :class:`Bound`: one environment and
epoch. Dropping it drops them in all threads. Its gate decides whether its stores may be used right now.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol
from weakref import WeakSet

from statefork.adapters.resources.web.chance import Asked
from statefork.journal.values import Identity, Json

Stores = Mapping[str, Mapping[str, Json]]
"""The declared stores of an application: what it is (``database``, ``media``, …) to where it is."""


_LOOK_AGAIN_S = 0.05  # the end of a transaction is seen through its connection, which tells nobody


class NoEnvironment(RuntimeError):
    """Code that belongs to no environment reached for a store."""


class BindingEnded(RuntimeError):
    """The environment of this code was cut off from its stores: its epoch or activation is over."""


class StoreBusy(RuntimeError):
    """A store can't be let go of: the message names the holder."""


class Session(Protocol):
    """Something open on a store (a database connection) that can be closed from any thread."""

    def is_open(self) -> bool:
        """Whether something would be closed."""
        ...

    def busy(self) -> str:
        """What would break if it were closed now; empty when nothing would."""
        ...

    def close_now(self) -> None:
        """Close it; it may be opened again later through the gate."""
        ...

    def interrupt(self) -> None:
        """Make what runs on it end soon."""
        ...


class Work:
    """One thing that runs for an environment: a request, a thread, a job."""

    __slots__ = ("at_rest", "kind", "name", "number")

    def __init__(self, number: int, kind: Literal["request", "thread", "job"], name: str) -> None:
        self.number = number
        self.kind = kind
        self.name = name
        self.at_rest = False  # an event stream: it waits between events, its stores are held by the gate instead

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


CURRENT: ContextVar[Bound | None] = ContextVar("statefork_bound", default=None)
_LOST: ContextVar[list[str] | None] = ContextVar("statefork_lost", default=None)
"""Stores that failed under the running request: what it answers is not the application's word."""


def watch_stores() -> list[str]:
    """Begin to note the stores that fail under what runs in this context; the list grows as they do."""
    lost: list[str] = []
    _LOST.set(lost)
    return lost


def store_lost(what: str) -> None:
    """A store's server does not answer, or ended the session: the application can't be held to what it says now."""
    lost = _LOST.get()
    if lost is not None:
        lost.append(what)


def current() -> Bound:
    """The binding of the running code. Raises NoEnvironment."""
    bound = CURRENT.get()
    if bound is None:
        raise NoEnvironment(
            f"no environment is bound to thread {threading.current_thread().name!r}: "
            "stores can be reached only from a request, or from what a request started"
        )
    return bound


class Bound:
    """One environment and epoch, bound to its stores for one activation."""

    def __init__(self, identity: Identity, stores: Stores, on_idle: Callable[[Bound], None]) -> None:
        self.identity = identity
        self.stores = stores
        self.local = threading.local()  # what is kept per thread
        self.slots: dict[Any, Any] = {}  # what is shared by the environment's threads: its module-level caches
        self.gate: Literal["open", "held", "cut"] = "open"
        self.sessions: WeakSet[Session] = WeakSet()  # owned by their threads' part of ``local``
        self._using: Counter[Session] = Counter()
        self._to_tell: list[Callable[[], None]] = []  # event loops that wait at the gate
        self._work: dict[int, Work] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition(threading.RLock())
        self._on_idle = on_idle
        self.asked = Asked()
        self.watched = False  # the engine waits to be told that nothing is at work any more

    # -- the gate ---------------------------------------------------------------------------------------------

    def pass_gate(self) -> None:
        """Return when the stores may be used. Waits while they are held; raises BindingEnded once they are cut off."""
        with self._changed:
            while self.gate == "held":
                self._changed.wait()
            if self.gate == "cut":
                raise BindingEnded(f"{self.identity} was ended: its stores are closed to this code")

    @contextlib.contextmanager
    def using(self, session: Session) -> Iterator[None]:
        """Around each use of a session: it is not closed by others meanwhile. What it has begun it may finish."""
        with self._changed:
            while not self._admits(session):
                self._changed.wait()
            self._using[session] += 1
        try:
            yield
        finally:
            self.end_use(session)

    def try_use(self, session: Session, told: Callable[[], None]) -> bool:
        """For an event loop, which must not wait: begin a use, or have ``told`` called once the gate has moved.

        Raises BindingEnded. What was begun ends with ``end_use``.
        """
        with self._changed:
            if self._admits(session):
                self._using[session] += 1
                return True
            self._to_tell.append(told)
            return False

    def _admits(self, session: Session) -> bool:
        if self.gate == "cut":
            raise BindingEnded(f"{self.identity} was ended: its stores are closed to this code")
        return self.gate == "open" or bool(session.busy())

    def end_use(self, session: Session) -> None:
        """A use is over."""
        with self._changed:
            self._using[session] -= 1
            over = self._using[session] == 0
            if over:
                del self._using[session]
            cut = self.gate == "cut"
            if self.gate == "held":
                self._changed.notify_all()
        if over and cut:
            session.close_now()

    def adopt(self, session: Session) -> None:
        """From now on a cut or a hold closes it. Raises BindingEnded."""
        with self._changed:
            if self.gate == "cut":
                raise BindingEnded(f"{self.identity} was ended")
            self.sessions.add(session)

    def close_idle(self) -> bool:
        """Close every session, if nothing runs for this binding; whether that was so."""
        with self._changed:
            if self.gate != "open" or self._work or self._using or self._busy():
                return False
            for session in tuple(self.sessions):
                session.close_now()
            return True

    def _moved(self) -> None:
        """Tell who waits at the gate."""
        self._changed.notify_all()
        waiting, self._to_tell = self._to_tell, []
        for told in waiting:
            told()

    def hold(self, within_s: float) -> None:
        """Let no session be used or opened until ``release_hold``, and close every one.

        Open transactions and running statements have ``within_s`` to end. Raises StoreBusy, naming what did not, and
        holds nothing then.
        """
        deadline = time.monotonic() + within_s
        with self._changed:
            if self.gate == "cut":
                return
            self.gate = "held"
            while (busy := self._busy()) and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left_s, _LOOK_AGAIN_S))
            if busy:
                self.release_hold()
                raise StoreBusy("; ".join(busy))
            for session in tuple(self.sessions):
                session.close_now()

    def _busy(self) -> list[str]:
        found = {what for session in self.sessions if (what := session.busy())}
        return sorted(found | {"a statement is running" for _ in self._using})

    def release_hold(self) -> None:
        """Undo ``hold``."""
        with self._changed:
            if self.gate == "held":
                self.gate = "open"
                self._moved()

    def cut(self) -> None:
        """For ever: nothing of this binding reaches a store again; statements that run now are interrupted."""
        with self._changed:
            self.gate = "cut"
            self._moved()
            for session in tuple(self.sessions):
                if session in self._using:
                    session.interrupt()
                else:
                    session.close_now()

    # -- work -------------------------------------------------------------------------------------------------

    def begin(self, kind: Literal["request", "thread", "job"], name: str) -> Work:
        """Count something in. Raises BindingEnded."""
        with self._changed:
            if self.gate == "cut":
                raise BindingEnded(f"{self.identity} was ended")
            work = Work(next(self._numbers), kind, name)
            self._work[work.number] = work
            return work

    def end(self, work: Work) -> None:
        """Count it out. Idempotent."""
        with self._changed:
            if self._work.pop(work.number, None) is None:
                return
            idle = not self._pending()
        if idle:
            self._on_idle(self)

    def rest(self, work: Work) -> None:
        """From now on ``work`` only waits for events: a drain need not wait for it."""
        with self._changed:
            work.at_rest = True
            idle = not self._pending()
        if idle:
            self._on_idle(self)

    def _pending(self) -> list[Work]:
        return [work for work in self._work.values() if not work.at_rest]

    def pending(self) -> list[str]:
        """The names of what must end before the environment is quiet."""
        with self._changed:
            return [str(work) for work in self._pending()]

    def requests(self) -> int:
        """How many requests run, event streams at rest among them."""
        with self._changed:
            return sum(work.kind == "request" for work in self._work.values())

    def open_sessions(self) -> int:
        """How many connections are open, in all threads."""
        with self._changed:
            return sum(session.is_open() for session in self.sessions)

    def at_work(self) -> list[str]:
        """The names of everything that runs, event streams at rest among them."""
        with self._changed:
            return [str(work) for work in self._work.values()]


class Registry:
    """All bindings of this server process, by (environment, epoch)."""

    def __init__(self, on_idle: Callable[[Bound], None] = lambda bound: None) -> None:
        self._bounds: dict[tuple[str, int], Bound] = {}
        self._lock = threading.Lock()
        self._on_idle = on_idle

    def bind(self, identity: Identity, stores: Stores) -> Bound:
        """Bind; the same again changes nothing, other stores or another activation replace the binding."""
        key = (identity.env, identity.epoch)
        with self._lock:
            old = self._bounds.get(key)
            if old is not None and old.identity == identity and old.stores == stores and old.gate != "cut":
                return old
            bound = self._bounds[key] = Bound(identity, stores, self._on_idle)
        if old is not None:
            old.cut()
        return bound

    def cut_off(self, env: str, epoch: int) -> Bound | None:
        """End what runs for a binding now, and go on with a fresh binding to the same stores. Returns the old one."""
        with self._lock:
            old = self._bounds.get((env, epoch))
            if old is None:
                return None
            self._bounds[env, epoch] = Bound(old.identity, old.stores, self._on_idle)
        old.cut()
        return old

    def find(self, env: str, epoch: int) -> Bound | None:
        """The binding of an environment's epoch, if there is one."""
        with self._lock:
            return self._bounds.get((env, epoch))

    def of(self, env: str) -> list[Bound]:
        """All bindings of an environment: two while a successor is staged beside its predecessor."""
        with self._lock:
            return [bound for (name, _), bound in self._bounds.items() if name == env]

    def all(self) -> list[Bound]:
        """Every binding."""
        with self._lock:
            return list(self._bounds.values())

    def release(self, env: str, epoch: int) -> Bound | None:
        """Forget a binding, cut off whatever still runs for it, and return it."""
        with self._lock:
            bound = self._bounds.pop((env, epoch), None)
        if bound is not None:
            bound.cut()
        return bound
