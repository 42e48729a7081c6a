"""Re-executing an environment's trajectory on a fresh fork of its origin, through the same engine.

Three parts that know little of each other: the trajectory is read from the journal and split into a *script* and a
*recording*; the executor carries out the script and never has the recording; the judge holds the recording and is shown
each step after it was played.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx

from statefork.engine.errors import ActionFailed, ActionTimeout, InvalidAction, LeaseRevoked
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs
from statefork.journal.errors import BlobMissing
from statefork.journal.events import ReplayVerdict, activity_stream
from statefork.journal.log import Append, Journal
from statefork.journal.values import Json
from statefork.replay.lineage import Act, Given, Step, Trajectory, trajectory
from statefork.replay.rebuild import pasts_of
from statefork.replay.script import Cue, Do, Executor, Give, Played, Script, Skip
from statefork.replay.verdict import Judge, RolloutResult, describe

__all__ = ["RolloutResult", "rollout", "script_of"]

INPUT_TIMEOUT_S = 60.0
RETIRE_TIMEOUT_S = 30.0

_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
)  # belong to one connection, not to the request


def script_of(steps: tuple[Step, ...], blobs: Blobs) -> Script:
    """What to do, from what was done: bodies are fetched here, so that the executor needs no store to read from."""
    return Script(cues=tuple(_cue(step, blobs) for step in steps))


def _cue(step: Step, blobs: Blobs) -> Cue:
    if isinstance(step, Act):
        if step.opaque:
            return Skip(name=describe(step), why="a raw page was handed out; what was done with it is not recorded")
        return Do(number=step.number, action=step.action)
    return _give(step, blobs)


def _give(step: Given, blobs: Blobs) -> Cue:
    try:
        body = blobs.get(step.body) if step.body else b""
    except BlobMissing as error:
        return Skip(name=describe(step), why=f"its body is lost: {error.message}")
    return Give(after=step.after, method=step.method, url=step.url, headers=step.headers, body=body)


class EngineStage:
    """A forked environment of a running engine as the stage of a script."""

    def __init__(self, kernel: Kernel, env: str, client: httpx.AsyncClient) -> None:
        self._kernel = kernel
        self._env = env
        self._client = client

    async def act(self, action: Mapping[str, Json]) -> Played:
        """Through the kernel, like any agent's action."""
        try:
            result = await self._kernel.act(self._env, action)
        except (ActionFailed, InvalidAction) as error:
            return Played(outcome="failed", error=error.message)
        except (ActionTimeout, LeaseRevoked) as error:
            return Played(outcome="unknown", error=error.message)
        return Played(outcome=result.outcome, error=result.error, observation=result.observation)

    async def give(self, cue: Give) -> Played:
        """Through the environment's private base URL, as the request came."""
        base = await self._base_url(urlsplit(cue.url).hostname or "")
        if not base:
            return Played(outcome="skipped", error="the environment has no private door to this host")
        headers = {name: value for name, value in cue.headers.items() if name.lower() not in _CONNECTION_HEADERS}
        request = self._client.build_request(cue.method, _through(base, cue.url), headers=headers, content=cue.body)
        try:
            response = await self._client.send(request)
        except httpx.HTTPError as error:
            return Played(outcome="failed", error=f"{type(error).__name__}: {error}")
        return Played(outcome="ok", status=response.status_code)

    async def _base_url(self, host: str) -> str:
        await self._kernel.activate(self._env)  # does nothing where it serves already
        for binding in self._kernel.bindings(self._env).values():
            if binding.address.get("host") == host and binding.address.get("base_url"):
                return str(binding.address["base_url"])
        return ""


def _through(base: str, url: str) -> str:
    door, wanted = urlsplit(base), urlsplit(url)
    return urlunsplit((door.scheme, door.netloc, wanted.path or "/", wanted.query, ""))


async def rollout(
    kernel: Kernel,
    journal: Journal,
    blobs: Blobs,
    env: str,
    *,
    generation: int | None = None,
    actions: int | None = None,
    keep: bool = False,
) -> RolloutResult:
    """Re-execute what led to a moment of ``env`` (the present unless named) and compare step by step.

    The fork is retired afterwards unless ``keep``. A ``replay.verdict`` event in the environment's activity says what
    came of it. Raises UnknownRef, TransitionAborted, RuntimeDied.
    """
    began = time.monotonic()
    await journal.flush()
    recording = trajectory(await pasts_of(journal, env), env, generation=generation, actions=actions)
    script = script_of(recording.steps, blobs)
    child = await _fork(kernel, recording)
    try:
        judge = Judge(recording, blobs.get)
        async with httpx.AsyncClient(trust_env=False, timeout=INPUT_TIMEOUT_S) as client:
            executor = Executor(script, EngineStage(kernel, child, client))
            while (played := await executor.step()) is not None:
                if judge.note(played):
                    break
    finally:
        if not keep:
            with anyio.move_on_after(RETIRE_TIMEOUT_S, shield=True):
                await kernel.retire(child)
    result = RolloutResult(
        env=env,
        child=child,
        source=recording.origin,
        verdict=judge.verdict,
        actions=recording.actions,
        steps=len(recording.steps),
        compared=judge.compared,
        unverified=judge.unverified,
        divergence=judge.divergence,
        kept=keep,
        elapsed_ms=round((time.monotonic() - began) * 1000, 1),
    )
    await _record(journal, result)
    return result


async def _fork(kernel: Kernel, recording: Trajectory) -> str:
    """A fresh child of the origin, bound and ready."""
    number = 1
    while (name := f"{recording.env}-r{number}") in kernel.environments:
        number += 1
    (made,) = await kernel.fork(recording.origin, (name,))
    if made.error is not None:
        raise made.error
    return name


async def _record(journal: Journal, result: RolloutResult) -> None:
    verdict = ReplayVerdict(
        at=time.time(),
        env=result.env,
        child=result.child,
        source=result.source,
        actions=result.actions,
        verdict=result.verdict,
        first_divergence=result.first_divergence,
    )
    await journal.append(Append(stream=activity_stream(result.env), events=(verdict,)))
