"""The Python face without ``await``: for scripts, notebooks and loops that are not asynchronous.

::

    with statefork.sync.open_engine("shop", state="./state") as engine:
        env = engine.create("shop-1")
        seen = env.act(Goto("http://shop.example/"))

The same names, arguments, results and errors as :mod:`statefork.adapters.interfaces.python`. The engine runs in a
thread of its own, so this also works where an asyncio loop runs already, as in a notebook, and from several threads at
once. Ctrl-C cancels the call that it meets; leaving the ``with`` block parks every environment, as ever. After that,
calls raise EngineClosed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces import environment as waiting
from statefork.adapters.interfaces import python
from statefork.adapters.interfaces.blocking import Calls, Lent, LoopThread, Offer
from statefork.adapters.interfaces.environment import Score
from statefork.adapters.interfaces.lent_page import lend
from statefork.adapters.interfaces.python import DIFF_CHANGES_MAX
from statefork.adapters.interfaces.views import Cost, Seen
from statefork.adapters.interfaces.worlds import Progress
from statefork.engine.capsule import Capsule
from statefork.engine.collect import GcReport
from statefork.engine.errors import LeaseRevoked, ResourceFailed
from statefork.engine.ports import Change
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import Ref
from statefork.engine.settings import DrainPolicy, Settings
from statefork.journal.values import Binding, Json, Moment
from statefork.replay.rollout import RolloutResult

__all__ = ["Engine", "Environment", "Evaluation", "open_engine"]


class Evaluation:
    """What an evaluator may read: one environment, one generation, through the original interfaces.

    It is lent for one evaluation: after that, and when the lease is revoked, it raises LeaseRevoked.
    """

    def __init__(self, evaluation: waiting.Evaluation, calls: Calls) -> None:
        self._evaluation = evaluation
        self._calls = calls
        self.env: str = evaluation.env
        self.generation: int = evaluation.generation
        self.epoch: int = evaluation.epoch

    def query(self, resource: str, sql: str, parameters: tuple[Json, ...] = ()) -> list[dict[str, Json]]:
        """Rows of a read-only query on one of the environment's SQLite databases."""
        self._calls.check()
        return self._evaluation.query(resource, sql, parameters)

    def look(self) -> Seen:
        """What the agent would see now, without acting."""
        return self._calls.call(self._evaluation.look)

    def base_url(self, resource: str | None = None) -> str:
        """The environment's private base URL, for evaluators that use plain HTTP clients."""
        return self._calls.run(lambda: self._evaluation.base_url(resource))


