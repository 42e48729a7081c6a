"""Importing: a verified file becomes an environment of a running engine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.from_thread
import anyio.to_thread
from msgspec.structs import replace

from statefork.engine.arriving import Arrival
from statefork.engine.commands import Arrive
from statefork.engine.errors import ResourceFailed
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs, Portable, Resource
from statefork.engine.refs import check_env_name
from statefork.journal.events import Event
from statefork.journal.values import Component, Sealed
from statefork.replay.export.errors import ContractDiffers, NotPortable, unreadable
from statefork.replay.export.exporting import size_of
from statefork.replay.export.form import ComponentForm, Imported, Progress, nobody_watches
from statefork.replay.export.reading import Opened, reading
from statefork.replay.export.slice import brought, renamed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SCRATCH = "importing"
"""The folder of a state directory in which components are unpacked; what a killed engine leaves there is removed."""

_VERIFIED_SHARE = 0.5  # of all that is to be done, as the progress is told


async def import_(
    kernel: Kernel, blobs: Blobs, state: Path, path: Path, name: str | None = None, progress: Progress = nobody_watches
) -> Imported:
    """A new environment, parked, with the content and the past that a file holds.

    ``name``: else it is called as where it comes from, with a number where that is taken. Raises ExportUnreadable,
    ContractDiffers, NotPortable, InvalidName, EnvironmentExists, ResourceFailed; nothing is left of it then.
    """
    if name is not None:
        check_env_name(name)
    opening = reading(path, state, progress)
    opened = await _aside(opening.__enter__)
    try:
        manifest = opened.manifest
        _check_contract(kernel, opened)
        env = name or _free_name(kernel, manifest.environment)
        arrival = _Arrival(opened, env, blobs, state / SCRATCH, progress)
        moment = await kernel.intake(env, arrival)
        progress(1.0, f"{env} is there")
        return Imported(
            env=env,
            ref=str(moment),
            source=manifest.called or str(manifest.moment),
            journal=manifest.journal,
            sha256=opened.sha256,
            size=size_of(opened.way, manifest, opened.size),
            reused=tuple(sorted(arrival.reused)),
            left_out=manifest.left_out,
        )
    finally:
        with anyio.CancelScope(shield=True):
            await _aside(opening.__exit__, None, None, None)


async def _aside(work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    return await anyio.to_thread.run_sync(work, *arguments)


def _check_contract(kernel: Kernel, opened: Opened) -> None:
    theirs, ours = opened.manifest.contract, kernel.contract
    if theirs.digest == ours.digest:
        return
    names = f" ({theirs.name}, not {ours.name})" if theirs.name != ours.name else ""
    raise ContractDiffers(
        f"{opened.path} holds an environment of another contract{names} than this engine serves",
        hint="Start an engine with the contract of where it comes from: its text is in the file (unzip -p FILE "
        "manifest.json)",
        path=str(opened.path),
        theirs=theirs.digest,
        ours=ours.digest,
    )


def _free_name(kernel: Kernel, wanted: str) -> str:
    """The name itself; where it is taken (names are never used twice) with -i1, or the first number that is free."""
    check_env_name(wanted)
    taken = (kernel.environments, kernel.world.elsewhere.names)
    name, number = wanted, 0
    while any(name in names for names in taken):
        number += 1
        name = f"{wanted}-i{number}"
    return name


@contextmanager
def _room_told(resource: str, place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceFailed(
            f"{resource}: unpacking a version failed: {error.strerror or error} ({error.filename or place})",
            hint=f"Free space on the disk of {place.parent}, or give back the right to write there, then import again; "
            "nothing was made",
            resource=resource,
            errno=error.errno,
        ) from error


class _Arrival(Arrival):
    """What a file brings. See :class:`statefork.engine.arriving.Arrival`."""

    def __init__(self, opened: Opened, env: str, blobs: Blobs, scratch: Path, progress: Progress) -> None:
        self.contract = opened.manifest.contract.digest
        self.reused: set[str] = set()
        self._opened = opened
        self._env = env
        self._blobs = blobs
        self._scratch = scratch
        self._progress = progress
        self._made: dict[tuple[str, str], Component] = {}

    async def unpack(
        self, resources: Mapping[str, Resource], bases: Mapping[str, Component], made: list[Sealed]
    ) -> None:
        """Make the components that the base does not have, then store what was seen."""
        components = self._opened.way.components
        for number, (name, version) in enumerate(components):
            share = number / len(components)
            self._progress(_VERIFIED_SHARE + 0.9 * (1 - _VERIFIED_SHARE) * share, f"unpacking {name}")
            form = self._opened.component(name, version)
            if name not in resources or resources[name].adapter != form.adapter:
                raise unreadable(self._opened.path, "manifest.json", f"the contract has no {name} ({form.adapter})")
            sealed = await self._sealed(resources[name], form, bases[name].sealed, made)
            self._made[name, version] = replace(bases[name], sealed=sealed)
        self._progress(0.96, "storing what was seen")
        await _aside(self._store)

    async def _sealed(self, resource: Resource, form: ComponentForm, base: Sealed, made: list[Sealed]) -> Sealed:
        if await resource.digest(base) == form.digest:
            self.reused.add(form.resource)
            return base
        path, where = self._opened.path, f"version {form.version} of {form.resource}"
        if form.files is None:
            hint = "Export it without --without-base, or build the same base here"
            raise unreadable(path, where, "it was left out, and the base here is another", hint)
        if not isinstance(resource, Portable):
            raise NotPortable(f"{resource.name} ({resource.adapter}) takes nothing in", resource=resource.name)
        directory = await _aside(self._extract, form)
        try:
            sealed = await resource.unpack(directory)
            made.append(sealed)
        finally:
            with anyio.CancelScope(shield=True):
                await _aside(shutil.rmtree, directory)
        if await resource.digest(sealed) != form.digest:
            raise unreadable(path, where, "unpacked it has another content than the manifest says")
        return sealed

    def _extract(self, form: ComponentForm) -> Path:
        with _room_told(form.resource, self._scratch), ExitStack() as stack:
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            directory = Path(tempfile.mkdtemp(dir=self._scratch))
            stack.callback(shutil.rmtree, directory)
            for name, digest in (form.files or {}).items():
                anyio.from_thread.check_cancelled()
                self._opened.extract(digest, directory / name)
            stack.pop_all()
        return directory

    def _store(self) -> None:
        for digest in self._opened.manifest.blobs:
            anyio.from_thread.check_cancelled()
            self._blobs.put(self._opened.bytes_of(digest))

    def activity(self) -> Sequence[Event]:
        """What was done, under the new name."""
        return list(renamed(self._opened.way, self._env))

    def arrive(self, env: str, at: float, required: frozenset[str]) -> Arrive:
        """The generations, and where they come from."""
        manifest = self._opened.manifest
        return Arrive(
            env=env,
            at=at,
            generations=brought(self._opened.way, self._made),
            required=required,
            journal=manifest.journal,
            source=manifest.moment,
            heads=manifest.heads,
            file=self._opened.sha256,
            statefork=manifest.statefork,
        )
