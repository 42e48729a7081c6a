"""The blob store: content-addressed, deduplicated, and on disk before the events that refer to it."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from statefork.journal import blobs as blobs_module
from statefork.journal.blobs import BlobReader, BlobStore, MemoryBlobs
from statefork.journal.errors import BlobMissing, JournalUnavailable


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(300_000)])
def test_bytes_come_back_at_once_and_after_sync(tmp_path: Path, data: bytes) -> None:
    store = BlobStore(tmp_path / "blobs")
    digest = store.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert store.get(digest) == data
    assert digest in store
    store.sync()
    assert store.get(digest) == data
    assert BlobReader(tmp_path / "blobs").get(digest) == data
    assert list(store.digests()) == [digest]


def test_the_same_bytes_are_kept_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for _ in range(3):
        store.put(b"same")
    assert len(files(tmp_path)) == 1
    store.sync()
    store.put(b"same")
    store.sync()
    assert len(files(tmp_path)) == 1
    assert BlobStore(tmp_path).put(b"same") in store
    assert len(files(tmp_path)) == 1


def test_a_crash_leaves_no_half_blob_and_its_rest_is_collected(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    kept = store.put(b"kept")
    store.sync()
    lost = store.put(b"lost")  # and here the process dies
    assert lost not in BlobReader(tmp_path)
    again = BlobStore(tmp_path)
    assert [path.name for path in files(tmp_path)] == [kept[2:]]
    with pytest.raises(BlobMissing):
        again.get(lost)
    assert again.get(again.put(b"lost")) == b"lost"


@pytest.mark.parametrize("damage", [b"", b"kepT", b"kept and more"])
def test_damage_is_seen(tmp_path: Path, damage: bytes) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"kept")
    store.sync()
    store.path(digest).write_bytes(damage)
    with pytest.raises(BlobMissing, match="damaged"):
        store.get(digest)


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_only_digests_are_names(tmp_path: Path, digest: str) -> None:
    for store in (BlobStore(tmp_path), MemoryBlobs()):
        with pytest.raises(BlobMissing):
            store.get(digest)


def test_discarding_gives_the_space_back(tmp_path: Path) -> None:
    for store in (BlobStore(tmp_path), MemoryBlobs()):
        digest, pending = store.put(b"12345"), b"678"
        store.sync()
        assert store.discard(store.put(pending)) == 3
        assert (store.discard(digest), store.discard(digest)) == (5, 0)
        assert digest not in store
        assert store.put(b"12345") == digest
        store.sync()
        assert store.get(digest) == b"12345"


def test_everything_is_forced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    force = blobs_module._sync_path

    def spy(path: Path) -> None:
        synced.append("file" if path.is_file() else path.name)
        force(path)

    monkeypatch.setattr(blobs_module, "_sync_path", spy)
    store = BlobStore(tmp_path / "blobs")
    digest = store.put(b"x")
    store.sync()
    assert synced[0] == "file"
    assert set(synced[1:]) == {digest[:2], "blobs", tmp_path.name}
    synced.clear()
    store.sync()
    store.put(b"x")
    store.sync()
    assert [name for name in synced if name == "file"] == []
    synced.clear()
    other = BlobStore(tmp_path / "blobs")
    other.put(b"x")  # whoever stored it may have died before its name was on disk
    other.sync()
    assert digest[:2] in synced


def test_after_a_failed_fsync_the_bytes_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"precious")
    (first,) = files(tmp_path)

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(blobs_module, "_sync_path", broken)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                store.sync()
    assert store.get(digest) == b"precious"
    assert digest not in BlobReader(tmp_path)
    store.sync()
    assert not first.exists()
    assert BlobReader(tmp_path).get(digest) == b"precious"
    assert len(files(tmp_path)) == 1


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(JournalUnavailable, match="No space left"):
            store.put(b"x")
    assert files(tmp_path) == []
    assert store.get(store.put(b"x")) == b"x"


def test_memory_blobs_lose_what_was_not_synced() -> None:
    blobs = MemoryBlobs()
    kept = blobs.put(b"kept")
    blobs.sync()
    lost = blobs.put(b"lost")
    assert blobs.get(lost) == b"lost"
    blobs.crash()
    assert kept in blobs
    assert lost not in blobs
    assert list(blobs.digests()) == [kept]
