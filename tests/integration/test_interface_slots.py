"""Half-open clients of HTTP and OpenEnv hold no slot: there is one, and who needs it gets it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from statefork.adapters.interfaces.http.serving import place_of, served
from statefork.adapters.interfaces.openenv.app import OpenEnv
from tests.integration import http_kit
from tests.integration.http_kit import CONTRACT, PATIENCE_S, PUT, head
from tests.integration.openenv_kit import talking

pytestmark = pytest.mark.anyio

ONE_DESK = CONTRACT.replace("initial", 'slot = "desk"\ninitial')
GET = {"type": "step", "data": {"type": "get", "key": "basket"}}


@pytest.fixture
def anyio_backend() -> str:
    """It is served on trio."""
    return "trio"


async def test_case_22_half_open_clients_of_http(tmp_path: Path) -> None:
    async with http_kit.serving(tmp_path, contract=ONE_DESK, slots=1) as running, running.client() as engine:
        await engine.create("a")
        await engine.create("b")
        await engine.act("a", PUT)
        with anyio.fail_after(PATIENCE_S), ExitStack() as clients:
            for said in (
                head("POST", "/v1/environments/a/actions", "Content-Length: 99") + b'{"action"',
                head("GET", "/events?env=a"),
                head("GET", "/v1/environments/a/observation"),  # and never reads it
                b"GET /v1/environments/a/observ",
                b"",
            ):
                clients.enter_context(running.raw(said))
            for _ in range(2):  # both, in turn: each waits for nobody but an idle one
                assert (await engine.act("b", PUT))["value"] == "tea"
                assert (await engine.observe("a"))["value"]["basket"] == "tea"
            assert (await engine.status())["slots"]["limit"] == 1


async def test_case_22_silent_agents_of_openenv(tmp_path: Path) -> None:
    def play(url: str) -> list[str]:
        with talking(url) as silent, talking(url) as busy:
            silent.say({"type": "reset"})
            silent.say({"type": "step", "data": {**PUT, "value": "silent"}})
            busy.say({"type": "reset"})  # the other one says nothing, and has the only slot
            busy.say({"type": "step", "data": {**PUT, "value": "busy"}})
            return [one.say(GET)["data"]["observation"]["value"] for one in (silent, busy, silent)]

    async with http_kit.serving(tmp_path, contract=ONE_DESK, slots=1) as running:
        async with served(OpenEnv(running.engine), place_of("0")) as address:
            with anyio.fail_after(PATIENCE_S):
                assert await anyio.to_thread.run_sync(play, address.url) == ["silent", "busy", "silent"]
