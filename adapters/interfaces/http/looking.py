"""What is asked of the journal and its stores, beside the verbs: environments, moments, the log, blobs, an audit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from statefork.adapters.interfaces.auditing import audit
from statefork.adapters.interfaces.control.protocol import AtLeastOne, Count
from statefork.adapters.interfaces.control.verbs import described
from statefork.adapters.interfaces.http.asking import asked, asked_in_query
from statefork.adapters.interfaces.http.replies import json_response
from statefork.adapters.interfaces.moments import (
    action_plain,
    generation_plain,
    last_action,
    published,
    published_plain,
)
from statefork.adapters.interfaces.python import Engine
from statefork.engine.refs import parse_ref
from statefork.journal.errors import BlobMissing
from statefork.journal.events import activity_stream, control_stream
from statefork.journal.log import Reader, Recorded
from statefork.journal.values import Moment
from statefork.replay.lineage import env_of

LOG_EVENTS_MAX = 1000
"""How many events one answer has at most."""


class AuditAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``stores``: also whether blobs and sealed versions are there. ``world``: all that lies in the state directory."""

    stores: bool = True
    world: bool = False


class LogAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events behind a position, at most ``limit``; of one environment, if it is named."""

    env: str = ""
    after: Count = 0
    limit: AtLeastOne = 100


async def of_environment(journal: Reader, env: str, after: int) -> AsyncIterator[Recorded]:
    """Events behind a position that are about one environment; all of them for an empty name."""
    async for recorded in journal.read(after=after):
        if is_about(recorded, env):
            yield recorded


def is_about(recorded: Recorded, env: str) -> bool:
    """Whether an event is about an environment; about any, for an empty name."""
    return not env or recorded.stream in (control_stream(env), activity_stream(env)) or env_of(recorded.event) == env


class Looking:
    """The endpoints."""

    def __init__(self, engine: Engine, journal: str | None) -> None:
        self._engine = engine
        self._journal = journal  # its address, where it is in a database

    async def environments(self, request: Request) -> Response:
        """Every environment that is not retired."""
        return json_response({"environments": [described(env) for env in self._engine.environments()]})

    async def moment(self, request: Request) -> Response:
        """A generation, an action or an environment, by its ref. Raises UnknownRef."""
        engine, named = self._engine, parse_ref(request.path_params["ref"])
        await engine.kernel.find(named.env)
        if named.is_now:
            return json_response(described(engine.environment(named.env)))
        if named.generation is None or named.plus:
            step, witnessed = await last_action(engine.journal, named)
            seen = witnessed.observation
            return json_response(action_plain(step, witnessed, await self._text(seen.snapshot) if seen else ""))
        moment = Moment(env=named.env, generation=named.generation)
        world = engine.kernel.world
        generation = world.generation(moment)
        event, held = await published(engine.journal, moment)
        contract = world.contracts[event.contract].name if event.contract in world.contracts else ""
        return json_response({**generation_plain(generation), **published_plain(event, held, contract)})

    async def _text(self, digest: str) -> str:
        try:
            return (await anyio.to_thread.run_sync(self._engine.blobs.get, digest)).decode() if digest else ""
        except BlobMissing:
            return ""

    async def log(self, request: Request) -> Response:
        """Events, a page of them. The position in the answer goes on behind what was looked at."""
        wanted = asked_in_query(request, LogAsked)
        most = max(1, min(wanted.limit, LOG_EVENTS_MAX))
        found: list[Any] = []
        behind = max(wanted.after, await self._engine.journal.head())
        async for recorded in of_environment(self._engine.journal, wanted.env, wanted.after):
            found.append(msgspec.to_builtins(recorded))
            if len(found) == most:
                behind = recorded.position
                break
            behind = max(behind, recorded.position)
        return json_response({"events": found, "next": behind})

    async def blob(self, request: Request) -> Response:
        """The bytes of a blob. Raises BlobMissing."""
        data = await anyio.to_thread.run_sync(self._engine.blobs.get, request.path_params["digest"])
        return Response(data, media_type="application/octet-stream")

    async def audit(self, request: Request) -> Response:
        """The report of an audit that is made now, beside the engine."""
        wanted, engine = await asked(request, AuditAsked), self._engine
        await engine.journal.flush()
        look = partial(audit, engine.state, stores=wanted.stores, world=wanted.world, journal=self._journal)
        report = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        return json_response(report.as_json())

    async def health(self, request: Request) -> Response:
        """That it answers."""
        return json_response({"status": "healthy"})
