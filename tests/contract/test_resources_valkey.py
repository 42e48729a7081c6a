"""The resource conformance suite on kept namespaces: through a socket, and through the loopback address."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.conformance_kit import Driver
from tests.contract.valkey_kit import bench_for, missing_valkey

pytestmark = pytest.mark.skipif(bool(missing_valkey()), reason=missing_valkey() or "the server is here")


class TestValkeyByItsSocket(ResourceConformance):
    door = "path"

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        folder = Path(tempfile.mkdtemp(prefix="v"))  # paths of sockets are short
        yield bench_for(folder)
        shutil.rmtree(folder)

    @pytest.mark.anyio
    async def test_the_door_is_the_one_that_is_meant(self, bench: Bench) -> None:
        one = Driver(bench)
        _, binding = await one.open(await one.base())
        assert {"path", "host"} & binding.address.keys() == {self.door}
        await one.resource.stop()


class TestValkeyByLoopback(TestValkeyByItsSocket):
    door = "host"

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return bench_for(tmp_path / ("long" * 20))
