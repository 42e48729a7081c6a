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

from statefork.adapters.interfaces import environment as waiting
from statefork.adapters.interfaces import python
from statefork.adapters.interfaces.bisecting import Bisection, Span, Watch, answer_of, nobody_watches, settled
from statefork.adapters.interfaces.blocking import Calls, LoopThread
from statefork.adapters.interfaces.carrying import Exported, Imported
from statefork.adapters.interfaces.carrying import nobody_watches as nobody_looks
from statefork.adapters.interfaces.python import DIFF_CHANGES_MAX
from statefork.adapters.interfaces.sync_environment import Environment, Evaluation
from statefork.adapters.interfaces.views import Cost
from statefork.adapters.interfaces.worlds import Progress
from statefork.engine.capsule import Capsule
from statefork.engine.collect import Counted, GcReport, nobody_counts
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import Ref
from statefork.engine.settings import DrainPolicy, Settings
from statefork.journal.values import Json, Moment
from statefork.replay.blame import Blame
from statefork.replay.differing import Difference
from statefork.replay.rollout import RolloutResult
from statefork.replay.search import Answer, first_failing
from statefork.replay.stage import Progress as Played
from statefork.replay.stage import nobody_watches as nobody_plays
from statefork.replay.steps import OnStep, nobody_asks

__all__ = ["Engine", "Environment", "Evaluation", "open_engine"]

