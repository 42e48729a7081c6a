"""The resource conformance suite on file trees, with each strategy that works here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.files.overlay import release_mounts
from tests.contract.files_kit import bench_for


class TestPlainCopies(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for("copy", tmp_path / "state", tmp_path)


@pytest.mark.root
class TestReflinks(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path, xfs_place: Path) -> Bench:
        return bench_for("reflink", xfs_place / "state", tmp_path)


@pytest.mark.root
class TestOverlays(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield bench_for("overlay", tmp_path / "state", tmp_path)
        release_mounts(tmp_path)
