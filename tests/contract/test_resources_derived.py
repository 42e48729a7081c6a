"""The resource conformance suite on derived trees, with each way of branching that works here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.derived import DerivedResource, Options
from statefork.adapters.resources.files.overlay import release_mounts
from statefork.adapters.resources.files.probe import Choice
from statefork.engine.ports import Services
from tests.contract.files_kit import read, settled, write

BUILD = "mkdir -p {output}/a && echo deep > {output}/a/deep.txt && ln -s a/deep.txt {output}/link"


def bench_for(strategy: Choice, tmp_path: Path) -> Bench:
    """A tree without inputs: it is built once, and what is written to it is kept."""

    def make(services: Services) -> DerivedResource:
        return DerivedResource("index", Options(command=["/bin/sh", "-c", BUILD], strategy=strategy), services)

    return Bench(make=make, write=write, read=read, state=tmp_path / "state", base_dir=Path(sys.prefix), settle=settled)


class TestDerivedByCopies(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"  # the other class has the other loop

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for("copy", tmp_path)


@pytest.mark.root
class TestDerivedByOverlays(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        yield bench_for("overlay", tmp_path)
        release_mounts(tmp_path)
