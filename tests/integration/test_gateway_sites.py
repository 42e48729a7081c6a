"""Private base URLs: each is a host of its own to a client, so that one cookie jar keeps the sites apart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from http.cookies import SimpleCookie
from ipaddress import ip_address, ip_network

import httpx
import pytest

from statefork.adapters.interfaces.gateway import HttpGateway, heads, open_gateway
from statefork.adapters.interfaces.gateway.addresses import SHARED, Addresses
from statefork.engine.ports import Listener
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.upstream_kit import Upstream, open_upstream

HOSTS = ("shop.example", "forum.example")


async def open_sites(keeper: Doorkeeper, upstream: Upstream, gateway: HttpGateway) -> list[Listener]:
    """Two sites of each of two environments."""
    for env in ("a", "b"):
        if env not in keeper.envs:
            keeper.add(env)
    return [await gateway.open_site(env, upstream.route(host)) for env in ("a", "b") for host in HOSTS]


@pytest.mark.anyio
async def test_one_cookie_jar_keeps_the_logins_of_all_sites_apart() -> None:
    keeper = Doorkeeper()
    async with open_upstream() as upstream, open_gateway(keeper) as gateway:
        sites = await open_sites(keeper, upstream, gateway)
        assert len({site.host for site in sites}) == 4
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            for number, site in enumerate(sites):
                await client.get(f"{site.base_url}/login?who=user-{number}&domain={HOSTS[number % 2]}")
            for number, site in enumerate(sites):
                headers = dict((await client.get(f"{site.base_url}/whoami")).json()["headers"])
                cookies = SimpleCookie(headers["cookie"])
                assert {name: morsel.value for name, morsel in cookies.items()} == {"session": f"user-{number}"}


@pytest.mark.anyio
async def test_an_address_lasts_as_long_as_its_environment_and_comes_back_with_the_engine() -> None:
    keeper = Doorkeeper()
    async with open_upstream() as upstream:
        async with open_gateway(keeper, name="journal-1") as gateway:
            first = [site.host for site in await open_sites(keeper, upstream, gateway)]
        async with open_gateway(keeper, name="journal-1") as gateway:
            again = await open_sites(keeper, upstream, gateway)
            assert [site.host for site in again] == first
            await again[0].close()
            reopened = await gateway.open_site("a", upstream.route(HOSTS[0]))
            assert reopened.host == first[0]
        async with open_gateway(keeper, name="journal-2") as gateway:
            others = [site.host for site in await open_sites(keeper, upstream, gateway)]
        assert not set(others) & set(first), "two engines on one machine"


@pytest.mark.anyio
async def test_a_site_answers_to_its_own_name_alone() -> None:
    keeper = Doorkeeper()
    async with open_upstream() as upstream, open_gateway(keeper) as gateway:
        one, other, *_ = await open_sites(keeper, upstream, gateway)
        async with httpx.AsyncClient(base_url=one.base_url, trust_env=False) as client:
            for host in (f"localhost:{one.port}", f"{one.host}:{one.port}"):
                assert (await client.get("/", headers={"Host": host})).status_code == 200
            for host in (f"{other.host}:{one.port}", f"{one.host}:1", f"127.0.0.1:{one.port}", "shop.example"):
                refused = await client.get("/", headers={"Host": host})
                assert (refused.status_code, refused.json()["code"]) == (421, "unknown_host"), host
                assert one.base_url in refused.json()["message"]


def test_addresses_are_loopback_and_never_met_twice() -> None:
    addresses = Addresses("journal")
    with ExitStack() as held:
        taken = [held.enter_context(addresses.lent(f"env-{number}", "shop.example")) for number in range(3000)]
        assert len(set(taken)) == len(taken)
        everyday = ip_network("127.0.0.0/16")
        for address in taken:
            assert ip_address(address).is_loopback
            assert ip_address(address) not in everyday
        with addresses.lent("env-7", "shop.example") as elsewhere:
            assert elsewhere not in taken, "its own is held: it gets another"
    with addresses.lent("env-7", "shop.example") as again:
        assert again == taken[7]


def test_domains_of_cookies_that_a_base_url_has_no_use_for() -> None:
    names = heads.SiteNames(base_url="http://127.9.9.9:5000", host="www.Shop.example:8080")

    def seen(cookie: str) -> str:
        return names.outward([(b"set-cookie", cookie.encode())])[0][1].decode()

    for covering in ("www.shop.example", ".www.shop.example", "SHOP.example", ".shop.example"):
        assert seen(f"a=1; Path=/; Domain={covering}; HttpOnly") == "a=1; Path=/; HttpOnly"
    assert seen("a=1; domain = shop.example ;Secure") == "a=1;Secure"
    for foreign in ("other.example", "hop.example", "example", "api.www.shop.example", ""):
        assert seen(f"a=1; Domain={foreign}") == f"a=1; Domain={foreign}"
    assert seen("domain=shop.example; Path=/") == "domain=shop.example; Path=/", "a cookie of that name"


NARROW = """
ip link set lo up
ip address del 127.0.0.1/8 dev lo
ip address add 127.0.0.1/32 dev lo
exec "$0" -c "$1"
"""
PROGRAM = """
import anyio, httpx
from statefork.adapters.interfaces.gateway import open_gateway
from statefork.adapters.interfaces.gateway.addresses import many
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.test_gateway_sites import open_sites
from tests.integration.upstream_kit import open_upstream

async def main():
    keeper = Doorkeeper()
    async with open_upstream() as upstream, open_gateway(keeper) as gateway:
        sites = await open_sites(keeper, upstream, gateway)
        async with httpx.AsyncClient(trust_env=False) as client:
            print(many(), *[site.host for site in sites], (await client.get(sites[3].base_url)).status_code)

anyio.run(main, backend="trio")
"""


@pytest.mark.root
def test_without_other_loopback_addresses_sites_share_one_and_it_is_said_once() -> None:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("this needs ip (package iproute2) and unshare (package util-linux)")
    command = ["unshare", "--net", "sh", "-ec", NARROW, sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(f"no network namespace: {done.stderr.strip()}")
    assert done.stdout.split() == ["False", *[SHARED] * 4, "200"], done.stderr
    assert done.stderr.count("share the address 127.0.0.1") == 1
    assert "a cookie jar for each" in done.stderr
