"""The resource conformance suite on the fake: it keeps the rules of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.memory import MemoryResource, MemoryWorld, Options
from statefork.engine.ports import Services
from statefork.journal.values import Binding


class TestMemory(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        world = MemoryWorld()

        def make(services: Services) -> MemoryResource:
            return MemoryResource("store", Options(initial={"first": "one"}), world, services.journal)

        def write(binding: Binding, key: str, value: str) -> None:
            world.write(binding.branch, key, value)

        def read(binding: Binding, key: str) -> str | None:
            found = world.read(binding.branch).get(key)
            return None if found is None else str(found)

        return Bench(make=make, write=write, read=read, state=tmp_path / "state", base_dir=tmp_path)
