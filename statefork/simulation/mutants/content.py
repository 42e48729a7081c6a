"""Planted faults: what is sealed, staged, published and answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from statefork.engine import conductor as conducting
from statefork.engine.bulk import Bulk
from statefork.engine.conductor import Conductor
from statefork.engine.cut import take_cut
from statefork.engine.keyed import Told
from statefork.engine.staging import Staging
from statefork.engine.turns import Turns
from statefork.journal.values import Component
from statefork.simulation.mutants.planting import changed, mutant


@mutant("seal-before-quiesce", "cut", within=50)
def _() -> Iterator[None]:
    """Each resource is sealed by itself while the others go on, and nobody compares their write marks."""

    async def cut(contract: Any, resources: Any, run: Any, **given: Any) -> dict[str, Component]:
        branches, made = run.context.branches, {}
        for name in contract.order:
            run.sealed[name] = await resources[name].seal(branches[name])
            spec = contract.resources[name]
            made[name] = Component(sealed=run.sealed[name], durability=spec.durability, depends_on=spec.depends_on)
            run.quiesced.add(name)
            await resources[name].quiesce(branches[name])
        return made

    with changed(conducting, "take_cut", cut):
        yield


@mutant("write-lost", "cut", within=20)
def _() -> Iterator[None]:
    """A snapshot takes a store's component from the generation before: nothing seems to have changed there."""

    async def cut(contract: Any, resources: Any, run: Any, **given: Any) -> dict[str, Component]:
        manifest = await take_cut(contract, resources, run, **given)
        head = await _head(run)
        return manifest | {"db": head} if head is not None else manifest

    async def _head(run: Any) -> Component | None:
        capsule = run.drain._ledger.world.environments.get(run.context.identity.env)
        return capsule.head.manifest["db"] if capsule is not None else None

    with changed(conducting, "take_cut", cut):
        yield


@mutant("manifest-misses-one", "I4", within=10)
def _() -> Iterator[None]:
    """A manifest without its last resource is published."""

    def publish(self: Turns, *args: Any, **more: Any) -> Any:
        command = was(self, *args, **more)
        manifest = dict(list(command.manifest.items())[:-1])
        return msgspec.structs.replace(command, manifest=manifest, required=frozenset(manifest))

    with changed(Turns, "_publish", publish) as was:
        yield


@mutant("staged-is-left", "I9", within=120)
def _() -> Iterator[None]:
    """What a failed transition had staged stays behind."""

    async def discard(self: Turns, live: Any, staging: Any) -> None:
        live.staged = None

    with changed(Turns, "_discard", discard):
        yield


@mutant("not-rewound", "state", within=10)
def _() -> Iterator[None]:
    """What reloaded pages write while they are staged stays in the stores."""

    async def rewind(self: Staging) -> None:
        pass

    with changed(Staging, "_rewind", rewind):
        yield


@mutant("siblings-share", "I6", "I11", within=50)
def _() -> Iterator[None]:
    """Two environments over one sealed version get one branch."""
    made: dict[tuple[str, str], Any] = {}

    async def branch(self: Staging, name: str) -> None:
        key = (name, self._manifest[name].sealed.version)
        found = made.get(key)
        if found is None or found.id not in self._resources[name].world.branches:  # type: ignore[attr-defined]  # the memory adapter's
            await was(self, name)
            made[key] = self.context.branches[name]
            return
        self.context.branches[name] = found
        self._marks[name] = await self._resources[name].write_mark(found)

    with changed(Staging, "_branch", branch) as was:
        yield


@mutant("abort-stays-frozen", "I9", "assertion", within=30)
def _() -> Iterator[None]:
    """A transition that was given up leaves the gate shut."""

    async def thaw(self: Turns, env: str, run: Any, *, published: bool = True) -> None:
        if published:
            await was(self, env, run, published=published)

    with changed(Turns, "_thaw", thaw) as was:
        yield


@mutant("reset-to-the-present", "answer", within=30)
def _() -> Iterator[None]:
    """A reset leads to the head, not to the origin."""

    async def switch(self: Conductor, env: str, op: Any, source: Any, *args: Any, **more: Any) -> Any:
        source = self.usable(env).moment if op == "reset" else source
        return await was(self, env, op, source, *args, **more)

    with changed(Conductor, "switch", switch) as was:
        yield


@mutant("fork-of-the-last-snapshot", "answer", within=50)
def _() -> Iterator[None]:
    """A fork of the present begins at the last published generation: what came after it is not in the children."""

    async def source(self: Bulk, source: Any, *args: Any, **more: Any) -> Any:
        if isinstance(source, str):
            return self._world.capsule(source).moment
        return await was(self, source, *args, **more)

    with changed(Bulk, "_source", source) as was:
        yield


@mutant("key-forgotten", "answer", within=120)
def _() -> Iterator[None]:
    """A command with a key that was given before is carried out again."""
    with changed(Told, "parts", property(lambda self: {})):
        yield
