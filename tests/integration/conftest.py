"""Shared by the integration tests: what lives for the whole session is ended with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.browser_kit import SHARED


@pytest.fixture(scope="session", autouse=True)
def shared_chromium() -> Iterator[None]:
    """The Chromium that the browser's tests share, if any of them has started it."""
    yield
    SHARED.close()
