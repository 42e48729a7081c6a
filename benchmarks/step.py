"""What a step costs: act and observe through Gymnasium, against the same Playwright calls without statefork.

    ./dev bench step [--json] [--rounds N]

The same shop twice on this machine, each on one server and in one Chromium of the same build and flags: as an
environment of statefork, and plain, asked directly. In every round each action is done on both, one right after the
other, in turns first. The plain side does what an action does there: Playwright's call, the wait for load, for what was
asked for and for two frames, then address, title, accessibility snapshot and screenshot at once, decoded. So the
difference is the gateway, the journal, the blobs, the lease and the way between the threads. Times are medians in
milliseconds; ``overhead_percent`` compares the medians of whole rounds. ``judge_ms`` is what a judge's query takes,
where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _machine import machine
from playwright.async_api import Page, async_playwright

from statefork import actions as a
from statefork.adapters.interfaces.gym.env import StateforkEnv, pixels
from statefork.adapters.resources.browser.chromium import find_chromium, launch_flags, unwanted_flags
from statefork.worlds.shop.build import cached

SCREEN = (800, 1280)
SHOP = "http://shop.example"
CATALOGUE = "/catalogue/"
SCREENSHOT: dict[str, Any] = {"animations": "disabled", "caret": "hide", "scale": "css"}
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))"

Plain = Callable[[Page, str], Awaitable[Any]]

STEPS: tuple[tuple[str, a.Action, Plain], ...] = (
    ("goto", a.Goto(SHOP + CATALOGUE), lambda page, shop: page.goto(shop + CATALOGUE)),
    ("scroll", a.Scroll(x=600, y=400, dy=300), lambda page, shop: _wheel(page)),
    ("press", a.Press(key="Tab"), lambda page, shop: page.keyboard.press("Tab")),
    ("fill", a.Fill(selector="#id_q", value="lamp"), lambda page, shop: page.locator("#id_q").fill("lamp")),
    (
        "click_link",
        a.Click(selector="article h3 a", nth=0),
        lambda page, shop: page.locator("article h3 a").nth(0).click(),
    ),
    ("back", a.Back(), lambda page, shop: page.go_back()),
    (
        "click_post",
        a.Click(role="button", name="Add to basket", nth=0),
        lambda page, shop: page.get_by_role("button", name="Add to basket").nth(0).click(),
    ),
)


async def _wheel(page: Page) -> None:
    await page.mouse.move(600, 400)
    await page.mouse.wheel(0, 300)


class Peer:
    """The plain side: a page, and how many of its requests are under way."""

    def __init__(self, page: Page, shop: str) -> None:
        self._page = page
        self._shop = shop
        self._under_way = 0
        self._moved = asyncio.Event()
        for event, change in (("request", 1), ("requestfinished", -1), ("requestfailed", -1)):
            page.on(event, lambda _, change=change: self._count(change))  # type: ignore[call-overload]  # by name

    def _count(self, change: int) -> None:
        self._under_way += change
        self._moved.set()

    async def step(self, act: Plain) -> tuple[Any, ...]:
        """Act, come to rest, look."""
        page = self._page
        await act(page, self._shop)
        await page.wait_for_load_state("load")
        while self._under_way > 0:
            self._moved.clear()
            await self._moved.wait()
        await page.evaluate(TWO_FRAMES)
        url, title, text, png = await asyncio.gather(
            page.evaluate("() => location.href"),
            page.title(),
            page.locator(":root").aria_snapshot(),
            page.screenshot(**SCREENSHOT),
        )
        return url, title, text, pixels(png, SCREEN)


@contextmanager
def plain_shop(folder: Path) -> Iterator[str]:
    """The shop on a server of its own; its address."""
    shutil.copytree(cached(lambda fraction, text: None), folder)
    command = [sys.executable, "-m", "statefork.worlds.shop", "serve", "--base", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = next(line for line in server.stderr if "serves on " in line)
            yield said.split("serves on ")[1].split()[0].rstrip("/")
        finally:
            server.terminate()


def basket(seen: Any) -> float:
    """A judge's query."""
    return float(seen.query("db", "SELECT count(*) AS lines FROM basket_line")[0]["lines"])


async def run(rounds: int) -> dict[str, Any]:
    """Measure."""
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="statefork-step-") as name, plain_shop(Path(name, "plain")) as shop:
        env = StateforkEnv("shop", state=Path(name, "state"))
        judged = StateforkEnv("shop", state=Path(name, "state"), judge=basket)
        async with async_playwright() as playwright:
            executable = find_chromium()
            browser = await playwright.chromium.launch(
                executable_path=executable, args=launch_flags(executable), ignore_default_args=unwanted_flags()
            )
            size = {"width": SCREEN[1], "height": SCREEN[0]}
            page = await browser.new_page(viewport=size, device_scale_factor=1, locale="en-US")  # type: ignore[arg-type]  # a ViewportSize
            peer = Peer(page, shop)
            try:
                await asyncio.to_thread(env.reset)
                await asyncio.to_thread(judged.reset)
                for number in range(rounds + 1):
                    noted: dict[str, list[float]] = times if number else defaultdict(list)  # the first warms up
                    await _round(env, peer, noted, plain_first=bool(number % 2))
                    began = time.perf_counter()
                    await asyncio.to_thread(judged._verdict)
                    noted["judge_ms"].append((time.perf_counter() - began) * 1000)
            finally:
                await browser.close()
                await asyncio.to_thread(judged.close)
                await asyncio.to_thread(env.close)
    return _told(times, rounds)


async def _round(env: StateforkEnv, peer: Peer, times: dict[str, list[float]], *, plain_first: bool) -> None:
    totals = {"plain": 0.0, "statefork": 0.0}
    for name, action, plain in STEPS:
        for side in ("plain", "statefork") if plain_first else ("statefork", "plain"):
            began = time.perf_counter()
            if side == "plain":
                await peer.step(plain)
            else:
                *_, info = await asyncio.to_thread(env.step, action)
                assert "error" not in info, info
            took = (time.perf_counter() - began) * 1000
            totals[side] += took
            times[f"{name}_{side}_ms"].append(took)
    for side, total in totals.items():
        times[f"round_{side}_ms"].append(total)


def _told(times: dict[str, list[float]], rounds: int) -> dict[str, Any]:
    medians = {key: round(statistics.median(values), 1) for key, values in times.items()}
    over = 100 * (medians["round_statefork_ms"] / medians["round_plain_ms"] - 1)
    return {"machine": machine(), "rounds": rounds, **medians, "overhead_percent": round(over, 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=25, help="repetitions of which the medians are taken")
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments.rounds))
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    for key, value in result.items():
        print(f"{key:<26} {value}")


if __name__ == "__main__":
    main()
