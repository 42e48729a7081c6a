"""What tests need of the machine: a file system with reflinks, one that is nearly full, a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.postgres_server import PostgresServer, missing_postgres

for module in ("conformance", "conformance_kit"):
    pytest.register_assert_rewrite(f"statefork.adapters.resources.{module}")


def _mounted(*command: str) -> str:
    """Run mount; what it says when it can't."""
    done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture(scope="session")
def xfs_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A loop-mounted XFS with reflinks, one for the session."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("this needs root and mkfs.xfs (package xfsprogs)")
    folder = tmp_path_factory.mktemp("xfs")
    image, place = folder / "image", folder / "place"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    if fault := _mounted("-o", "loop", str(image), str(place)):
        pytest.skip(f"no loop mount: {fault}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def xfs_place(xfs_root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh directory with reflinks."""
    place = xfs_root / request.node.name.replace("/", "_")
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("this needs root, to mount a small disk")
    place = tmp_path / "small disk"
    place.mkdir()
    if fault := _mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)):
        pytest.skip(f"no tmpfs: {fault}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, one for the session (for each of its processes)."""
    if reason := missing_postgres():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_on_xfs(xfs_root: Path) -> Iterator[Any]:
    """The same on a file system with reflinks."""
    if reason := missing_postgres():
        pytest.skip(reason)
    from tests.contract.postgres_kit import cluster  # it imports what is to be rewritten

    with cluster(xfs_root) as server:
        yield server


@pytest.fixture
def server(postgres: Any) -> Iterator[Any]:
    """The session's PostgreSQL server, with nothing left on it by an earlier test or by this one."""
    from tests.contract.postgres_kit import cleared

    with cleared(postgres):
        yield postgres


@pytest.fixture
def bench_options() -> dict[str, Any]:
    """What a module's resource ``one`` is made with, beside the tests' defaults."""
    return {}


@pytest.fixture
async def one(server: Any, tmp_path: Path, bench_options: dict[str, Any]) -> AsyncIterator[Any]:
    """A resource on ``server``, driven as the engine does."""
    from statefork.adapters.resources.conformance import Driver
    from tests.contract.postgres_kit import bench_on

    driver = Driver(bench_on(server, tmp_path, **bench_options))
    yield driver
    await driver.resource.stop()
