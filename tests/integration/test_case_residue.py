"""Fifty attempts, each of which leaves something in every place that the application has: each begins at the base."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from statefork.engine.kernel import DrainPolicy
from tests.integration.drain_kit import Scene, open_scene

pytestmark = pytest.mark.anyio

ATTEMPTS = 50
STORES = ("db", "media", "search")


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Attempts(Scene):
    """Environment ``a`` and one client, which keeps its cookies."""

    async def digests(self) -> dict[str, str]:
        """Of what the stores of the environment hold now, by the adapters that can compare contents."""
        await self.kernel.snapshot("a", drain=DrainPolicy(deadline_s=20))
        manifest = self.kernel.world.capsule("a").head.manifest
        return {name: await self.kernel.resources[name].digest(manifest[name].sealed) for name in STORES}


async def leave_something(client: httpx.AsyncClient) -> None:
    """Row and index, file, cache, a module's cache, letters, a login: each under the same name in each attempt."""
    assert (await client.post("/add/", data={"title": "lamp"})).status_code == 200, "the title is free"
    assert (await client.post("/upload/", data={"name": "lamp.txt", "body": "x"})).text == "lamp.txt"
    for path, data in (
        ("/cache/", {"value": "mine"}),
        ("/site/", {"name": "mine"}),
        ("/mail/", {"subject": "mine"}),
        ("/login/", {"user": "me"}),
    ):
        assert (await client.post(path, data=data)).status_code == 200


async def nothing_is_left(client: httpx.AsyncClient) -> None:
    """Also to one who still has the cookie of the attempt before."""
    assert (await client.get("/notes/")).json() == {"titles": ["first"]}
    assert (await client.get("/search/", params={"q": "lamp"})).json() == {"titles": []}
    assert (await client.get("/media/lamp.txt")).status_code == 404
    assert (await client.get("/cache/")).json() == {"value": None, "early": None}
    assert (await client.get("/site/")).json()["name"] == "base"
    assert (await client.get("/mail/")).json() == {"subjects": []}
    assert (await client.get("/whoami/")).text == ""


async def test_fifty_attempts_each_begin_at_the_base(either_base: Path, tmp_path: Path) -> None:
    async with open_scene(Attempts, either_base, tmp_path) as scene:
        base = await scene.digests()
        base_url = str(scene.kernel.bindings("a")["site"].address["base_url"])
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30) as client:
            for attempt in range(ATTEMPTS):
                await leave_something(client)
                if attempt % 10 == 0:
                    assert set((await scene.digests()).items()).isdisjoint(base.items()), "every store was written"
                await scene.kernel.reset("a", drain=DrainPolicy(deadline_s=20))
                if attempt % 10 == 0:
                    assert await scene.digests() == base
                    await nothing_is_left(client)
        assert (scene.titles(), scene.media()) == (["first"], {})
