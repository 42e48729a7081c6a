"""What is ours of cloning on macOS, with a stand-in for the system's call. (It was never run on a Mac.)"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from statefork.adapters.resources import apfs, reflink


def stand_in(source: int, path: str) -> None:
    """A copy with the source's mode, as the call makes it; the target must not exist."""
    assert not Path(path).exists()
    shutil.copy(f"/proc/self/fd/{source}", path)


def path_of(file: int) -> str:
    return str(Path(f"/proc/self/fd/{file}").readlink())


def test_an_open_file_becomes_the_clone(tmp_path: Path) -> None:
    (tmp_path / "sealed").write_bytes(b"content")
    (tmp_path / "sealed").chmod(0o444)
    with (tmp_path / "sealed").open("rb") as source, (tmp_path / "copy").open("xb") as target:
        apfs._clone_onto(source.fileno(), target.fileno(), stand_in, path_of)
        assert not os.get_inheritable(target.fileno())
        target.seek(0, os.SEEK_END)
        target.write(b", and more")
    assert (tmp_path / "copy").read_bytes() == b"content, and more"
    assert (tmp_path / "sealed").read_bytes() == b"content"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "sealed"]


def test_a_failure_leaves_the_target_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sealed").write_bytes(b"content")

    def full(one: str, other: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(apfs.os, "replace", full)
    with (tmp_path / "sealed").open("rb") as source, (tmp_path / "copy").open("xb") as target:
        with pytest.raises(OSError, match="full"):
            apfs._clone_onto(source.fileno(), target.fileno(), stand_in, path_of)
        target.write(b"own")
    assert (tmp_path / "copy").read_bytes() == b"own"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "sealed"]


def test_the_probe_and_the_copies_go_that_way_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apfs.sys, "platform", "darwin")
    monkeypatch.setattr(apfs, "_fclonefileat", stand_in)
    monkeypatch.setattr(apfs, "_path_of", path_of)
    probe = reflink.probe_reflink(tmp_path)
    assert probe.works
    assert "untested on macOS" in probe.reason

    def refuse(source: int, path: str) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(apfs, "_fclonefileat", refuse)
    assert not reflink.probe_reflink(tmp_path).works
    (tmp_path / "source").write_bytes(b"x" * 100_000)
    with (tmp_path / "source").open("rb") as source, (tmp_path / "copy").open("xb") as target:
        reflink.copy_bytes(source.fileno(), target.fileno(), reflink=True)
    assert (tmp_path / "copy").read_bytes() == b"x" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "source"]
