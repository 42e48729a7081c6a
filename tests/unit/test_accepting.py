"""A door that closes in the moment in which a client comes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import pytest

from statefork.adapters.interfaces.accepting import accept_each

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_client_who_comes_while_the_door_closes_is_no_error() -> None:
    """The runner of the test fails for whatever the loop has to complain about."""
    listener = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners[0]
    loop, closed = asyncio.get_running_loop(), anyio.Event()

    async def serve(stream: Any) -> None:
        await stream.aclose()

    with socket.socket() as client:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(accept_each, listener, serve, tasks)
            await anyio.wait_all_tasks_blocked()

            def close() -> None:
                tasks.cancel_scope.cancel()
                closed.set()

            def come() -> None:
                client.connect(listener.extra(anyio.abc.SocketAttribute.local_address))
                loop.call_soon(close)  # before the loop looks who is there, in the turn in which it sees the client

            loop.call_soon(come)
            with anyio.CancelScope(shield=True):
                await closed.wait()
