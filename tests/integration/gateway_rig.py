"""An upstream, a gateway and one environment, with a client at each of its doors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from statefork.adapters.interfaces.gateway import HttpGateway, Limits, open_gateway
from statefork.engine.ports import Listener
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.upstream_kit import Upstream, open_upstream


def authority(door: Listener) -> str:
    """What a client of the door says in Host."""
    return door.base_url.removeprefix("http://")


class Rig:
    """What a test of the gateway needs."""

    def __init__(self, upstream: Upstream, gateway: HttpGateway, keeper: Doorkeeper) -> None:
        self.upstream = upstream
        self.gateway = gateway
        self.keeper = keeper
        self.proxy: Listener
        self.site: Listener
        self.browser: httpx.AsyncClient  # through the proxy door
        self.script: httpx.AsyncClient  # on the base URL


@asynccontextmanager
async def open_rig(limits: Limits | None = None) -> AsyncIterator[Rig]:
    """Environment ``a`` at epoch 1, its site at shop.example."""
    keeper = Doorkeeper()
    identity = keeper.add("a")
    async with open_upstream() as upstream, open_gateway(keeper, limits) as gateway:
        rig = Rig(upstream, gateway, keeper)
        rig.proxy = await gateway.open_proxy(identity, (upstream.route(),))
        rig.site = await gateway.open_site("a", upstream.route())
        async with (
            httpx.AsyncClient(proxy=f"http://127.0.0.1:{rig.proxy.port}", trust_env=False, timeout=20) as rig.browser,
            httpx.AsyncClient(base_url=rig.site.base_url, trust_env=False, timeout=20) as rig.script,
        ):
            yield rig
