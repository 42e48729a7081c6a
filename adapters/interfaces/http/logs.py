"""Log records as JSON lines, each with the environment that it is about and its generation, as far as it has one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from statefork.adapters.interfaces.cli.sentences import sentence
from statefork.engine.leases import current_lease
from statefork.journal.errors import JournalUnavailable
from statefork.journal.log import Journal
from statefork.replay.lineage import env_of

_environment: ContextVar[str] = ContextVar("statefork_log_environment", default="")
_events = logging.getLogger("statefork.events")


@contextmanager
def environment(name: str) -> Iterator[None]:
    """What is logged in the body is about this environment."""
    token = _environment.set(name)
    try:
        yield
    finally:
        _environment.reset(token)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``environment`` and ``generation`` None: it is about none, or about the engine as a whole."""

    at: str
    level: str
    logger: str
    message: str
    environment: str | None
    generation: int | None
    traceback: str | None = None


class JsonLines(logging.Formatter):
    """Formats records. ``generation_of``: the published generation of an environment; None where there is no such."""

    def __init__(self, generation_of: Callable[[str], int | None]) -> None:
        super().__init__()
        self._generation_of = generation_of

    def format(self, record: logging.LogRecord) -> str:
        lease = current_lease()
        env = getattr(record, "environment", "") or (lease.env if lease is not None else _environment.get())
        generation = getattr(record, "generation", None)
        line = Line(
            at=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            environment=env or None,
            generation=self._generation_of(env) if generation is None and env else generation,
            traceback=self.formatException(record.exc_info) if record.exc_info else None,
        )
        return msgspec.json.encode(line).decode()


@contextmanager
def json_lines(generation_of: Callable[[str], int | None], stream: TextIO | None = None) -> Iterator[None]:
    """Write what is logged in the body to standard error, from ``info`` on, and nothing else there."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(generation_of))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


async def tell_events(journal: Journal) -> None:
    """Log each event that is journaled from now on, until it is cancelled or the journal closed."""
    try:
        async with journal.subscribe(after=await journal.head()) as feed:
            async for recorded in feed:
                event = recorded.event
                about = {"environment": env_of(event), "generation": getattr(event, "generation", None)}
                _events.info("%s", sentence(event), extra={**about, "position": recorded.position})
    except JournalUnavailable:
        _events.warning("the journal can't be followed any more, so its events are not logged")
