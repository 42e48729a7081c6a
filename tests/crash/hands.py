"""What a crash scenario does to an engine, and what it says of it before it may be killed.

Everything is said over a pipe *before* the next step: what a generation will hold if it is published (``holds``), and
what was acknowledged (``done``). Whoever examines the state afterwards believes only this and the raw stores.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.assembly import Assembled, assemble
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.errors import StateforkError
from statefork.engine.kernel import Kernel
from statefork.engine.policy import Choice
from statefork.engine.retention import Retention
from statefork.engine.settings import DrainPolicy, Settings
from statefork.journal.values import Moment
from statefork.replay.export.exporting import Export, export
from statefork.replay.export.importing import import_

CONTRACT_FILE = "notes.toml"
EXPORT = "export.statefork"
At = Callable[[str], None]
"""Called with the name of a boundary."""


class Facts(msgspec.Struct):
    """What a scenario said, added up."""

    holds: dict[str, list[str]] = {}  # what each moment holds if it was published as intended
    done: dict[str, str] = {}  # environment -> the last thing that was acknowledged: a moment, or "retired"
    kept: dict[str, list[str]] = {}  # environment -> the policies that were acknowledged: of snapshots and retention

    def take(self, said: Sequence[dict[str, Any]]) -> Facts:
        """With what was said later."""
        facts = Facts(dict(self.holds), dict(self.done), dict(self.kept))
        for one in said:
            if "holds" in one:
                facts.holds[one["moment"]] = one["holds"]
            elif "done" in one:
                facts.done[one["env"]] = one["done"]
            elif "kept" in one:
                facts.kept[one["env"]] = one["kept"]
        return facts


class Hands:
    """Uses an engine, and keeps account."""

    def __init__(self, assembled: Assembled, facts: Facts, pipe: int | None, at: At) -> None:
        self.kernel: Kernel = assembled.kernel
        self.assembled = assembled
        self.facts = facts
        self._pipe = pipe
        self._at = at
        self._tails: dict[str, list[str]] = {}
        self.command = ""  # while the scenario's command is given, or given again: what its keys begin with

    def say(self, **what: Any) -> None:
        """One write, so that it arrives whole or not at all."""
        if self._pipe is not None:
            os.write(self._pipe, json.dumps(what).encode() + b"\n")

    def will_hold(self, moment: str, witnesses: Sequence[str]) -> None:
        """What a moment holds if it is published."""
        self.facts.holds[moment] = sorted(witnesses)
        self.say(moment=moment, holds=sorted(witnesses))

    def done(self, moment: Moment) -> Moment:
        """It was acknowledged."""
        self.facts.done[moment.env] = str(moment)
        self.say(env=moment.env, done=str(moment))
        self._at(f"after the acknowledgement of {moment}")
        return moment

    def capsule(self, env: str) -> Capsule:
        return self.kernel.environments[env]

    def held(self, moment: Moment) -> list[str]:
        """What a published moment holds, going back from recovered generations to what they were made of."""
        return holds_of(self.kernel, self.facts, moment)

    def tail(self, env: str) -> list[str]:
        """What the environment holds now."""
        return self._tails.setdefault(env, list(self.held(self.capsule(env).moment)))

    def _key(self, *words: str) -> str | None:
        """The command's key: the same when it is given again after a crash. What leads to it has none."""
        return "/".join((self.command, *words)) if self.command else None

    def _next(self, env: str) -> str:
        return f"{env}@{self.capsule(env).generation + 1}"

    @asynccontextmanager
    async def elsewhere(self) -> AsyncIterator[Hands]:
        """Another engine, over a state directory beside this one. Nothing is said of it."""
        contract, state = self.assembled.state.parent / CONTRACT_FILE, self.assembled.state.parent / "elsewhere"
        async with assemble(contract, state=state, settings=Settings(), progress=None) as assembled:
            yield Hands(assembled, Facts(), None, self._at)

    # --- what may be done -------------------------------------------------------------------------------------------

    async def create(self, env: str, *, activate: bool = True) -> None:
        self.will_hold(f"{env}@1", [])
        self.done(await self.kernel.create(env, activate=activate, key=self._key("create", env)))

    async def write(self, env: str, witness: str) -> None:
        """An agent acts: one witness into the row and the file."""
        tail = self.tail(env)
        result = await self.kernel.act(env, {"type": "write", "witness": f"{env} {witness}"})
        assert result.outcome == "ok", result
        tail.append(f"{env} {witness}")

    async def snapshot(self, env: str, drain: DrainPolicy | None = None) -> Moment:
        self.will_hold(self._next(env), self.tail(env))
        return self.done(await self.kernel.snapshot(env, drain=drain, key=self._key("snapshot", env)))

    async def reset(self, env: str, drain: DrainPolicy | None = None) -> None:
        wanted = self.held(self.capsule(env).origin)
        self.will_hold(self._next(env), wanted)
        self.done(await self.kernel.reset(env, drain=drain, key=self._key("reset", env)))
        self._tails[env] = list(wanted)

    async def restore(self, env: str, generation: int) -> None:
        moment = Moment(env=env, generation=generation)
        wanted = self.held(moment)
        self.will_hold(self._next(env), wanted)
        self.done(await self.kernel.restore(env, moment, key=self._key("restore", env)))
        self._tails[env] = list(wanted)

    async def tend(self, env: str) -> None:
        """Mark the first generation, and let those between it and the newest go."""
        await self.kernel.upkeep.mark(Moment(env=env, generation=1), "the beginning")
        self._at("after the mark was acknowledged")
        await self.kernel.upkeep.prune(env, Retention(last=1))
        assert [n for n, one in self.capsule(env).generations.items() if not one.pruned][-1] == self.capsule(
            env
        ).generation

    async def keep(self, env: str) -> None:
        """Choose what is kept of it, and then by a key something else."""
        await self._choose(env, Choice(retention="last 9"), None)
        await self._choose(env, Choice(snapshots="every 9 actions"), self._key("keep", env))
        assert self.facts.kept[env] == ["every 9 actions", "last 9"]

    async def _choose(self, env: str, choice: Choice, key: str | None) -> None:
        await self.kernel.upkeep.choose(env, choice, key=key)
        capsule = self.capsule(env)
        self.facts.kept[env] = [capsule.snapshots.text, capsule.retention.text]
        self.say(env=env, kept=self.facts.kept[env])
        self._at("after the acknowledgement of a choice")

    async def fork(self, source: str | Moment, children: Sequence[str], *, activate: bool = True) -> None:
        """From the present of an environment, or from a moment."""
        env = source if isinstance(source, str) else source.env
        if isinstance(source, str) and self.capsule(env).phase is Phase.SERVING:
            self.will_hold(self._next(env), self.tail(env))
            wanted = self.tail(env)
        else:
            wanted = self.held(self.capsule(env).moment if isinstance(source, str) else source)
        for child in children:
            if child not in self.kernel.environments:
                self.will_hold(f"{child}@1", wanted)
        for result in await self.kernel.fork(source, children, activate=activate, key=self._key("fork", env)):
            if result.moment is None:
                raise result.error or AssertionError(result)
            self.done(result.moment)

    async def clone(self, env: str, name: str) -> None:
        self.will_hold(self._next(env), self.tail(env))
        if name not in self.kernel.environments:
            self.will_hold(f"{name}@1", self.tail(env))
        self.done(await self.kernel.clone(env, name, key=self._key("clone", env)))

    async def export(self, env: str) -> None:
        """Its published generations as a file beside the state directory."""
        whole = self.assembled
        wanted = Export(moment=self.capsule(env).moment, environment=env)
        await export(self.kernel, whole.journal, whole.blobs, wanted, whole.state.parent / EXPORT)

    async def import_(self, env: str, *holds: Sequence[str]) -> None:
        """A new environment with the generations of the file, which hold this; if it is there already, that is said."""
        for number, witnesses in enumerate(holds, 1):
            self.will_hold(f"{env}@{number}", witnesses)
        whole = self.assembled
        work = import_(self.kernel, whole.blobs, whole.state, whole.state.parent / EXPORT, env)
        if env in self.kernel.environments:
            await self.refused(work, "environment_exists")
        else:
            assert (await work).ref == f"{env}@{len(holds)}"
            self.done(self.capsule(env).moment)

    async def park(self, env: str) -> None:
        self.will_hold(self._next(env), self.tail(env))
        await self.kernel.park(env)
        self.done(self.capsule(env).moment)

    async def recover(self, env: str) -> None:
        self.done(await self.kernel.recover(env))
        self._tails.pop(env, None)

    async def retire(self, env: str) -> None:
        await self.kernel.retire(env, key=self._key("retire", env))
        self.say(env=env, done="retired")
        self._at(f"after the acknowledgement of the end of {env}")

    async def use_all(self) -> None:
        """Whatever is left can act."""
        for env, capsule in sorted(self.kernel.environments.items()):
            if capsule.phase is not Phase.RETIRED:
                await self.write(env, f"after {capsule.actions}")

    def will_close(self) -> None:
        """Closing publishes the tails of all that serves."""
        for env, capsule in self.kernel.environments.items():
            if capsule.phase is Phase.SERVING:
                self.will_hold(self._next(env), self.tail(env))

    async def refused(self, work: Awaitable[object], code: str) -> None:
        """It has to fail so."""
        found = ""
        try:
            await work
        except StateforkError as error:
            found = error.code
        assert found == code, f"{found or 'no error'} instead of {code}"

    def resource(self, name: str) -> Any:
        """A resource, to be used behind the engine's back."""
        return self.kernel.resources[name]


def holds_of(kernel: Kernel, facts: Facts, moment: Moment) -> list[str]:
    """What a published moment has to hold: a recovered one what it was recovered from."""
    generation = kernel.world.generation(moment)
    while generation.op == "recover":
        assert generation.source is not None
        generation = kernel.world.generation(generation.source)
    return sorted(facts.holds[str(generation.moment)])


def state_folders(state: Path) -> dict[str, Path]:
    """The resources that keep something on disk."""
    return {name: state / "resources" / name for name in ("db", "media")}
