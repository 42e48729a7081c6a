"""Shared by the integration tests: what lives for the whole session is ended with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.browser_kit import SHARED
from tests.integration.postgres_kit import build_notes
from tests.integration.web_kit import build_base

if TYPE_CHECKING:
    from statefork.adapters.interfaces.python import Engine


@pytest.fixture(scope="session", autouse=True)
def shared_chromium() -> Iterator[None]:
    """The Chromium that the browser's tests share, if any of them has started it."""
    yield
    SHARED.close()


@pytest.fixture(scope="session")
def notes_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notes project's base; nobody writes there."""
    return build_base(tmp_path_factory.mktemp("notes") / "base")


@pytest.fixture(scope="session")
def notes_sql(postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same over PostgreSQL."""
    from tests.contract.postgres_kit import dsn

    return build_notes(tmp_path_factory.mktemp("notes") / "base", dsn(postgres))


@pytest.fixture
def postgres_door(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Contracts find the session's server in ``NOTES_SERVER``; whatever a test made there is removed after it."""
    from tests.contract.postgres_kit import cleared, dsn

    monkeypatch.setenv("NOTES_SERVER", dsn(postgres))
    with cleared(postgres):
        yield


@pytest.fixture
def notes_on_postgres(notes_sql: Path, postgres_door: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The base, and the project's server told to use it."""
    monkeypatch.setenv("NOTES_DATABASE", "postgresql")
    return notes_sql


@pytest.fixture(params=["sqlite", "postgresql"])
def either_base(request: pytest.FixtureRequest) -> Path:
    """The notes project's base over each database."""
    return request.getfixturevalue("notes_on_postgres" if request.param == "postgresql" else "notes_base")


@pytest.fixture(scope="module")
async def one_shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """An engine over the shop for a whole module, which has ``anyio_backend`` in that scope; audited when it closed."""
    from statefork.replay.auditing import audit
    from tests.integration.shop_kit import open_shop

    state = tmp_path_factory.mktemp("shop")
    async with open_shop(state) as engine:
        yield engine
    report = audit(state)
    assert report.clean, report


@pytest.fixture
async def shop(one_shop: Engine) -> AsyncIterator[Engine]:
    """The module's engine, with nothing alive in it: what a test made there is retired after it, names stay taken."""
    yield one_shop
    for env in one_shop.environments():
        await env.retire()


@pytest.fixture
def shop_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that holds a shop and not much more: 64 MB in memory."""
    if os.geteuid() != 0:
        pytest.skip("this needs root, to mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)
