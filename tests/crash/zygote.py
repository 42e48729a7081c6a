"""A warm process that forks an engine for every kill: importing takes longer than most of these engines live.

``python -m tests.crash.zygote`` reads requests from its input, a JSON object a line, forks a child for each before
any event loop has ever run, and answers with what the child said and how it ended.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import sqlite_utils  # noqa: F401 - so that no child has to import it
import trio  # noqa: F401 - the same
from anyio._backends import _trio  # noqa: F401 - the same

from statefork.adapters.interfaces import assembly, registry
from statefork.adapters.interfaces.assembly import Assembled, assemble
from statefork.adapters.resources import files, sqlite  # noqa: F401 - the same
from statefork.engine import kernel
from statefork.engine.contract import Contract
from statefork.engine.ports import Resource, Services
from statefork.engine.settings import DrainPolicy, Settings
from statefork.engine.transitions import Phase, step, tag
from statefork.journal.errors import JournalError
from statefork.journal.store import JOURNAL_NAME, open_state
from tests.crash import examine
from tests.crash.boundaries import Boundaries
from tests.crash.hands import At, Facts, Hands
from tests.crash.scenarios import SCENARIOS, Scenario

LATE_S = 60
SETTINGS = Settings(drain_at_end=DrainPolicy(deadline_s=0.05, then="revoke"), discard_s=10.0, settle_s=1.0)


class Request(msgspec.Struct, kw_only=True):
    """What a child is to do, and where it is to be killed."""

    do: str  # the name of one of Child's methods
    scenario: str
    contract: str
    state: str
    facts: Facts = msgspec.field(default_factory=Facts)
    kill: str = ""


class Answer(msgspec.Struct, kw_only=True):
    """What a child said, and how it ended: an exit status, or minus the signal's number."""

    said: list[dict[str, Any]]
    status: int


