"""Networks of commands' own: who is let in, who is not, and what is left of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest

from statefork.adapters.interfaces.gateway import Limits
from statefork.adapters.interfaces.gateway.wire import Gone, connect
from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.process.networks import Network, why_none
from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Owner
from tests.contract.process_kit import bench_for

pytestmark = pytest.mark.anyio
PRESENT = "/proc/thread-self/ns/net"


@pytest.mark.root
async def test_a_port_in_a_network_is_reached_from_the_engine_alone() -> None:
    network, here = Network(), os.readlink(PRESENT)  # noqa: PTH115 - no path, but the name of a namespace
    try:
        with network.new_socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            port = listening.getsockname()[1]
            with pytest.raises(OSError, match="attempts failed"):
                await anyio.connect_tcp("127.0.0.1", port)
            wire = await connect("127.0.0.1", port, Limits(), network)
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(b"within")
                assert await wire.receive(10, "a test") == b"within"
            await wire.close()
        with pytest.raises(Gone, match="refused"):
            await connect("127.0.0.1", port, Limits(), network)
        with socket.create_server(("127.0.0.1", 0)) as outside, pytest.raises(Gone, match="refused"):
            await connect("127.0.0.1", outside.getsockname()[1], Limits(), network)
    finally:
        network.close()
    network.close()
    assert os.readlink(PRESENT) == here, "who was there for a moment is back"  # noqa: PTH115 - the same
    with pytest.raises(Gone, match="closed"):
        await connect("127.0.0.1", port, Limits(), network)


@pytest.mark.root
async def test_networks_leave_no_descriptor(tmp_path: Path) -> None:
    assert why_none() == ""
    one = Driver(bench_for(tmp_path / "state", tmp_path, network="own", strategy="copy"))
    base = await one.base()

    async def use() -> int:
        branch = await one.resource.branch(base, Owner(env="one", epoch=1))
        binding = await one.bind(branch)
        await one.close(branch, binding)
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as many as there are, whatever they are

    before = await use()
    assert [await use() for _ in range(3)] == [before] * 3
    await one.resource.stop()


async def test_where_none_can_be_had_that_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statefork.adapters.resources.process.starting.why_none", lambda: "Operation not permitted")
    one = Driver(bench_for(tmp_path / "state", tmp_path, network="own"))
    with pytest.raises(
        ResourceFailed, match="no network of its own can be had here: Operation not permitted"
    ) as caught:
        await one.resource.start()
    assert "as root" in caught.value.hint
