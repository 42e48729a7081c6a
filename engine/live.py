"""What the engine holds beside the fold: the contexts that serve, and the account of one running transition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from statefork.engine.capsule import Phase
from statefork.engine.commands import Begin
from statefork.engine.drain import Drain
from statefork.engine.staging import Context, Staging
from statefork.engine.world import World
from statefork.journal.values import Sealed


class Live:
    """What an environment has beside its capsule: its place in the order of transitions, and its contexts."""

    __slots__ = ("activation", "context", "doubt", "lock", "staged", "users")

    def __init__(self) -> None:
        self.users = 0  # those who hold the lock or wait for it, or are about to
        self.lock = anyio.Lock()
        self.context: Context | None = None  # what serves
        self.staged: Context | None = None  # what is being staged beside it
        self.activation = 0  # the last number given to a context, published or not: tickets never fit twice
        self.doubt: Doubt | None = None  # an append is in doubt: frozen until the journal says what became of it


class Doubt:
    """What was under way when the journal gave no answer: given back, or finished, once it does."""

    def __init__(self, run: Run | None = None, staging: Staging | None = None) -> None:
        self.run = run
        self.staging = staging


class Lives(dict[str, Live]):
    """The live records of those environments that are not simply at rest."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._unfounded = 0  # the last activation of those that were never founded: their names may be founded yet

    @contextmanager
    def held(self, env: str) -> Iterator[Live]:
        """The environment's record: in the body it is the only one, and afterwards it is kept if it says something."""
        live = self.get(env)
        if live is None:
            live = self[env] = Live()
        live.users += 1
        try:
            yield live
        finally:
            live.users -= 1
            if not live.users and live.context is None and live.staged is None and not live.doubt:
                self._let_go(env, live)

    def _let_go(self, env: str, live: Live) -> None:
        capsule = self._world.environments.get(env)
        if capsule is None:
            self._unfounded = max(self._unfounded, live.activation)
        elif live.activation > capsule.activation and capsule.phase is not Phase.RETIRED:
            return  # a binding failed, and only this record has its number
        del self[env]

    def activation_before(self, env: str) -> int:
        """The last activation that is known of an environment without its live record."""
        capsule = self._world.capsule(env)
        return capsule.activation if capsule.generations else self._unfounded


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
