"""Exporting: from a running engine's journal, blobs and resources into one file."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from statefork.engine.contract import Contract
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs, Portable, Resource
from statefork.journal.codec import GENESIS, Codec, digest_of_heads, link
from statefork.journal.events import (
    ActionBegun,
    InputRecorded,
    activity_stream,
    control_stream,
)
from statefork.journal.log import Journal, Recorded
from statefork.journal.values import Component, Moment
from statefork.replay.export.errors import NotPortable
from statefork.replay.export.form import (
    EVENTS,
    EVENTS_BYTES_MAX,
    FILE_NAME,
    FORMAT,
    GENERATIONS_MAX,
    ComponentForm,
    ContractForm,
    Exported,
    Line,
    Manifest,
    Progress,
    Size,
    nobody_watches,
)
from statefork.replay.export.slice import Way, blobs_of, thinned, way_to, without_secrets
from statefork.replay.export.writing import Writer, sum_of, writing
from statefork.replay.rebuild import pasts_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@\"']+:)[^\s/@\"']+(?=@)", re.IGNORECASE)
_COMPONENTS_SHARE = 0.8  # of all that is to be done, as the progress is told
_REWRITTEN = "an older statefork wrote it"
_SECRET = "headers are left out: "


class Streams(msgspec.Struct):
    """The control and activity streams of the environments on a way, up to where they matter."""

    control: dict[str, list[Recorded]]
    acted: dict[str, list[Recorded]]

    def all(self) -> list[Recorded]:
        """Every event, in the order of the journal."""
        streams = (*self.control.values(), *self.acted.values())
        return sorted((one for stream in streams for one in stream), key=lambda one: one.position)

    def upto(self, needed: Mapping[str, int]) -> Streams:
        """Without what came later, and without whom nobody needs."""

        def cut(streams: dict[str, list[Recorded]]) -> dict[str, list[Recorded]]:
            return {env: [one for one in streams[env] if one.position <= needed[env]] for env in sorted(needed)}

        return Streams(cut(self.control), cut(self.acted))


async def streams_of(journal: Journal, moment: Moment) -> Streams:
    """The streams of all environments that a moment's lineage leads through."""
    await journal.flush()
    envs = sorted(await pasts_of(journal, moment.env))
    control = {env: [one async for one in journal.read(stream=control_stream(env))] for env in envs}
    return Streams(control, {env: [one async for one in journal.read(stream=activity_stream(env))] for env in envs})


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted. ``environment``: its name for people; ``called``: that of the moment, where it was made for this.

    ``ends``: no generations but the origin and the last one.

    ``base``: False leaves out what the contract's base has. ``secrets``: keep headers that open doors elsewhere.
    """

    moment: Moment
    environment: str
    called: str = ""
    ends: bool = False
    base: bool = True
    secrets: bool = False


async def export(
    kernel: Kernel, journal: Journal, blobs: Blobs, wanted: Export, path: Path, progress: Progress = nobody_watches
) -> Exported:
    """Write the file of a published generation and of all that led to it.

    Raises UnknownRef, NotPortable, ResourceFailed, BlobMissing; there is no file then.
    """
    progress(0.0, "reading the history")
    streams = await streams_of(journal, wanted.moment)
    way = way_to(wanted.moment, streams.control, streams.acted)
    streams = streams.upto(way.needed)
    there = [moment for moment in way.moments if not kernel.world.generation(moment).pruned]
    kept = [there[0], there[-1]] if wanted.ends else thinned(there, GENERATIONS_MAX)
    left_out = _thinned(len(way.moments) - len(set(kept)))
    way = way.only(kept)
    for name, _ in way.components:
        _portable(kernel.resources, name)
    async with _written(path) as writer:
        async with kernel.upkeep.reading():
            components = await _pack_all(kernel, way, writer, progress, left_out, base=wanted.base)
        named = await _put_blobs(way, blobs, writer, progress)
        progress(0.97, "writing the history")
        heads = await _aside(_put_events, streams, writer, left_out, wanted.secrets)
        manifest = Manifest(
            format=FORMAT,
            statefork=version("statefork"),
            until=max(one.event.at for one in streams.all()),
            journal=journal.id,
            environment=wanted.environment,
            moment=wanted.moment,
            called=wanted.called,
            heads=heads,
            contract=_contract(kernel.contract),
            generations=way.moments,
            components=components,
            blobs=named,
            left_out=tuple(left_out),
            members=writer.members,
        )
        await _aside(writer.close, manifest)
    digest, size = await _aside(sum_of, path)
    progress(1.0, f"{path} is written")
    return Exported(
        path=str(path),
        sha256=digest,
        ref=wanted.called or str(wanted.moment),
        journal=journal.id,
        size=size_of(way, manifest, size),
        left_out=tuple(left_out),
    )


def size_of(way: Way, manifest: Manifest, size: int) -> Size:
    """How much a file carries."""
    return Size(
        actions=sum(isinstance(event, ActionBegun) for event in way.activity),
        inputs=sum(isinstance(event, InputRecorded) for event in way.activity),
        generations=len(manifest.generations),
        components=len(manifest.components),
        blobs=len(manifest.blobs),
        bytes=size,
        unpacked_bytes=sum(member.size for member in manifest.members.values()),
    )


def _thinned(number: int) -> list[str]:
    return [f"{number} generations between the origin and the last one: they can be made again"] if number else []


def _contract(contract: Contract) -> ContractForm:
    text = _PASSWORD.sub(r"\g<before>***", contract.text)
    return ContractForm(digest=contract.digest, name=contract.name, text=text)


@asynccontextmanager
async def _written(path: Path) -> AsyncIterator[Writer]:
    """See :func:`writing`, in worker threads."""
    making = writing(path)
    writer = await _aside(making.__enter__)
    try:
        yield writer
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await _aside(making.__exit__, type(error), error, error.__traceback__)
        raise
    with anyio.CancelScope(shield=True):
        await _aside(making.__exit__, None, None, None)


async def _aside(work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """In a worker thread, to its real end."""
    return await anyio.to_thread.run_sync(work, *arguments)


def _portable(resources: Mapping[str, Resource], name: str) -> Portable:
    resource = resources[name]
    if not isinstance(resource, Portable):
        raise NotPortable(
            f"{name} ({resource.adapter}) can't be exported: this adapter can't carry its versions in files yet",
            hint="Carry the state directory, or share the journal (docs/how-to/share-a-journal.md)",
            resource=name,
            adapter=resource.adapter,
        )
    return resource


async def _pack_all(
    kernel: Kernel, way: Way, writer: Writer, progress: Progress, left_out: list[str], *, base: bool
) -> tuple[ComponentForm, ...]:
    packed: list[ComponentForm] = []
    components = way.components
    bases = {} if base else await _base_digests(kernel, components)
    for number, ((name, sealed_as), component) in enumerate(components.items()):
        progress(_COMPONENTS_SHARE * number / len(components), f"packing {name}")
        digest = await kernel.resources[name].digest(component.sealed)
        files: dict[str, str] | None = None
        if bases.get(name) != digest:
            files = await _pack(_portable(kernel.resources, name), name, component, writer)
        else:
            left_out.append(f"{name} as the contract's base has it")
        packed.append(
            ComponentForm(
                resource=name, adapter=component.sealed.adapter, version=sealed_as, digest=digest, files=files
            )
        )
    return tuple(packed)


async def _base_digests(kernel: Kernel, components: Mapping[tuple[str, str], Component]) -> dict[str, str]:
    manifest = kernel.world.bases.get(kernel.contract.digest, {})
    return {
        name: await kernel.resources[name].digest(manifest[name].sealed) for name, _ in components if name in manifest
    }


async def _pack(resource: Portable, name: str, component: Component, writer: Writer) -> dict[str, str]:
    directory = writer.scratch / "component"
    await _aside(directory.mkdir)
    await resource.pack(component.sealed, directory)

    def put() -> dict[str, str]:
        files: dict[str, str] = {}
        for path in sorted(directory.iterdir()):
            anyio.from_thread.check_cancelled()
            assert FILE_NAME.fullmatch(path.name), f"{name} packs {path.name!r}"
            files[path.name] = writer.put_file(path)
            path.unlink()
        directory.rmdir()
        return files

    return await _aside(put)


async def _put_blobs(way: Way, blobs: Blobs, writer: Writer, progress: Progress) -> tuple[str, ...]:
    wanted = sorted({digest for event in way.activity for digest in blobs_of(event)})
    for number, digest in enumerate(wanted):
        share = _COMPONENTS_SHARE + (0.95 - _COMPONENTS_SHARE) * number / len(wanted)
        progress(share, "packing what was seen")
        await _aside(lambda digest=digest: writer.put_bytes(blobs.get(digest)))  # type: ignore[misc]  # of this turn
    return tuple(wanted)


def _put_events(streams: Streams, writer: Writer, left_out: list[str], secrets: bool) -> str:
    """The lines of all events; the digest of the streams' heads."""
    codec, encoder = Codec(), msgspec.json.Encoder()
    heads: dict[str, tuple[int, str]] = {}
    covered: set[str] = set()
    path = writer.scratch / EVENTS
    with path.open("wb") as file:
        for one in streams.all():
            event, names = (one.event, ()) if secrets else without_secrets(one.event)
            covered.update(name.lower() for name in names)
            data = codec.encode(event)
            _, before = heads.get(one.stream, (0, GENESIS))
            altered = f"{_SECRET}{', '.join(names)}" if names else ""
            if not altered and link(before, one.stream, one.version, data) != one.hash:
                altered = _REWRITTEN
            heads[one.stream] = (one.version, one.hash)
            line = Line(
                position=one.position,
                stream=one.stream,
                version=one.version,
                hash=one.hash,
                altered=altered,
                event=msgspec.Raw(data),
            )
            file.write(encoder.encode(line) + b"\n")
    if path.stat().st_size > EVENTS_BYTES_MAX:
        raise NotPortable(f"the history takes more than the {EVENTS_BYTES_MAX} bytes that a file of it may have")
    writer.put_named(EVENTS, path)
    if covered:
        left_out.append(f"headers of recorded requests: {', '.join(sorted(covered))}")
    return digest_of_heads((stream, *heads[stream]) for stream in sorted(heads))
