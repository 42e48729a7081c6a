"""The resource conformance suite on PostgreSQL: our own server with copies and reflinks, another one by DSN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.postgres.server import EmbeddedServer
from tests.contract.postgres_kit import bench_on, by_dsn, cleared

# Each class runs on one event loop, and all together on both: every test makes and drops a dozen databases.


class TestPostgres(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self, tmp_path: Path, postgres: EmbeddedServer) -> Iterator[Bench]:
        with cleared(postgres) as server:
            yield bench_on(server, tmp_path, pool=1)


@pytest.mark.root
class TestPostgresOnReflinks(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self, tmp_path: Path, postgres_on_xfs: EmbeddedServer) -> Iterator[Bench]:
        with cleared(postgres_on_xfs) as server:
            yield bench_on(server, tmp_path, pool=1)


class TestPostgresByDsn(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def bench(self, tmp_path: Path, postgres: EmbeddedServer) -> Iterator[Bench]:
        with cleared(postgres) as server:
            yield bench_on(by_dsn(server), tmp_path)
