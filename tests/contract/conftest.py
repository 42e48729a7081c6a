"""File systems that the resource tests need: one with reflinks, one that is nearly full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

for module in ("conformance", "conformance_kit"):
    pytest.register_assert_rewrite(f"statefork.adapters.resources.{module}")


def _mounted(*command: str) -> str:
    """Run mount; what it says when it can't."""
    done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture(scope="session")
def xfs_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A loop-mounted XFS with reflinks, one for the session."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("this needs root and mkfs.xfs (package xfsprogs)")
    folder = tmp_path_factory.mktemp("xfs")
    image, place = folder / "image", folder / "place"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    if fault := _mounted("-o", "loop", str(image), str(place)):
        pytest.skip(f"no loop mount: {fault}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def xfs_place(xfs_root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh directory with reflinks."""
    place = xfs_root / request.node.name.replace("/", "_")
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("this needs root, to mount a small disk")
    place = tmp_path / "small disk"
    place.mkdir()
    if fault := _mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)):
        pytest.skip(f"no tmpfs: {fault}")
    yield place
    subprocess.run(["umount", str(place)], check=True)
