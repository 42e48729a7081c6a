"""The HTTP application under both event loops, without a server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from statefork.adapters.interfaces.http.app import Api
from statefork.adapters.interfaces.python import open_engine
from statefork.journal.events import GenerationPublished
from tests.integration.http_kit import CONTRACT, PUT, TOKEN

pytestmark = pytest.mark.anyio


async def test_it_answers(tmp_path: Path) -> None:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    async with open_engine(tmp_path / "notes.toml", state=tmp_path / "state") as engine:
        transport = httpx.ASGITransport(app=Api(engine, token=TOKEN))  # type: ignore[arg-type]  # its own idea of ASGI
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            await http.post("/v1/environments", json={"name": "a"})
            assert (await http.post("/v1/environments/a/actions", json={"action": PUT})).json()["value"] == "tea"
            answer = await http.post("/v1/environments/a/snapshots")
            assert (answer.status_code, answer.json()) == (201, {"ref": "a@2", "env": "a", "generation": 2})
        published = [one async for one in engine.journal.read() if isinstance(one.event, GenerationPublished)]
    assert len(published) == 2
