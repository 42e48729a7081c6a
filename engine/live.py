"""What the engine holds beside the fold: the contexts that serve, and the account of one running transition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from statefork.engine.commands import Begin
from statefork.engine.drain import Drain
from statefork.engine.staging import Context, Staging
from statefork.journal.values import Sealed


class Live:
    """What an environment has beside its capsule: its place in the order of transitions, and its contexts."""

    __slots__ = ("activation", "context", "doubt", "lock", "staged")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.context: Context | None = None  # what serves
        self.staged: Context | None = None  # what is being staged beside it
        self.activation = 0  # the last number given to a context, published or not: tickets never fit twice
        self.doubt = False  # an append is in doubt: frozen until the state directory is reopened


class Timer:
    """Milliseconds per phase of one transition."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.ms: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = self._monotonic()
        try:
            yield
        finally:
            self.ms[phase] = round((self._monotonic() - began) * 1000, 3)


class Run:
    """One transition of a serving environment, while it runs. Whatever it has done so far can be given back."""

    def __init__(self, live: Live, context: Context, begin: Begin, drain: Drain, timer: Timer) -> None:
        self.live = live
        self.context = context
        self.begin = begin
        self.drain = drain
        self.timer = timer
        self.quiesced: set[str] = set()  # quiesce was at least begun
        self.sealed: dict[str, Sealed] = {}
        self.staging: Staging | None = None
