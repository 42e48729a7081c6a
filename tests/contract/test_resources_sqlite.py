"""The resource conformance suite on SQLite, with copies and with reflinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from tests.contract.sqlite_kit import bench_in


class TestSqlite(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_in(tmp_path / "state", tmp_path)


@pytest.mark.root
class TestSqliteOnReflinks(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path, xfs_place: Path) -> Bench:
        return bench_in(xfs_place / "state", tmp_path)
