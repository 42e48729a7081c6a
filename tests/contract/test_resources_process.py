"""The resource conformance suite on private backends: with each way of branching trees, and each way of cutting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.files.overlay import release_mounts
from tests.contract.process_kit import bench_for


class TestCopies(ResourceConformance):
    uses = 5

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for(tmp_path / "state", tmp_path, strategy="copy")


class TestCopiesHeldBySignals(ResourceConformance):
    uses = 3

    @pytest.fixture
    def bench(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
        monkeypatch.setattr(
            "statefork.adapters.resources.process.starting.parent_of_leaves", lambda: (None, "a test does without")
        )
        return bench_for(tmp_path / "state", tmp_path, strategy="copy")


class TestRestarts(ResourceConformance):
    uses = 3

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for(tmp_path / "state", tmp_path, strategy="copy", cut="restart")


@pytest.mark.root
class TestReflinks(ResourceConformance):
    uses = 3

    @pytest.fixture
    def bench(self, tmp_path: Path, xfs_place: Path) -> Bench:
        return bench_for(xfs_place / "state", tmp_path, strategy="reflink")


@pytest.mark.root
class TestOverlays(ResourceConformance):
    uses = 5

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield bench_for(tmp_path / "state", tmp_path, strategy="overlay")
        release_mounts(tmp_path)


@pytest.mark.root
class TestRestartsOverOverlays(ResourceConformance):
    uses = 3

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield bench_for(tmp_path / "state", tmp_path, strategy="overlay", cut="restart")
        release_mounts(tmp_path)
