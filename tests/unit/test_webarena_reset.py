"""The reset server speaks WebArena's protocol, one reset at a time, and nobody can hold it up."""

from __future__ import annotations

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.webarena.resetting import ONGOING, READY, reset_server
from statefork.engine.errors import TransitionAborted

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Held:
    """A reset that ends when it is let."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.let = anyio.Event()
        self.ended = 0

    async def __call__(self) -> None:
        self.begun.set()
        await self.let.wait()
        self.ended += 1


async def asked(url: str, **more: str) -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.get(url, **{"headers": more} if more else {})  # type: ignore[arg-type]  # one kind of option
        return answer.status_code, answer.text


async def test_one_reset_at_a_time() -> None:
    reset = Held()
    async with reset_server(reset, hold_s=0.0) as url:
        assert await asked(f"{url}/status") == (200, READY)
        assert (await asked(f"{url}/reset"))[0] == 200
        await reset.begun.wait()
        assert (await asked(f"{url}/reset"))[0] == 418
        assert await asked(f"{url}/status") == (200, ONGOING)
        reset.let.set()
    assert reset.ended == 1, "what was under way is awaited"


async def test_the_status_waits_for_the_end() -> None:
    reset = Held()
    async with reset_server(reset, hold_s=30.0) as url, anyio.create_task_group() as tasks:
        await asked(f"{url}/reset")
        await reset.begun.wait()
        told: list[tuple[int, str]] = []

        async def ask() -> None:
            told.append(await asked(f"{url}/status"))

        tasks.start_soon(ask)
        reset.let.set()
    assert told == [(200, READY)]


async def test_a_reset_that_fails_is_told_and_may_be_asked_for_again() -> None:
    outcomes = [TransitionAborted("the search index could not be staged", environment="one"), None]

    async def reset() -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    async with reset_server(reset) as url:
        await asked(f"{url}/reset")
        status, text = await asked(f"{url}/status")
        assert status == 500
        assert "transition_aborted: the search index could not be staged" in text
        assert (await asked(f"{url}/reset"))[0] == 200
        assert await asked(f"{url}/status") == (200, READY)


async def test_what_is_asked_wrongly_is_refused() -> None:
    reset = Held()
    async with reset_server(reset) as url:
        assert (await asked(f"{url}/resets"))[0] == 404
        assert (await asked(f"{url}/reset", host="rebound.example"))[0] == 421
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(f"{url}/reset")).status_code == 405
        assert not reset.begun.is_set()
        host, _, port = url.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b"\x00\x01\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 400")


async def test_half_open_clients_hold_nobody_up() -> None:
    async with reset_server(Held()) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        silent = [await anyio.connect_tcp(host, int(port)) for _ in range(60)]
        assert await asked(f"{url}/status") == (200, READY)
        for stream in silent:
            await stream.aclose()
