"""The context that is made in advance: used once, by whom it fits, as good as one made anew, and left to nobody."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pytest

from statefork.adapters.interfaces.gateway import open_gateway
from statefork.adapters.resources.browser import Options
from statefork.adapters.resources.browser import actions as a
from statefork.engine.errors import MissingDependency
from statefork.engine.ports import Needs, Owner, Route
from statefork.journal.values import Binding, Conditions, Identity
from tests.integration.browser_kit import Kit, browser, serving
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.upstream_kit import open_upstream

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def ready(kit: Kit) -> Any:
    """The one in reserve, once it is made."""

    async def wait() -> Any:
        reserve = kit.resource._host.reserve  # type: ignore[union-attr]  # it runs
        await reserve._making
        return reserve._ready

    return await kit.on_thread(wait)


async def test_the_next_environment_gets_it_and_another_is_made(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            first = await ready(kit)
            assert first.live is not kit.live(branch)
            await kit.act(binding, a.Goto(f"{site.base}/login"))
            await kit.act(binding, a.Goto(f"{site.base}/desk.html"))
            fork, _ = await kit.fork(await kit.seal(branch))
            assert kit.live(fork) is first.live
            assert (await ready(kit)) is not first
            assert await kit.raw(fork, "() => [history.length, location.pathname]") == [3, "/desk.html"]
            assert len(kit.live(fork).context.pages) == 1
            assert await kit.cookies(fork) == await kit.cookies(branch)


async def test_a_blank_page_made_in_advance_draws_what_one_made_anew_draws(tmp_path: Path) -> None:
    async with browser(tmp_path) as kit:
        kit.resource._services = msgspec.structs.replace(kit.resource._services, determinism="record")
        drawn = []
        for number, prepared in enumerate((False, True)):
            if prepared:
                await ready(kit)
            else:
                await kit.unprepared()
            branch = await kit.resource.branch(await kit.resource.provision(), Owner(env="e", epoch=number))
            identity = Identity(env="e", epoch=number, activation=number)
            await kit.resource.bind(branch, identity, Needs())
            first = await kit.raw(
                branch,
                "() => [Math.random(), crypto.getRandomValues(new Uint8Array(4)).join(), Date.name, Date.length]",
            )
            await kit.resource.set_conditions(
                await kit.resource.bind(branch, identity, Needs()), Conditions(seed="ab", now=1e9)
            )
            drawn.append((first, await kit.raw(branch, "() => [Math.random(), new Date().getFullYear()]")))
        assert drawn[0] == drawn[1]


async def test_one_that_does_not_fit_or_died_is_not_used_and_goes(tmp_path: Path) -> None:
    async with browser(tmp_path, own=True) as kit:
        branch, _ = await kit.fresh()
        made = await ready(kit)
        reserve = kit.resource._host.reserve  # type: ignore[union-attr]  # it runs
        assert await kit.on_thread(partial(reserve.take, Options(width=99), None)) is None
        await kit.on_thread(made.live.context.pages[0].close)
        made.live.die()
        assert await kit.on_thread(partial(reserve.take, kit.resource.options, None)) is None
        fork, _ = await kit.fork(await kit.seal(branch))
        assert kit.live(fork) is not made.live
        assert (await ready(kit)) is not made
        assert made.live.closed


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_whose_process_does_nothing_more_is_not_used(tmp_path: Path, sent: signal.Signals) -> None:
    async with browser(tmp_path, own=True) as kit:
        branch, _ = await kit.fresh()
        made = await ready(kit)
        sealed = await kit.seal(branch)
        host = kit.resource._host
        assert host is not None
        processes = [psutil.Process(pid) for pid in host.process_ids()]
        newest = max(one.pid for one in processes if "--type=renderer" in one.cmdline())
        os.kill(newest, sent)
        try:
            fork, _ = await kit.fork(sealed)
            assert kit.live(fork) is not made.live
            assert await kit.raw(fork, "() => 1 + 1") == 2
        finally:
            with suppress(ProcessLookupError):
                os.kill(newest, signal.SIGCONT)


async def test_a_profile_without_a_tab_gets_none(tmp_path: Path) -> None:
    async with browser(tmp_path) as kit:
        branch, _ = await kit.fresh()
        await kit.on_thread(kit.live(branch).context.pages[0].close)
        sealed = await kit.seal(branch)
        await ready(kit)
        fork, _ = await kit.fork(sealed)
        assert kit.live(fork).tabs == []
        assert kit.live(fork).context.pages == []


async def bound(kit: Kit, number: int, route: Route) -> tuple[Any, Binding]:
    sealed = await kit.resource.provision()
    branch = await kit.resource.branch(sealed, Owner(env="a", epoch=1))
    needs = Needs(
        bindings={
            "shop": Binding(
                journal="j",
                resource="shop",
                adapter="web",
                branch="b",
                identity=Identity(env="a", epoch=1, activation=1),
                address={
                    "host": route.host,
                    "upstream_host": route.upstream_host,
                    "upstream_port": route.upstream_port,
                    "ticket_key_hex": route.ticket_key.hex(),
                },
            )
        }
    )
    return branch, await kit.resource.bind(branch, Identity(env="a", epoch=1, activation=number), needs)


async def test_its_port_is_the_activations_own(tmp_path: Path) -> None:
    """What was made before its activation was known sends everything through that activation's door."""
    keeper = Doorkeeper()
    identity = keeper.add("a")
    async with open_upstream() as upstream, open_gateway(keeper) as gateway:
        async with browser(tmp_path, gateway=gateway) as kit:
            _, one = await bound(kit, identity.activation, upstream.route())
            made = await ready(kit)
            number = made.port.getsockname()[1]
            assert one.address["port"] != number
            await kit.resource.unbind(one)
            _, two = await bound(kit, identity.activation, upstream.route())
            assert two.address["port"] == number
            seen = await kit.act(two, a.Goto("http://shop.example/hello"))
            assert seen.value["status"] == 200
            await kit.resource.unbind(two)
            with pytest.raises(OSError, match=r"connection attempts|refused"):
                await anyio.connect_tcp("127.0.0.1", number)
            left = (await ready(kit)).port
        assert left.fileno() == -1


async def test_a_reserved_port_is_freed_where_its_door_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MissingDependency("no certificates here")

    monkeypatch.setattr("statefork.adapters.interfaces.gateway.server_context", fail)
    keeper = Doorkeeper()
    async with open_gateway(keeper) as gateway:
        reserved = gateway.reserve()
        route = Route(host="other.example:443", upstream_host="other.example", upstream_port=443, outside="https")
        with pytest.raises(MissingDependency):
            await gateway.open_proxy(keeper.add("a"), (route,), reserved)
        assert reserved.fileno() == -1