Check = Callable[[Environment], bool | None]
"""Whether it holds in an environment that stands at one moment; None: that can't be said there."""


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

    @property
    def place(self) -> str:
        """The name of this state directory in a journal that several may share; empty where the journal is its own."""
        return self._calls.run(lambda: self._engine.place)

    def environments(self) -> list[Environment]:
        """Every environment that is not retired, in the order of their names."""
        return [self._held(environment) for environment in self._calls.run(self._engine.environments)]

    def environment(self, name: str) -> Environment:
        """The environment of that name. Raises UnknownEnvironment."""
        return self._held(self._calls.run(lambda: self._engine.environment(name)))

    def find(self, name: str) -> Environment:
        """The same. Where several engines share the journal it is asked whose an unknown name is.

        Raises UnknownEnvironment, and EnvironmentElsewhere where it lives in another state directory.
        """
        return self._held(self._calls.call(lambda: self._engine.find(name)))

    def create(
        self, name: str, *, key: str | None = None, snapshots: str | None = None, retention: str | None = None
    ) -> Environment:
        """A new environment over the contract's base: generation 1, bound and probed.

        ``key``, here and below: a text of the caller's choice. Who gives the same command again with the same key gets
        the answer of the first time, and nothing happens twice: also after a crash, and for ever. Raises KeyReused
        where it was given with another command.

        ``snapshots``, ``retention``: as in Environment.keep_snapshots and keep_generations, from the beginning.

        Raises EnvironmentExists, ContractError for a text that is no policy, TransitionAborted (naming the component
        that failed).
        """
        made = self._calls.call(lambda: self._engine.create(name, key=key, snapshots=snapshots, retention=retention))
        return self._held(made)

    def create_many(
        self,
        names: Sequence[str],
        *,
        key: str | None = None,
        snapshots: str | None = None,
        retention: str | None = None,
        count: Counted = nobody_counts,
    ) -> list[Environment]:
        """Several at once; as many are bound as there are slots, the others when they are used.

        ``count``, here and below, is called in the engine's thread with how many are done, and of how many. Each
        succeeds or fails on its own: PartialFailure carries the names of those that are there, and the others' errors.
        Raises LimitReached.
        """
        made = self._calls.call(
            lambda: self._engine.create_many(names, key=key, snapshots=snapshots, retention=retention, count=count)
        )
        return [self._held(one) for one in made]

    def reset_many(
        self,
        names: Sequence[str],
        *,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        count: Counted = nobody_counts,
    ) -> list[Moment]:
        """Several back to their origins at once; each succeeds or fails on its own (PartialFailure)."""
        return self._calls.call(lambda: self._engine.reset_many(names, drain=drain, key=key, count=count))

    def fork(
        self,
        ref: str | Ref | Moment,
        *,
        n: int = 1,
        names: Sequence[str] | None = None,
        key: str | None = None,
        progress: Played = nobody_plays,
        count: Counted = nobody_counts,
    ) -> list[Environment]:
        """``n`` children that continue from a moment: the present (one snapshot for all), or a published generation.

        Children are called ``<parent>-f1`` and so on unless ``names`` says otherwise; as many are bound as there are
        slots, the others when they are used. Each succeeds or fails on its own: PartialFork carries the survivors'
        names and the others' errors. A repetition with the same ``key`` returns the same children, and makes those
        that had failed, of the same moment. ``progress`` is called in the engine's thread. Raises UnknownRef,
        LimitReached; Diverged where a moment of the past that nobody sealed could not be made again as it was.
        """
        wanted: Any = {"n": n, "names": names, "key": key, "progress": progress, "count": count}
        children = self._calls.call(lambda: self._engine.fork(ref, **wanted))
        return [self._held(child) for child in children]

    def lend(self, ref: str | Ref | Moment, what_for: str, *, progress: Played = nobody_plays) -> Environment:
        """A child of a moment for the use of one command, which gives it back (:meth:`take_back`) at its end.

        Where that is cut short, the next opening retires it. Raises UnknownRef, Diverged.
        """
        return self._held(self._calls.call(lambda: self._engine.lend(ref, what_for, progress=progress)))

    def take_back(self, name: str) -> None:
        """Retire what was lent. Idempotent."""
        self._calls.call(lambda: self._engine.take_back(name))

    def clone(
        self, ref: str | Ref | Moment, name: str, *, key: str | None = None, progress: Played = nobody_plays
    ) -> Environment:
        """A new environment whose origin (generation 1) is that moment. Raises UnknownRef, EnvironmentExists."""
        return self._held(self._calls.call(lambda: self._engine.clone(ref, name, key=key, progress=progress)))

    def moment(self, ref: str | Ref | Moment) -> Moment:
        """The published generation a ref names. Raises UnknownRef with the nearest one."""
        return self._calls.run(lambda: self._engine.moment(ref))

    def _held(self, environment: waiting.Environment) -> Environment:
        return Environment(environment, self._calls)

    # --- the past -----------------------------------------------------------------------------------------------

    def replay(
        self,
        to: str | Ref | Moment,
        *,
        start: str | Ref | Moment | None = None,
        keep: bool = False,
        states: bool = True,
        progress: Played = nobody_plays,
        on_step: OnStep = nobody_asks,
    ) -> RolloutResult:
        """Re-execute what led to a moment on a fresh fork of its origin and compare every observation.

        The fork is retired afterwards unless ``keep``. ``progress`` and ``on_step`` are called in the engine's thread,
        from which the engine takes no calls. Raises UnknownEnvironment, UnknownRef, TransitionAborted.
        """
        wanted: Any = {"start": start, "keep": keep, "states": states, "progress": progress, "on_step": on_step}
        return self._calls.call(lambda: self._engine.replay(to, **wanted))

    def bisect(
        self, good: str | Ref | Moment, bad: str | Ref | Moment, check: Check, *, watch: Watch = nobody_watches
    ) -> Bisection:
        """The first action after which ``check`` fails, of those between two moments of one history.

        ``check`` gets an environment of its own, and runs in the calling thread; so does ``watch``. Raises UnknownRef,
        NothingBetween, Diverged.
        """
        between = self.between(good, bad)

        async def ask(number: int) -> Answer:
            ref = between.ref(number)
            (child,) = self.fork(ref)
            try:
                answer = answer_of(check(child))
            finally:
                child.retire()
            watch(ref, answer.value)
            return answer

        return between.told(settled(first_failing(between.low, between.high, ask)))

    def between(self, good: str | Ref | Moment, bad: str | Ref | Moment) -> Span:
        """The moments of one history between two ends, by number. Raises UnknownRef."""
        return self._calls.run(lambda: self._engine.between(good, bad))

    def diff(
        self,
        before: str | Ref | Moment,
        after: str | Ref | Moment,
        *,
        limit: int = DIFF_CHANGES_MAX,
        look: bool = False,
    ) -> Difference:
        """What differs between any two moments of environments of one contract: see :meth:`statefork.Engine.diff`.

        Raises UnknownRef, ForeignHandle (of two contracts), Diverged.
        """
        return self._calls.call(lambda: self._engine.diff(before, after, limit=limit, look=look))

    def blame(
        self,
        ref: str | Ref | Moment,
        *,
        row: tuple[str, Json] | None = None,
        file: str | None = None,
        item: str | None = None,
        resource: str | None = None,
        thorough: bool = False,
        progress: Played = nobody_plays,
    ) -> Blame:
        """The action that last changed one thing on the way to a moment: see :meth:`statefork.Engine.blame`."""
        wanted: Any = {"row": row, "file": file, "item": item, "resource": resource, "thorough": thorough}
        return self._calls.call(lambda: self._engine.blame(ref, progress=progress, **wanted))

    def export(
        self,
        ref: str | Ref | Moment,
        path: str | Path,
        progress: Progress = nobody_looks,
        *,
        ends: bool = False,
        base: bool = True,
        secrets: bool = False,
    ) -> Exported:
        """Write a moment, and all that led to it, into one file. ``progress`` is called in the engine's thread."""
        return self._calls.call(lambda: self._engine.export(ref, path, progress, ends=ends, base=base, secrets=secrets))

    def import_(self, path: str | Path, name: str | None = None, progress: Progress = nobody_looks) -> Imported:
        """A new environment with the content and the past that a file holds; parked until it is used."""
        return self._calls.call(lambda: self._engine.import_(path, name, progress))

    # --- cost and upkeep ----------------------------------------------------------------------------------------

    def mark(self, ref: str | Ref | Moment, text: str) -> Moment:
        """Call a published generation something, which keeps it from being pruned; an empty text takes that away."""
        return self._calls.call(lambda: self._engine.mark(ref, text))

    def gc(self, count: Counted = nobody_counts) -> GcReport:
        """Remove what no environment reaches: orphans, and sealed versions of no generation."""
        return self._calls.call(lambda: self._engine.gc(count))

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
    journal: str | None = None,
    progress: Progress | None = None,
) -> Iterator[Engine]:
    """Open a state directory for a contract (a path, or the name of a packaged world) and serve it.

    Bases are built and runtimes started as needed; what a crash left behind is settled first (``engine.recovered``).
    Leaving parks every environment, also after Ctrl-C; a second Ctrl-C while that lasts is raised afterwards, a third
    one leaves at once what the next opening will recover. ``journal`` is as for :func:`statefork.open_engine`, and
    ``progress`` is called with a fraction and a sentence while
    bases are built, in another thread. Raises ContractError, MissingDependency, StateLocked, JournalCorrupt.
    """

    def opening() -> AbstractAsyncContextManager[python.Engine]:
        return python.open_engine(
            contract, state=state, slots=slots, settings=settings, journal=journal, progress=progress
        )

    loop = LoopThread(opening, "statefork engine")
    try:
        calls, engine = loop.open()
        yield Engine(engine, calls)
    finally:
        loop.close()
