"""What pages ask of hosts outside of their world: asked, recorded, and given back.

A contract names the origins that pages may reach; the gateway carries each exchange, and asks here for its answer. Of a
live agent that is the host's own, and it is recorded (unless determinism is off). While pages are brought back, it is
the last one that was recorded on the way to that moment, so that a fork shows what its source showed; only what was
never asked is asked then. An environment that is *closed* asks nothing: in a re-execution each question gets the answer
that it got when it was recorded, in the order of the questions, and one that was not recorded is refused and named.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Literal
from weakref import WeakKeyDictionary

import anyio
import msgspec
from anyio.to_thread import run_sync

from statefork.engine.contract import Contract
from statefork.engine.errors import NotRecorded
from statefork.engine.leases import Gate, Lease
from statefork.engine.ledger import Ledger
from statefork.engine.ports import Blobs, RequestLease
from statefork.journal.errors import BlobMissing
from statefork.journal.events import ExchangeRecorded
from statefork.journal.values import Moment

KEY = "external"
"""The option of a contract's resources that names what lies outside and may be reached."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Asking again changes nothing, so an answer may be given twice. A fresh browser asks what another had in its cache."""
MISSED_MAX = 100

Key = tuple[str, str, str]
Cover = Callable[[str], str]
Known = Mapping[Key, ExchangeRecorded]
Exchanging = Callable[[RequestLease, "Question", Callable[[], Awaitable["Answer"]]], Awaitable["Answer"]]
"""The answer to a question, asked of the host itself (the last argument does that) or given back."""
Recall = Callable[[Moment], Awaitable[Known]]
"""The last answer to each question that was asked on the way to a published generation."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a page asks. ``headers``: those that are recorded; ``body``: SHA-256, empty when there is none."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: str = ""

    @property
    def key(self) -> Key:
        """By what it is known again."""
        return self.method, self.url, self.body

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a host answered, as it came; with an ``error`` it gave none."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    error: str = ""


def key_of(event: ExchangeRecorded) -> Key:
    """By what a recorded question is known again."""
    return event.method, event.url, event.body


def covered(key: Key, cover: Cover) -> Key:
    """The same, where what a contract's masks match in the address does not count."""
    method, url, body = key
    return method, cover(url), body


class Rehearsal:
    """The answers of one re-execution: those that were recorded, handed out in the order of the questions."""

    def __init__(self, before: Known, asked: Iterable[ExchangeRecorded], cover: Cover = str) -> None:
        self._cover = cover
        self._last = {covered(key, cover): event for key, event in before.items()}
        self._waiting: dict[Key, deque[ExchangeRecorded]] = {}
        for event in asked:
            self._waiting.setdefault(covered(key_of(event), cover), deque()).append(event)
        self._now = 0  # number of the action that is being carried out, or was last
        self._missed: list[str] = []

    def cue(self, number: int) -> None:
        """This action begins."""
        self._now = number

    def find(self, question: Question) -> ExchangeRecorded | None:
        """The answer to give, and None, noted, where the question was not recorded.

        The next one that was recorded up to now; else, where asking twice is safe, the last one again; else one that
        was recorded for later, since timers of pages are not on time.
        """
        key = covered(question.key, self._cover)
        waiting = self._waiting.get(key)
        again = self._last.get(key) if question.method in SAFE_METHODS else None
        if waiting and (waiting[0].after_action <= self._now or again is None):
            self._last[key] = found = waiting.popleft()
            return found
        if again is None and len(self._missed) < MISSED_MAX:
            self._missed.append(str(question))
        return again

    def missed(self) -> tuple[str, ...]:
        """What was asked since this was called last and could not be answered."""
        missed, self._missed = self._missed, []
        return tuple(missed)

    def unasked(self) -> tuple[str, ...]:
        """What actions up to now had asked when it was recorded, and nobody asked again."""
        left = (event for waiting in self._waiting.values() for event in waiting)
        due = [event for event in left if event.cause == "action" and event.after_action <= self._now]
        return tuple(f"{event.method} {event.url} (action {event.after_action})" for event in due[:MISSED_MAX])


