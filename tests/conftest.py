"""Fixtures for all tests."""

from __future__ import annotations

from typing import cast

import pytest


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests run on both event loops."""
    return cast(str, request.param)
