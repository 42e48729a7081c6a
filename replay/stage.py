"""A forked environment of a running engine as the stage of a script, and playing a recording on it.

Three parts that know little of each other: what is recorded is split into a *script* and a *recording*; the executor
carries out the script and never has the recording; the judge holds the recording and is shown each step after it was
played.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import httpx
from anyio.to_thread import run_sync
from msgspec.structs import replace

from statefork.engine.errors import ActionFailed, ActionTimeout, InvalidAction, LeaseRevoked
from statefork.engine.kernel import Kernel
from statefork.engine.picturing import picture
from statefork.engine.ports import Blobs
from statefork.journal.errors import BlobMissing, StateforkError
from statefork.journal.values import Conditions, Json
from statefork.replay.lineage import Act, Given, Step, Trajectory, number_of
from statefork.replay.script import LEFT_OUT, Cue, Do, Executor, Give, Played, Script, Skip
from statefork.replay.steps import OnStep, StepResult, goes_on, nobody_asks
from statefork.replay.verdict import Judge, describe

INPUT_TIMEOUT_S = 60.0
Progress = Callable[[int, int], None]
"""Called with the number of steps that were played, and of all."""

_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
)  # belong to one connection, not to the request


def nobody_watches(_played: int, _of: int) -> None:
    """Tells nobody."""


Halt = Callable[[Played], Awaitable[bool]]
"""Awaited after each step that went as recorded, or could not be done again; True: that is enough."""


async def play(
    kernel: Kernel,
    blobs: Blobs,
    env: str,
    recording: Trajectory,
    progress: Progress = nobody_watches,
    *,
    halt: Halt | None = None,
    on_step: OnStep = nobody_asks,
) -> Judge:
    """Carry out in ``env`` what was recorded, until it is done or goes otherwise; the judge that watched it.

    ``on_step`` is told of each step, the one that went otherwise included.
    """
    judge = Judge(recording, blobs.get, kernel.contract.masks)
    steps = recording.steps
    asked = [event for step in steps for event in step.asked]
    async with (
        kernel.outside.rehearsing(env, recording.origin, asked) as rehearsal,
        httpx.AsyncClient(trust_env=False, verify=False, timeout=INPUT_TIMEOUT_S) as client,  # its doors are http
    ):
        executor = Executor(script_of(steps, blobs), EngineStage(kernel, env, client))
        for number, step in enumerate(steps, 1):
            rehearsal.cue(number_of(step))
            played = await executor.step()
            assert played is not None, "a script has as many cues as its recording has steps"
            result = judge.note(replace(played, missed=rehearsal.missed()))
            if result.outcome == "differs":
                await goes_on(on_step, await _closer(kernel, blobs, env, judge, result))
                break
            if halt is not None and await halt(played):
                break
            progress(number, len(steps))
            if not await goes_on(on_step, result):
                judge.stop()
                break
        judge.unasked = rehearsal.unasked()
    kernel.conditioning.give(env, None)  # what an input was given is not for what comes next
    return judge


async def _closer(kernel: Kernel, blobs: Blobs, env: str, judge: Judge, result: StepResult) -> StepResult:
    """Look at what went otherwise, where the step itself showed nothing, or no picture: what is there now."""
    if result.kind == "input":
        return result
    observation, screenshot = None, result.screenshot
    with suppress(StateforkError):  # the divergence is the news; a page that can't be seen now is no second one
        if not result.digest:
            observation = await kernel.observe(env)
            screenshot = observation.screenshot
        if not screenshot and (png := await picture(kernel, env)):
            screenshot = await run_sync(blobs.put, png)
    return judge.look_closer(observation, screenshot)


def script_of(steps: tuple[Step, ...], blobs: Blobs) -> Script:
    """What to do, from what was done: bodies are fetched here, so that the executor needs no store to read from."""
    return Script(cues=tuple(_cue(step, blobs) for step in steps))


def _cue(step: Step, blobs: Blobs) -> Cue:
    if isinstance(step, Act):
        if step.opaque:
            return Skip(name=describe(step), why="a raw page was handed out; what was done with it is not recorded")
        return Do(number=step.number, action=step.action, conditions=step.conditions)
    return _give(step, blobs)


def _give(step: Given, blobs: Blobs) -> Cue:
    missing = ", ".join(name for name, value in step.headers.items() if value == LEFT_OUT)
    if missing:
        return Skip(name=describe(step), why=f"headers of it were left out when it was exported: {missing}")
    try:
        body = blobs.get(step.body) if step.body else b""
    except BlobMissing as error:
        return Skip(name=describe(step), why=f"its body is lost: {error.message}")
    return Give(
        after=step.after,
        method=step.method,
        url=step.url,
        headers=step.headers,
        body=body,
        conditions=step.conditions,
    )


class EngineStage:
    """A forked environment of a running engine as the stage of a script."""

    def __init__(self, kernel: Kernel, env: str, client: httpx.AsyncClient) -> None:
        self._kernel = kernel
        self._env = env
        self._client = client

    async def act(self, action: Mapping[str, Json], conditions: Conditions | None = None) -> Played:
        """Through the kernel, like any agent's action."""
        self._kernel.conditioning.give(self._env, conditions)
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
        self._kernel.conditioning.give(self._env, cue.conditions)
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
