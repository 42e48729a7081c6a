"""The life of the shared Chromium: cancellation, deaths, the end. On trio and on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from statefork.adapters.resources.browser import actions as a
from statefork.adapters.resources.browser import chromium
from statefork.adapters.resources.browser.bridge import AsyncioThread
from statefork.engine.errors import NotReady, ResourceFailed, RuntimeDied
from statefork.engine.ports import Needs, Owner
from statefork.journal.values import Binding, Identity
from tests.integration.browser_kit import Kit, Site, browser, script, serving

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

# Processes know nothing of event loops: where only they are killed, one loop is enough.
ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"])

ENGINE = """
import sys, anyio, pathlib
from tests.integration.browser_kit import browser
async def main():
    async with browser(pathlib.Path(sys.argv[1]), own=True) as kit:
        await kit.fresh()
        print(" ".join(map(str, kit.resource.process_ids())), flush=True)
        await anyio.sleep_forever()
anyio.run(main, backend="trio")
"""


async def contexts(kit: Kit) -> int:
    """How many contexts Chromium has, by Chromium's own account, without what is made in advance."""
    await kit.unprepared()

    async def count() -> int:
        host = kit.resource._host
        assert host is not None
        session = await (await host.ready()).new_browser_cdp_session()
        found = await session.send("Target.getBrowserContexts")
        await session.detach()
        return len(found["browserContextIds"])

    return int(await kit.on_thread(count))


async def renderer(kit: Kit, *, but: set[int]) -> set[int]:
    """Pids of Chromium's page processes, without some."""
    found = set()
    for pid in kit.resource.process_ids():
        with contextlib.suppress(psutil.NoSuchProcess):  # Chromium's processes come and go
            if "--type=renderer" in psutil.Process(pid).cmdline() and pid not in but:
                found.add(pid)
    return found


def open_below(folder: Path, pids: tuple[int, ...]) -> set[str]:
    """Files below a folder that these processes have open, also those that have no name any more."""
    found = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return {path for path in found if path.startswith(str(folder))}


@ON_TRIO
@pytest.mark.parametrize("roomy", [True, False])
async def test_pictures_are_made_on_the_disk_only_where_there_is_no_memory_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, roomy: bool
) -> None:
    room = shutil.disk_usage(chromium.SHARED_MEMORY).free
    if room < chromium.SHARED_MEMORY_BYTES_MIN:
        pytest.skip(f"{chromium.SHARED_MEMORY} has only {room} bytes")
    if not roomy:
        monkeypatch.setattr(chromium, "SHARED_MEMORY_BYTES_MIN", 1 << 60)
    with serving() as site:
        async with browser(tmp_path, own=True) as kit:
            _, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/desk.html"))
            on_disk = {path for path in open_below(tmp_path, kit.resource.process_ids()) if path.endswith("(deleted)")}
            assert bool(on_disk) == (not roomy)


async def test_a_page_is_used_from_either_backend(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, own=True, start=f"{site.base}/talk.html") as kit:
            branch, binding = await kit.fresh()
            thread = kit.resource._thread._thread
            async with kit.resource.raw(binding) as page:
                await page.mouse.wheel(0, 400)
                await page.wait_for_function("scrollY === 400")
                await page.locator("#keys").fill("typed")
                assert await page.get_by_text("Twice").count() == 1
                assert page.url == f"{site.base}/talk.html"
                async with page.expect_popup() as popup:
                    await page.click("text=Desk")
                kid = await popup.value
                assert await kid.title() == "desk"
                assert await kid.evaluate("() => opener") is None
                assert [one == page for one in page.context.pages] == [True, False]
                kept = page
            with pytest.raises(ResourceFailed, match="has ended"):
                await kept.title()
            assert (await kit.resource.observe(binding)).title == "desk"
            assert (await kit.seal(branch)).version != branch.base
        assert thread is not None
        assert thread not in threading.enumerate()
        await kit.resource.stop()


async def test_a_cancelled_bind_or_action_leaves_nothing_running(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, own=True, start=f"{site.base}/desk.html") as kit:
            sealed = await kit.resource.provision()
            for number in range(8):
                branch = await kit.resource.branch(sealed, Owner(env="e", epoch=number))
                with anyio.move_on_after(0.003 * number**2):
                    await kit.resource.bind(branch, Identity(env="e", epoch=number, activation=number), Needs())
                await kit.resource.discard(branch)
            assert await contexts(kit) == 0
            _, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/talk.html"))
            with anyio.move_on_after(0.3) as scope:
                await kit.act(binding, a.Click(text="Nowhere"))
            assert scope.cancelled_caught
            # Cancelled means ended: had the click gone on waiting, it would now find its button and take it.
            await kit.act(binding, a.Fill("#keys", value="x"))
            async with kit.resource.raw(binding) as page:
                await page.evaluate("() => { pad.textContent = 'Nowhere'; document.title = 'calm' }")
                await page.evaluate(script("many_frames"))
            assert (await kit.resource.observe(binding)).title == "calm"
            await kit.resource.unbind(binding)
            await kit.resource.unbind(binding)
            assert await contexts(kit) == 0
            with pytest.raises(NotReady):
                await kit.resource.observe(binding)


