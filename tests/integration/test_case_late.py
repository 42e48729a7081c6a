"""What belongs to attempt N comes too late: attempt N+1 never sees it, and the journal says what was refused.

A beacon of the page that was left, a thread and a queued job of the server, a script that holds the database and a file
open: all of them go on after the reset, and write.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from statefork.adapters.resources.browser.options import routes_of
from statefork.engine.kernel import DrainPolicy
from statefork.engine.ports import Needs
from statefork.journal.events import InputRecorded, RequestRefused, TransitionDrained
from tests.integration.drain_kit import Scene, open_scene

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


SITE = "http://notes.example"
QUICK = DrainPolicy(deadline_s=0.2, then="revoke")


def client_of(scene: Scene, port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=SITE, proxy=f"http://127.0.0.1:{port}", trust_env=False, timeout=20)


async def proxy_of(scene: Scene) -> Any:
    """A door like the one that the environment's browser has in its present activation."""
    bindings = scene.kernel.bindings("a")
    return await scene.gateway.open_proxy(bindings["site"].identity, routes_of(Needs(bindings=bindings)))


async def post(client: httpx.AsyncClient, title: str) -> httpx.Response:
    return await client.post("/add/", data={"title": title})


async def test_the_next_attempt_sees_nothing_of_what_comes_too_late(notes_base: Path, tmp_path: Path) -> None:
    async with open_scene(Scene, notes_base, tmp_path) as scene:
        kernel, old = scene.kernel, scene.kernel.bindings("a")
        door = await proxy_of(scene)
        raw = sqlite3.connect(str(old["db"].address["path"]), timeout=1)
        with contextlib.closing(raw), (Path(str(old["media"].address["path"])) / "held.txt").open("w") as held:
            async with client_of(scene, door.port) as beacon:
                assert (await post(beacon, "in time")).status_code == 200
                for kind in ("job", "later"):
                    query = {"pipe": scene.pipe(kind), "title": f"late {kind}"}
                    assert (await beacon.get(f"/{kind}/", params=query)).status_code == 200
                await kernel.reset("a", drain=QUICK)

                late = await post(beacon, "late beacon")
                assert (late.status_code, late.json()["code"]) == (409, "stale_generation")
                scene.write_line("job")
                scene.write_line("later")
                held.write("late")
                held.flush()
                with contextlib.suppress(sqlite3.Error):  # it may be told so, or write where nobody looks
                    raw.execute("INSERT INTO notes_note (title, body) VALUES ('late script', '')")
                    raw.commit()

        await next_attempt(scene)
        await door.close()
        (refused,) = [event for event in await scene.events(RequestRefused) if event.method == "POST"]
        assert (refused.status, refused.code, refused.url) == (409, "stale_generation", f"{SITE}/add/")
        assert (refused.env, refused.epoch, refused.activation) == ("a", 1, old["site"].identity.activation)
        drained = (await scene.events(TransitionDrained))[0]
        assert {entry.how for entry in drained.held if entry.holder.startswith("site: ")} == {"fenced"}
        inputs = [(event.epoch, event.url) for event in await scene.events(InputRecorded)]
        assert inputs == [(1, f"{SITE}/add/"), (2, f"{SITE}/add/")], "the late ones are no part of any history"


async def next_attempt(scene: Scene) -> None:
    """Its own jobs run, after the late one in the same thread; then everything is looked at, raw."""
    kernel = scene.kernel
    door = await proxy_of(scene)
    async with client_of(scene, door.port) as client:
        await client.get("/job/", params={"pipe": scene.pipe("own"), "title": "own job"})
        scene.write_line("own")
        with anyio.fail_after(10):
            while "own job" not in scene.titles():
                await anyio.lowlevel.checkpoint()
        assert (await post(client, "own")).status_code == 200
    await door.close()
    sealed = await kernel.snapshot("a", drain=DrainPolicy(deadline_s=20))
    assert scene.titles() == ["first", "own", "own job"]
    assert scene.media() == {}
    (child,) = await kernel.fork(sealed, ["child"])
    assert child.error is None
    assert scene.titles("child") == ["first", "own", "own job"]
