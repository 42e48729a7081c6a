"""The resource conformance suite on terminals: what a command writes is what a version holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.files.overlay import release_mounts
from tests.contract.shell_kit import bench_for


class TestCopies(ResourceConformance):
    uses = 5

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for(tmp_path / "state", tmp_path, strategy="copy", user="engine")


@pytest.mark.root
class TestOverlaysOfTheirOwnUsers(ResourceConformance):
    uses = 5

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield bench_for(tmp_path / "state", tmp_path, strategy="overlay", user="own")
        release_mounts(tmp_path)
