"""Shared by the integration tests: what lives for the whole session is ended with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.browser_kit import SHARED
from tests.integration.web_kit import build_base


@pytest.fixture(scope="session", autouse=True)
def shared_chromium() -> Iterator[None]:
    """The Chromium that the browser's tests share, if any of them has started it."""
    yield
    SHARED.close()


@pytest.fixture(scope="session")
def notes_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notes project's base; nobody writes there."""
    return build_base(tmp_path_factory.mktemp("notes") / "base")


@pytest.fixture
def shop_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that holds a shop and not much more: 64 MB in memory."""
    if os.geteuid() != 0:
        pytest.skip("this needs root, to mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)
