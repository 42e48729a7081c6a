"""One warm process per test process, and a folder in memory where there is one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.interfaces import registry
from statefork.adapters.resources.ledger import remove_tree
from tests.crash.kill_kit import Zygote, release

_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks the engines that are killed."""
    made = Zygote()
    yield made
    made.end()


@pytest.fixture(autouse=True)
def a_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor of these tests is an adapter like any other."""
    monkeypatch.setitem(registry.BUILT_IN, "hand", "tests.crash.hand")


@pytest.fixture
def stage_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory: a killed process leaves the page cache behind, so forcing it to a disk changes nothing."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="statefork-crash-", dir=_MEMORY))
    try:
        yield folder
    finally:
        release(folder)
        remove_tree(folder)  # overlayfs leaves folders that an ordinary user may not enter