async def test_chromium_dying_under_an_action_is_told_at_once_and_it_is_started_again(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, own=True, start=f"{site.base}/talk.html") as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Fill("#keys", value="kept"))
            sealed = await kit.seal(branch)
            host = kit.resource._host
            assert host is not None
            began = time.monotonic()
            await die_under_an_action(kit, site, binding, host.browser_pid)
            assert time.monotonic() - began < 5
            with pytest.raises(NotReady):
                await kit.resource.probe(binding)
            for call in (kit.resource.observe(binding), kit.resource.write_mark(branch), kit.resource.seal(branch)):
                with pytest.raises(RuntimeDied):
                    await call
            await kit.resource.unbind(binding)
            fork, _ = await kit.fork(sealed)
            assert await kit.raw(fork, "() => keys.value") == "kept"
            assert kit.resource.launches == 2


async def die_under_an_action(kit: Kit, site: Site, binding: Binding, pid: int) -> None:
    """Kill a process from outside while an action waits for the server's answer."""

    async def kill() -> None:
        await anyio.to_thread.run_sync(site.asked.wait, 20)
        os.kill(pid, signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        with pytest.raises(RuntimeDied):
            await kit.act(binding, a.Goto(f"{site.base}/slow"))


def driver(kit: Kit) -> int:
    """Playwright's driver, of whose end Playwright tells nobody."""
    assert kit.resource._host is not None
    return kit.resource._host.driver_pid


def zygote(kit: Kit) -> int:
    """A process without which no new page begins: Chromium does not notice its end."""
    for pid in kit.resource.process_ids():
        if "--type=zygote" in psutil.Process(pid).cmdline():
            return pid
    raise AssertionError("Chromium has no zygote")


@ON_TRIO
@pytest.mark.parametrize("process", [driver, zygote])
async def test_what_the_browser_needs_dies_and_all_is_replaced(tmp_path: Path, process: Callable[[Kit], int]) -> None:
    with serving() as site:
        async with browser(tmp_path, own=True, start=f"{site.base}/talk.html") as kit:
            _, idle = await kit.fresh("idle")
            _, acting = await kit.fresh("acting")
            tree = kit.resource.process_ids()
            await die_under_an_action(kit, site, acting, process(kit))
            for binding in (idle, acting):
                assert kit.resource.died(binding)
                with pytest.raises(RuntimeDied):
                    await kit.act(binding, a.Fill("#keys", value="late"))
            _, binding = await kit.fresh("after")
            await kit.act(binding, a.Fill("#keys", value="on time"))
            await all_gone(tree)
            assert kit.resource.launches == 2


@ON_TRIO
async def test_a_crashed_page_ends_its_own_context_only(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, own=True, start=f"{site.base}/talk.html") as kit:
            _, other = await kit.fresh("other")
            await kit.unprepared()
            before = await renderer(kit, but=set())
            _, binding = await kit.fresh()
            await kit.unprepared()
            (pid,) = await renderer(kit, but=before)
            await die_under_an_action(kit, site, binding, pid)
            with pytest.raises(RuntimeDied):
                await kit.resource.observe(binding)
            assert (await kit.resource.observe(other)).title == "talk"
            await kit.resource.unbind(binding)
            assert kit.resource.launches == 1
            assert await contexts(kit) == 1


async def all_gone(pids: tuple[int, ...]) -> None:
    """Wait until none of the processes is left."""
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(left, timeout=20))
    assert not alive


@ON_TRIO
async def test_killing_the_engine_leaves_no_process_and_no_temporary_file(tmp_path_factory: Any) -> None:
    state = tmp_path_factory.mktemp("s")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", ENGINE, str(state)]
    async with await anyio.open_process(command, env=environment, start_new_session=True, stderr=None) as engine:
        assert engine.stdout is not None
        said = b""
        while not said.endswith(b"\n"):
            said += await engine.stdout.receive()
        pids = tuple(int(pid) for pid in said.split())
        assert len(pids) > 3
        # A terminal's Ctrl-C must reach the engine only, which parks its environments first.
        assert os.getsid(engine.pid) not in {os.getsid(pid) for pid in pids}
        os.kill(engine.pid, signal.SIGKILL)
    await all_gone(pids)
    scratch = state / "runtimes" / "browser.tmp"
    assert not scratch.exists() or not list(scratch.iterdir())


async def test_the_bridge_passes_results_errors_and_cancellation(tmp_path: Path) -> None:
    thread = AsyncioThread("bridge-test")
    await thread.start()
    await thread.start()
    ended: list[str] = []

    async def value(number: int) -> int:
        return number + 1

    async def fail() -> None:
        raise KeyError("inside")

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.append("truly")

    assert await thread.call(value, 1) == 2
    with pytest.raises(KeyError, match="inside"):
        await thread.call(fail)
    with anyio.move_on_after(0.05) as scope:
        await thread.call(stubborn)
    assert scope.cancelled_caught
    assert ended == ["truly"]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await thread.call(value, 1)
    await thread.stop()
    await thread.stop()
    with pytest.raises(RuntimeDied):
        await thread.call(value, 1)