class Child:
    """One forked process."""

    def __init__(self, request: Request, pipe: int) -> None:
        self.request = request
        self.pipe = pipe
        self.state = Path(request.state)
        self.scenario: Scenario = SCENARIOS[request.scenario]

    def say(self, **what: Any) -> None:
        """One write, so that it arrives whole or not at all."""
        os.write(self.pipe, json.dumps(what).encode() + b"\n")

    def open(self) -> AbstractAsyncContextManager[Assembled]:
        """An engine, as ``open_engine`` makes it."""
        return assemble(self.request.contract, state=self.state, settings=SETTINGS, progress=None)

    def hands(self, assembled: Assembled, at: At = lambda name: None) -> Hands:
        """Somebody who uses it."""
        return Hands(assembled, self.request.facts, self.pipe, at)

    async def prepare(self) -> None:
        """The state with which each kill of a scenario begins."""
        async with self.open() as assembled:
            hands = self.hands(assembled)
            await self.scenario.prepare(hands)
            hands.will_close()
        capsules = (await examine.fold(self.state)).environments
        async with open_state(self.state, write=True) as opened:
            self.say(since=await opened.journal.head())
            await self.scenario.craft(opened.journal, capsules, lambda moment: self.say(moment=moment, holds=[]))

    async def run(self) -> None:
        """The scenario, until it is over or the process is killed."""
        boundaries = self._watch(fail=True)
        phases = self.scenario.phases
        boundaries.armed = "opening" in phases
        async with self.open() as assembled:
            boundaries.armed = False
            hands = self.hands(assembled, boundaries.at)
            await self.scenario.before(hands)
            if "opening" not in phases:
                self.say(since=await assembled.journal.flush())
            boundaries.armed = "command" in phases
            hands.command = "the command"
            await self.scenario.command(hands)
            boundaries.armed = False
            if "closing" not in phases:
                self.say(until=await assembled.journal.flush())
            hands.will_close()
            boundaries.armed = "closing" in phases
        boundaries.armed = False
        self.say(passed=boundaries.passed)

    async def reopen(self) -> None:
        """Only open, with all boundaries counted, and close."""
        boundaries = self._watch(fail=False)
        boundaries.armed = True
        async with self.open():
            boundaries.armed = False
        self.say(passed=boundaries.passed)

    async def rows(self) -> None:
        """The rows of the transition table that the journal's events passed, each with its position."""
        phases: dict[str, Phase] = {}
        async with open_state(self.state, write=False) as opened:
            async for recorded in opened.journal.read():
                event = recorded.event
                if recorded.stream.startswith("env/"):
                    before = phases.get(recorded.stream, Phase.VOID)
                    phases[recorded.stream] = step(before, event)
                    op = getattr(event, "op", "") if not hasattr(event, "held") or hasattr(event, "op") else ""
                    self.say(at=recorded.position, row=[before.value, tag(type(event)), op])

    async def examine(self) -> None:
        """What the killed engine left; then a new one, the command again, and a third one that finds nothing to do."""
        state, facts = self.state, self.request.facts
        before = await self._left()
        async with self.open() as assembled:
            await examine.opened_well(assembled, before, facts)
            self.say(summary=examine.summary(assembled.kernel))
            hands = self.hands(assembled)
            hands.command = "the command"
            await self.scenario.repeat(hands)
            hands.command = ""
            await examine.heads(assembled.kernel, hands)
            examine.contents(assembled.kernel, state, facts)
            await hands.use_all()
            examine.tidy(state, live=examine.serves(assembled.kernel))
            hands.will_close()
        examine.tidy(state)
        examine.audited(state)
        async with self.open() as assembled:
            assert assembled.kernel.recovered.clean, assembled.kernel.recovered
            examine.contents(assembled.kernel, state, facts)
        examine.tidy(state)

    async def _left(self) -> examine.World:
        """The fold of what was left, which must pass the audit as it is."""
        if not (self.state / JOURNAL_NAME).exists():
            return examine.World()
        try:
            before = await examine.fold(self.state)
        except JournalError:  # killed before the journal had its first event
            return examine.World()
        examine.audited(self.state)
        return before

    def _watch(self, *, fail: bool) -> Boundaries:
        failing = self.scenario.fail if fail else ()
        boundaries = Boundaries(self.state, kill=self.request.kill, fail=failing)
        make = assembly.make_resources

        def made(contract: Contract, services: Services) -> dict[str, Resource]:
            resources = make(contract, services)
            boundaries.watch_resources(resources)
            return resources

        assembly.make_resources = made
        boundaries.watch_journal()
        boundaries.watch_disk()
        return boundaries


def fork(work: Callable[[int], None]) -> tuple[bytes, int]:
    """Run something in a child; everything it wrote to its pipe, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(LATE_S)  # SIGALRM ends it where it hangs
        try:
            work(writing)
        except BaseException:  # noqa: BLE001 - told to whoever asked
            os.write(writing, json.dumps({"error": traceback.format_exc()[-20_000:]}).encode() + b"\n")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said, os.waitstatus_to_exitcode(status)


def answer(request: Request) -> Answer:
    """Fork a child for a request."""

    def work(pipe: int) -> None:
        anyio.run(getattr(Child(request, pipe), request.do), backend="trio")

    said, status = fork(work)
    lines = [line for line in said.split(b"\n") if line]
    return Answer(said=[json.loads(line) for line in lines], status=status)


def adapt() -> None:
    """In this process alone: who only imports the module keeps the registry as it is."""
    registry.BUILT_IN["hand"] = "tests.crash.hand"
    # What children would read of installed packages again and again.
    registry.entry_points = functools.cache(registry.entry_points)
    kernel.version = functools.cache(kernel.version)  # type: ignore[attr-defined]  # it is imported there


def main() -> None:
    """Serve until the input ends."""
    adapt()
    registry.adapter_names()
    kernel.version("statefork")
    gc.collect()
    gc.freeze()  # so that children need no copies of the memory that they only look at
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        sys.stdout.buffer.write(msgspec.json.encode(answer(request)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