class Outside:
    """The ways of one engine's environments to hosts outside of their worlds."""

    def __init__(self, ledger: Ledger, contract: Contract, blobs: Blobs) -> None:
        self.recall: Recall | None = None  # who reads journals knows; set by who puts the engine together
        self._ledger = ledger
        self._blobs = blobs
        self._records = contract.determinism != "off"
        self._reaches = any(spec.options.get(KEY) for spec in contract.resources.values())
        self._cover: Cover = contract.masks.cover
        self._order = itertools.count(1)
        self._closed: dict[str, Rehearsal] = {}
        self._recalled: WeakKeyDictionary[Gate, Known] = WeakKeyDictionary()
        self._recalling = anyio.Lock()

    # --- who re-executes ------------------------------------------------------------------------------------------

    def close(self, env: str) -> None:
        """From here on nothing of the environment reaches out; it need not be there yet."""
        self._closed.setdefault(env, Rehearsal({}, ()))

    def open(self, env: str) -> None:
        """It reaches out again. Idempotent."""
        self._closed.pop(env, None)

    @contextmanager
    def closed(self, env: str) -> Iterator[None]:
        """In the body nothing of the environment reaches out; it need not be there yet."""
        self.close(env)
        try:
            yield
        finally:
            self.open(env)

    @asynccontextmanager
    async def rehearsing(self, env: str, start: Moment, asked: Iterable[ExchangeRecorded]) -> AsyncIterator[Rehearsal]:
        """As ``closed``, and what was recorded is given back: before a generation, and from there on."""
        with self.closed(env):
            before = await self.recall(start) if self.recall is not None and self._reaches else {}
            found = self._closed[env] = Rehearsal(before, asked, self._cover)
            yield found

    # --- the gateway ----------------------------------------------------------------------------------------------

    async def exchange(self, lease: RequestLease, question: Question, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to a question of a page. Raises NotRecorded where it is not known and must not be asked."""
        assert isinstance(lease, Lease), "it was granted here"
        note = self._noting(lease, question)
        env = lease.env
        found = await self._given(lease, question)
        if found is not None:
            answer = Answer(
                status=found.status,
                headers=found.answer_headers,
                body=await self._body(found, question),
                error=found.error,
            )
            note(answer, found.answer, True)
            return answer
        if env in self._closed:
            raise NotRecorded(
                f"{env} is being made again, and {question} was not asked when that was recorded",
                hint="" if self._records else "The contract says determinism = 'off', so nothing was",
                environment=env,
                url=question.url,
            )
        if not self._records:
            return await ask()
        try:
            answer = await ask()
            digest = await run_sync(self._blobs.put, answer.body) if answer.body else ""
        except anyio.get_cancelled_exc_class():
            note(Answer(error="it was cut short"), "", False)
            raise
        note(answer, digest, False)
        return answer

    async def _given(self, lease: Lease, question: Question) -> ExchangeRecorded | None:
        rehearsal = self._closed.get(lease.env)
        if _cause(lease) == "binding":
            known = await self._known(lease) if question.method in SAFE_METHODS else {}
            return known.get(covered(question.key, self._cover))
        return rehearsal.find(question) if rehearsal is not None else None

    async def _known(self, lease: Lease) -> Known:
        """What was answered before the moment whose pages are being brought back."""
        capsule = self._ledger.world.capsule(lease.env)
        moment = capsule.transition.source if capsule.transition is not None else None
        if moment is None and capsule.generation:
            moment = capsule.moment
        if moment is None or self.recall is None or not self._records:
            return {}
        async with self._recalling:
            known = self._recalled.get(lease.gate)
            if known is None:
                found = await self.recall(moment)
                known = {covered(key, self._cover): event for key, event in found.items()}
                self._recalled[lease.gate] = known
        return known

    async def _body(self, found: ExchangeRecorded, question: Question) -> bytes:
        try:
            return await run_sync(self._blobs.get, found.answer) if found.answer else b""
        except BlobMissing as error:
            raise NotRecorded(f"the answer to {question} is lost: {error.message}", url=question.url) from error

    def _noting(self, lease: Lease, question: Question) -> Callable[[Answer, str, bool], None]:
        """How the exchange is journaled once it has ended, with what held when it began."""
        asked, cause = next(self._order), _cause(lease)
        where = (lease.generation, lease.epoch, lease.activation, lease.id)
        after = self._ledger.world.capsule(lease.env).actions

        def note(answer: Answer, digest: str, given: bool) -> None:
            if not self._records:
                return
            generation, epoch, activation, number = where
            self._ledger.ride(
                lease.env,
                ExchangeRecorded(
                    at=self._ledger.clock.now(),
                    env=lease.env,
                    generation=generation,
                    epoch=epoch,
                    activation=activation,
                    lease=number,
                    asked=asked,
                    after_action=after,
                    cause=cause,
                    method=question.method,
                    url=question.url,
                    headers=question.headers,
                    body=question.body,
                    status=answer.status,
                    answer_headers=answer.headers,
                    answer=digest,
                    error=answer.error,
                    given=given,
                ),
            )

        return note


def _cause(lease: Lease) -> Literal["action", "binding", ""]:
    """What the page did it for: the nearest of those that caused it."""
    at: Lease | None = lease
    while at is not None:
        if at.kind == "action":
            return "action"
        if at.kind == "staging":
            return "binding"
        at = at.parent
    return ""
