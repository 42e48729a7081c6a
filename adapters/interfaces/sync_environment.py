"""One environment, and what an evaluator may read of it, without ``await``: the face of :mod:`statefork.sync`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from statefork.adapters.interfaces import environment as waiting
from statefork.adapters.interfaces.blocking import Calls, Lent, Offer
from statefork.adapters.interfaces.environment import Score
from statefork.adapters.interfaces.lent_page import lend
from statefork.adapters.interfaces.views import Seen
from statefork.engine.capsule import Capsule
from statefork.engine.errors import LeaseRevoked, ResourceFailed
from statefork.engine.refs import Ref
from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Binding, Json, Moment, Pruned
from statefork.replay.stage import Progress, nobody_watches
from statefork.replay.verdict import RolloutResult


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
        """Rows of one read-only statement on a database of the environment; ``?`` is a parameter."""
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

    @property
    def made(self) -> RolloutResult | None:
        """How the moment was made that it continues from, where nobody had sealed that: see ``Engine.fork``."""
        return self._environment.made

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

    def keep_snapshots(self, policy: str | None, *, key: str | None = None) -> str:
        """Publish the present by itself after actions, until something else is chosen; None: as the contract says.

        Returns what holds now, as below.
        """
        return self._calls.call(lambda: self._environment.keep_snapshots(policy, key=key))

    def keep_generations(self, policy: str | None, *, key: str | None = None) -> str:
        """Let generations go that can be made again, until something else is chosen; None: as the contract says."""
        return self._calls.call(lambda: self._environment.keep_generations(policy, key=key))

    def prune(self, policy: str | None = None, *, only_say: bool = False) -> tuple[Pruned, ...]:
        """Let them go now, and free what only they held; ``only_say``: tell which would go."""
        return self._calls.call(lambda: self._environment.prune(policy, only_say=only_say))

    def reset(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Go back to the origin, as a new generation. Raises TransitionAborted: then the old generation serves."""
        return self._calls.call(lambda: self._environment.reset(drain=drain, key=key))

    def restore(
        self,
        target: int | str | Ref | Moment,
        *,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        progress: Progress = nobody_watches,
    ) -> Moment:
        """Go back to a generation (a number means one of this environment), as a new generation.

        ``progress`` is called in the engine's thread. Raises UnknownRef, TransitionAborted.
        """
        return self._calls.call(lambda: self._environment.restore(target, drain=drain, key=key, progress=progress))

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


def _page_ended() -> ResourceFailed:
    return ResourceFailed("this page was lent for one action, which has ended", hint="Ask for it again")


def _evaluation_ended() -> LeaseRevoked:
    return LeaseRevoked("this evaluation has ended", hint="Evaluate again")
