"""The file of an environment vouches for itself: whatever is changed in it is refused, and the place is named."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefork.adapters.resources.files import FilesResource, Options
from statefork.adapters.resources.files.carrying import TREE, Item, Packed
from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Services
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Moment
from statefork.replay.export.errors import ExportUnreadable
from statefork.replay.export.exporting import Export, export
from statefork.replay.export.form import COMMENT, EVENTS, MANIFEST
from statefork.replay.export.reading import reading
from statefork.replay.export.slice import thinned
from tests.contract.engine_kit import House, put

Members = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export."""
    path = tmp_path_factory.mktemp("export") / "good.statefork"

    async def make() -> None:
        house = House()
        async with house.open() as kernel:
            await kernel.create("shop")
            await put(kernel, "shop", "a", 1)
            await put(kernel, "shop", "b", 2)
            wanted = Export(moment=await kernel.snapshot("shop"), environment="shop")
            assert house.journal is not None
            await export(kernel, house.journal, MemoryBlobs(), wanted, path)

    anyio.run(make)
    with reading(path, path.parent) as opened:
        assert opened.manifest.moment == Moment(env="shop", generation=2)
    return path


def refused(path: Path) -> ExportUnreadable:
    with pytest.raises(ExportUnreadable) as caught, reading(path, path.parent):
        pass
    assert str(path) in caught.value.message
    return caught.value


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_damage_is_noticed(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = good.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1), label="at")
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "append"]), label="how")
    extra = data.draw(st.binary(min_size=1, max_size=40), label="extra")
    damaged = {
        "flip": whole[:at] + bytes([whole[at] ^ (1 + extra[0] % 255)]) + whole[at + 1 :],
        "cut": whole[:at],
        "insert": whole[:at] + extra + whole[at:],
        "remove": whole[:at] + whole[at + len(extra) :],
        "append": whole + extra,
    }[how]
    file = tmp_path / "damaged"
    file.write_bytes(damaged)
    refused(file)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_who_damages_a_file_and_writes_the_digest_anew_is_refused_by_name_too(
    good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    whole = bytearray(good.read_bytes()[:-64])
    at = data.draw(st.integers(0, len(whole) - len(COMMENT) - 1), label="at")
    whole[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4), label="bytes")
    file = tmp_path / "forged"
    file.write_bytes(bytes(whole) + hashlib.sha256(whole).hexdigest().encode())
    with suppress(ExportUnreadable), reading(file, tmp_path) as opened:  # there are bytes that mean nothing
        for blob in opened.manifest.blobs:
            opened.bytes_of(blob)


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def forge(path: Path, content: Members, *, comment: bytes = COMMENT, **how: Any) -> Path:
    """An archive whose own digest fits, whatever is in it."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, **how) as archive:
        for name, data in content:
            archive.writestr(name, data)
        archive.comment = comment + b"0" * 64
    data = whole.getvalue()[:-64]
    path.write_bytes(data + hashlib.sha256(data).hexdigest().encode())
    return path


def told(content: Members) -> dict[str, Any]:
    manifest: dict[str, Any] = msgspec.json.decode(dict(content)[MANIFEST])
    return manifest


def with_manifest(content: Members, manifest: dict[str, Any]) -> Members:
    return [(name, data) for name, data in content if name != MANIFEST] + [(MANIFEST, msgspec.json.encode(manifest))]


def replaced(content: Members, name: str, data: bytes) -> Members:
    """A member changed, and the manifest told so."""
    manifest = told(content)
    manifest["members"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return with_manifest([(one, data if one == name else had) for one, had in content], manifest)


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Members], Members]:
    def forged(content: Members) -> Members:
        manifest = told(content)
        change(manifest)
        return with_manifest(content, manifest)

    return forged


def _events(edit: Callable[[list[bytes]], list[bytes]]) -> Callable[[Members], Members]:
    def forged(content: Members) -> Members:
        lines = dict(content)[EVENTS].splitlines(keepends=True)
        return replaced(content, EVENTS, b"".join(edit(lines)))

    return forged


def _first_object(content: Members) -> str:
    return next(name for name, _ in content if name.startswith("objects/"))


FORGED: dict[str, tuple[Callable[[Members], Members], str]] = {
    "a member twice": (lambda had: [*had, had[0]], "it is there twice"),
    "a path that leads out": (lambda had: [*had, ("../../etc/passwd", b"x")], "no such member"),
    "an absolute path": (lambda had: [*had, ("/etc/passwd", b"x")], "no such member"),
    "a folder": (lambda had: [*had, ("objects/", b"")], "no such member"),
    "no manifest": (lambda had: [one for one in had if one[0] != MANIFEST], "manifest.json: it is missing"),
    "a manifest that is none": (lambda had: [*had[:-1], (MANIFEST, b"[]")], "manifest.json"),
    "a member more": (lambda had: [*had, (f"objects/{'0' * 64}", b"x")], "the manifest does not know it"),
    "a member less": (lambda had: [one for one in had if one[0] != _first_object(had)], "it is missing"),
    "other bytes": (
        lambda had: [(name, data[::-1] if name == _first_object(had) else data) for name, data in had],
        "not what the manifest says",
    ),
    "another name": (
        changed(lambda told: told["members"].__setitem__(_first_of(told), {"size": 1, "sha256": "0" * 64})),
        "",
    ),
    "no disk is so big": (
        lambda had: replaced(with_manifest(had, _huge(told(had))), EVENTS, dict(had)[EVENTS]),
        "the manifest says",
    ),
    "another format": (changed(lambda told: told.update(format=2)), "format 2"),
    "another moment": (changed(lambda told: told["moment"].update(generation=9)), "lacks shop@9"),
    "other generations": (changed(lambda told: told.update(generations=told["generations"][1:])), "its generations"),
    "a generation twice": (
        changed(lambda told: told.update(generations=[told["generations"][0], *told["generations"]])),
        "its generations",
    ),
    "no components": (changed(lambda told: told.update(components=[])), "its components"),
    "a file with a path": (
        changed(lambda told: told["components"][0].update(files={"../x": _first_of(told).split("/")[1]})),
        "may not be called",
    ),
    "a file that is not there": (
        changed(lambda told: told["components"][0].update(files={"x": "0" * 64})),
        "is not in the file",
    ),
    "a blob that nobody names": (changed(lambda told: told.update(blobs=["0" * 64])), "its blobs"),
    "other heads": (changed(lambda told: told.update(heads="0" * 64)), "do not end as"),
    "an event less": (_events(lambda lines: [*lines[:2], *lines[3:]]), f"{EVENTS}, line 3"),
    "an event twice": (_events(lambda lines: [*lines[:3], lines[2], *lines[3:]]), f"{EVENTS}, line 4"),
    "an event changed": (
        _events(lambda lines: [line.replace(b'"key":"b"', b'"key":"c"') for line in lines]),
        "does not fit its hash",
    ),
    "an event that is none": (_events(lambda lines: [*lines, b"{}\n"]), EVENTS),
}


def _first_of(manifest: dict[str, Any]) -> str:
    return next(name for name in manifest["members"] if name.startswith("objects/"))


def _huge(manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["members"][_first_of(manifest)]["size"] = 1 << 60
    return manifest


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_file_is_refused_where_it_is_wrong(what: str, good: Path, tmp_path: Path) -> None:
    forged, words = FORGED[what]
    assert words in refused(forge(tmp_path / "forged", forged(members(good)))).message


def test_what_is_not_forged_is_read(good: Path, tmp_path: Path) -> None:
    with reading(forge(tmp_path / "same", members(good)), tmp_path) as opened:
        assert len(opened.way.stretches) == 2


def test_a_newer_file_says_so(good: Path, tmp_path: Path) -> None:
    newer = forge(tmp_path / "newer", members(good), comment=b"statefork-export/2 ")
    assert "A newer statefork wrote it" in refused(newer).hint


def test_what_would_fill_the_disk_is_refused(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20))
    assert "are free" in refused(good).message


DIRECTORY = Item(b"", "d", 0o755, 0)
SUM = hashlib.sha256(b"x").hexdigest()
TREES: dict[str, tuple[list[Item], str]] = {
    "nothing": ([], "is empty"),
    "no tree": ([Item(b"a", "d", 0o755, 0)], "the first is not the tree itself"),
    "out": ([DIRECTORY, Item(b"../a", "f", 0o644, 0, b"", SUM)], "does not lie in a directory"),
    "absolute": ([DIRECTORY, Item(b"/a", "f", 0o644, 0, b"", SUM)], "does not lie in a directory"),
    "up": ([DIRECTORY, Item(b"..", "d", 0o755, 0)], "does not lie in a directory"),
    "through a link": (
        [DIRECTORY, Item(b"a", "l", 0o777, 0, b"b"), Item(b"a/b", "f", 0o644, 0, b"", SUM)],
        "does not lie in a directory",
    ),
    "twice": ([DIRECTORY, Item(b"a", "d", 0o755, 0), Item(b"a", "f", 0o644, 0, b"", SUM)], "stands there twice"),
    "a link out": ([DIRECTORY, Item(b"a", "l", 0o777, 0, b"../b")], "leads out"),
    "an absolute link": ([DIRECTORY, Item(b"a", "l", 0o777, 0, b"/etc")], "leads out"),
    "a link out by a link": (
        [DIRECTORY, Item(b"a", "l", 0o777, 0, b"."), Item(b"b", "l", 0o777, 0, b"a/..")],
        "leads out",
    ),
    "lent rights": ([DIRECTORY, Item(b"a", "f", 0o4755, 0, b"", SUM)], "lends rights"),
    "a device": ([DIRECTORY, Item(b"a", "c", 0o644, 0)], "no kind of file"),
    "no bytes": ([DIRECTORY, Item(b"a", "f", 0o644, 0, b"", "0" * 64)], "bytes are missing"),
    "a name of bytes": ([DIRECTORY, Item(b"a", "f", 0o644, 0, b"", "../tree")], "bytes have no name"),
}


@pytest.mark.parametrize("what", TREES)
def test_a_tree_that_is_not_to_be_trusted_is_refused(what: str, tmp_path: Path) -> None:
    items, words = TREES[what]
    state, packed = tmp_path / "state", tmp_path / "packed"
    state.mkdir()
    packed.mkdir()
    (packed / SUM).write_bytes(b"x")
    (packed / TREE).write_bytes(msgspec.msgpack.encode(Packed(1, items)))
    services = Services(state=state, journal="j", blobs=None, base_dir=tmp_path)
    resource = FilesResource("media", Options(base="base"), services)
    with pytest.raises(ResourceFailed, match=words):
        anyio.run(resource.unpack, packed)
    left = [path for path in state.rglob("*") if path.is_file() or path.parent.name == "layers"]
    assert left == []
    assert not (tmp_path / "a").exists()


def test_of_a_long_history_the_ends_and_what_lies_evenly_between_are_kept() -> None:
    moments = [Moment(env="shop", generation=number) for number in range(1, 1001)]
    few = thinned(moments, 5)
    assert [one.generation for one in few] == [1, 251, 501, 750, 1000]
    assert thinned(moments[:5], 5) == moments[:5]