class Environment:
    """A handle on one environment; cheap, and valid as long as its engine is open."""

    def __init__(self, environment: waiting.Environment, calls: Calls) -> None:
        self._environment = environment
        self._calls = calls
        self.name: str = environment.name

    def __repr__(self) -> str:
        return f"<Environment {self.name}>"

    @property
    def capsule(self) -> Capsule:
        """The environment's control state."""
        return self._calls.run(lambda: self._environment.capsule)

    @property
    def ref(self) -> Moment:
        """The published generation."""
        return self._calls.run(lambda: self._environment.ref)

    # --- acting and seeing --------------------------------------------------------------------------------------

    def act(self, action: msgspec.Struct | Mapping[str, Json], *, timeout_s: float | None = None) -> Seen:
        """Carry out one action and see what came of it.

        Raises InvalidAction (nothing was done), ActionFailed (the world said no; ``error.seen`` is what was seen),
        ActionTimeout and LeaseRevoked (outcome unknown), EnvironmentFrozen, RuntimeDied.
        """
        return self._calls.call(lambda: self._environment.act(action, timeout_s=timeout_s))

    def observe(self) -> Seen:
        """Look without acting."""
        return self._calls.call(self._environment.observe)

    @contextmanager
    def page(self) -> Iterator[Any]:
        """The native page, under one lease; what is done with it is recorded as one opaque action.

        A browser's has the methods of Playwright's synchronous interface. Callbacks (``page.on``, ``page.route``) run
        on Playwright's thread and get its asynchronous objects.
        """

        async def hold(offer: Offer[Any]) -> None:
            async with self._environment.page() as page:
                await offer(page)

        with Lent(self._calls, hold, _page_ended, join=False) as lent:
            yield lend(lent.value, lent.calls)

    def evaluate(self, check: Callable[[Evaluation], Score], *, name: str = "") -> float:
        """Score the environment: all that ``check`` reads is of one generation. Returns and journals the score.

        ``check`` runs in the calling thread, so that Ctrl-C and a debugger reach it.
        """
        label = name or getattr(check, "__name__", "check")

        async def hold(offer: Offer[waiting.Evaluation]) -> float:
            return await self._environment.evaluate(offer, name=label)

        with Lent(self._calls, hold, _evaluation_ended, join=True) as lent:
            lent.answer = check(Evaluation(lent.value, lent.calls))
        return lent.result

    # --- transitions --------------------------------------------------------------------------------------------

    # ``key``: as in Engine.create.

    def snapshot(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Publish the present as a new generation; the agent goes on undisturbed. Raises TransitionAborted."""
        return self._calls.call(lambda: self._environment.snapshot(drain=drain, key=key))

    def reset(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Go back to the origin, as a new generation. Raises TransitionAborted: then the old generation serves."""
        return self._calls.call(lambda: self._environment.reset(drain=drain, key=key))

    def restore(
        self, target: int | str | Ref | Moment, *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> Moment:
        """Go back to a generation (a number means one of this environment), as a new generation.

        Raises UnknownRef, TransitionAborted.
        """
        return self._calls.call(lambda: self._environment.restore(target, drain=drain, key=key))

    def recover(self) -> Moment:
        """Give up everything since the last published generation, whatever state it is in: that serves again.

        For what can be neither published nor replaced, such as a tail that fills its disk: a reset stages beside it.
        """
        return self._calls.call(self._environment.recover)

    def park(self, reason: str = "") -> None:
        """Seal and unbind: the environment costs only disk until it is used again."""
        self._calls.call(lambda: self._environment.park(reason))

    def activate(self) -> None:
        """Bind and probe now what would otherwise be bound at the next use."""
        self._calls.call(self._environment.activate)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Inside the body the environment does not give its slot to another."""
        pins = self._calls.run(self._environment.pinned)
        self._calls.run(pins.__enter__)
        try:
            yield
        finally:
            self._calls.run(lambda: pins.__exit__(None, None, None))

    def retire(self, *, key: str | None = None) -> None:
        """End the environment. Its history stays readable; generations that others build on survive."""
        self._calls.call(lambda: self._environment.retire(key=key))

    # --- where things are ---------------------------------------------------------------------------------------

    @property
    def bindings(self) -> Mapping[str, Binding]:
        """Where each resource is reachable now. Raises NotReady while the environment is parked."""
        return self._calls.run(lambda: dict(self._environment.bindings))

    def base_url(self, resource: str | None = None) -> str:
        """Private base URL of a site, for HTTP clients that know nothing of statefork: the first site unless named.

        Raises NotReady while the environment is parked or when it has no such site.
        """
        return self._calls.run(lambda: self._environment.base_url(resource))

    def private_bytes(self) -> dict[str, int]:
        """Bytes on disk that only this environment's head generation keeps, by resource."""
        return self._calls.call(self._environment.private_bytes)


class Engine:
    """One open state directory: environments are made, found, forked and replayed through it."""

    def __init__(self, engine: python.Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls
        self.state: Path = engine.state

    # --- environments -------------------------------------------------------------------------------------------

    @property
    def capsules(self) -> Mapping[str, Capsule]:
        """The control state of every environment now, retired ones included."""
        return self._calls.run(lambda: dict(self._engine.capsules))

    @property
    def recovered(self) -> RecoveryReport:
        """What opening this state directory found and repaired."""
        return self._calls.run(lambda: self._engine.recovered)

    def environments(self) -> list[Environment]:
        """Every environment that is not retired, in the order of their names."""
        return [self._held(environment) for environment in self._calls.run(self._engine.environments)]

    def environment(self, name: str) -> Environment:
        """The environment of that name. Raises UnknownEnvironment."""
        return self._held(self._calls.run(lambda: self._engine.environment(name)))

    def create(self, name: str, *, key: str | None = None) -> Environment:
        """A new environment over the contract's base: generation 1, bound and probed.

        ``key``, here and below: a text of the caller's choice. Who gives the same command again with the same key gets
        the answer of the first time, and nothing happens twice: also after a crash, and for ever. Raises KeyReused
        where it was given with another command.

        Raises EnvironmentExists, TransitionAborted (naming the component that failed).
        """
        return self._held(self._calls.call(lambda: self._engine.create(name, key=key)))

    def create_many(self, names: Sequence[str], *, key: str | None = None) -> list[Environment]:
        """Several at once; as many are bound as there are slots, the others when they are used.

        Each succeeds or fails on its own: PartialFailure carries the names of those that are there, and the others'
        errors. Raises LimitReached.
        """
        return [self._held(one) for one in self._calls.call(lambda: self._engine.create_many(names, key=key))]

    def reset_many(
        self, names: Sequence[str], *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> list[Moment]:
        """Several back to their origins at once; each succeeds or fails on its own (PartialFailure)."""
        return self._calls.call(lambda: self._engine.reset_many(names, drain=drain, key=key))

    def fork(
        self, ref: str | Ref | Moment, *, n: int = 1, names: Sequence[str] | None = None, key: str | None = None
    ) -> list[Environment]:
        """``n`` children that continue from a moment: the present (one snapshot for all), or a published generation.

        Children are called ``<parent>-f1`` and so on unless ``names`` says otherwise; as many are bound as there are
        slots, the others when they are used. Each succeeds or fails on its own: PartialFork carries the survivors'
        names and the others' errors. A repetition with the same ``key`` returns the same children, and makes those
        that had failed, of the same moment. Raises UnknownRef, LimitReached.
        """
        children = self._calls.call(lambda: self._engine.fork(ref, n=n, names=names, key=key))
        return [self._held(child) for child in children]

    def clone(self, ref: str | Ref | Moment, name: str, *, key: str | None = None) -> Environment:
        """A new environment whose origin (generation 1) is that moment. Raises UnknownRef, EnvironmentExists."""
        return self._held(self._calls.call(lambda: self._engine.clone(ref, name, key=key)))

    def moment(self, ref: str | Ref | Moment) -> Moment:
        """The published generation a ref names. Raises UnknownRef with the nearest one."""
        return self._calls.run(lambda: self._engine.moment(ref))

    def _held(self, environment: waiting.Environment) -> Environment:
        return Environment(environment, self._calls)

    # --- the past -----------------------------------------------------------------------------------------------

    def replay(self, name: str, *, keep: bool = False) -> RolloutResult:
        """Re-execute the environment's trajectory on a fresh fork of its origin and compare every observation.

        The fork is retired afterwards unless ``keep``. Raises UnknownEnvironment, TransitionAborted.
        """
        return self._calls.call(lambda: self._engine.replay(name, keep=keep))

    def diff(
        self, before: str | Ref | Moment, after: str | Ref | Moment, *, limit: int = DIFF_CHANGES_MAX
    ) -> dict[str, list[Change]]:
        """What differs between two published generations, by resource, at most ``limit`` changes each."""
        return self._calls.call(lambda: self._engine.diff(before, after, limit=limit))

    # --- cost and upkeep ----------------------------------------------------------------------------------------

    def gc(self) -> GcReport:
        """Remove what no environment reaches: orphans, and sealed versions of no generation."""
        return self._calls.call(self._engine.gc)

    def cost(self) -> Cost:
        """Memory of the shared runtimes (PSS) and each environment's private bytes on disk."""
        return self._calls.call(self._engine.cost)


@contextmanager
def open_engine(
    contract: str | Path,
    *,
    state: str | Path = "./state",
    slots: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Iterator[Engine]:
    """Open a state directory for a contract (a path, or the name of a packaged world) and serve it.

    Bases are built and runtimes started as needed; what a crash left behind is settled first (``engine.recovered``).
    Leaving parks every environment, also after Ctrl-C; a second Ctrl-C while that lasts is raised afterwards, a third
    one leaves at once what the next opening will recover. ``progress`` is called with a fraction and a sentence while
    bases are built, in another thread. Raises ContractError, MissingDependency, StateLocked, JournalCorrupt.
    """

    def opening() -> AbstractAsyncContextManager[python.Engine]:
        return python.open_engine(contract, state=state, slots=slots, settings=settings, progress=progress)

    loop = LoopThread(opening, "statefork engine")
    try:
        calls, engine = loop.open()
        yield Engine(engine, calls)
    finally:
        loop.close()


def _page_ended() -> ResourceFailed:
    return ResourceFailed("this page was lent for one action, which has ended", hint="Ask for it again")


def _evaluation_ended() -> LeaseRevoked:
    return LeaseRevoked("this evaluation has ended", hint="Evaluate again")
