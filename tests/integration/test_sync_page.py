"""A lent Playwright page without ``await``: the methods of Playwright's synchronous interface, and Ctrl-C in one."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import TimeoutError as PlaywrightTimeout

import statefork
from statefork import sync
from statefork.adapters.interfaces.lent_page import front
from statefork.engine.errors import LeaseRevoked, ResourceFailed
from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Moment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CONTRACT = """
[contract]
name = "desk"
[resources.browser]
adapter = "browser"
"""
DESK = """
<title>Desk</title>
<button onclick="console.log('pressed'); this.textContent = 'Pressed'">Press</button>
<input aria-label="Note">
"""
REVOKE = DrainPolicy(deadline_s=0.05, then="revoke", join_s=60.0)
SECONDS_MAX = 120.0
INTERRUPTED = """
import sys
from statefork import sync
with sync.open_engine(sys.argv[1], state=sys.argv[2]) as engine:
    env = engine.create("a")
    try:
        with env.page() as page:
            print("now", flush=True)
            page.get_by_role("button", name="There is none").click(timeout=0)
    except KeyboardInterrupt:
        with env.page() as page:
            print("again", page.evaluate("6 * 7"), flush=True)
"""


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    file = tmp_path / "desk.toml"
    file.write_text(CONTRACT)
    return file


@pytest.fixture
def env(contract: Path) -> Iterator[sync.Environment]:
    with sync.open_engine(contract, state=contract.with_name("state")) as engine:
        yield engine.create("a")
    assert statefork.audit(contract.with_name("state")).clean


def test_a_page_is_used_as_in_playwrights_synchronous_interface(env: sync.Environment) -> None:
    told: queue.Queue[str] = queue.Queue()
    with env.page() as page:
        page.on("console", lambda message: told.put(message.text))
        page.set_content(DESK)
        page.get_by_role("button", name="Press").click()
        assert told.get(timeout=SECONDS_MAX) == "pressed"
        page.get_by_label("Note").fill("tea")
        assert page.get_by_label("Note").input_value() == "tea"
        assert page.evaluate("({ title, sum }) => [document.title === title, sum]", {"title": "Desk", "sum": 3}) == [
            True,
            3,
        ]
        assert [frame.url for frame in page.frames] == [page.main_frame.url]
        assert page.main_frame == page.frames[0]
        with page.expect_console_message() as said:
            page.get_by_role("button", name="Pressed").click()
        assert said.value.text == "pressed"
        button = page.query_selector("button")
        assert page.evaluate("element => element.textContent", button) == "Pressed", "what was lent can be given back"
        with pytest.raises(PlaywrightTimeout):
            page.get_by_role("button", name="There is none").click(timeout=1)
        with pytest.raises(AttributeError, match="can't be set"):
            page.title = "mine"
    with pytest.raises(ResourceFailed, match="lent for one action"):
        page.title()
    with pytest.raises(ResourceFailed, match="lent for one action"):
        _ = button.text_content
    assert env.observe().title == "Desk"
    assert env.capsule.actions == 1


def test_given_two_tabs_when_a_page_is_brought_to_front_then_its_tab_is_the_active_one(env: sync.Environment) -> None:
    with env.page() as page:
        page.set_content(DESK)
        other = page.context.new_page()
        other.set_content("<title>Other</title>")
    assert env.observe().title == "Other"
    with env.page() as page:
        page.context.pages[0].bring_to_front()
        assert front(page).title() == "Desk"
    assert env.observe().title == "Desk"


def test_a_callback_that_would_wait_for_itself_is_refused(env: sync.Environment) -> None:
    told: queue.Queue[Any] = queue.Queue()

    def meddle(_: object) -> None:
        try:
            told.put(page.title())
        except RuntimeError as error:
            told.put(error)

    with env.page() as page:
        page.on("console", meddle)
        page.evaluate("console.log('now')")
        assert "would wait for itself" in str(told.get(timeout=SECONDS_MAX))


def test_given_a_call_on_a_page_when_the_environment_is_reset_then_it_is_cut_short(env: sync.Environment) -> None:
    def reset_under(page: Any) -> None:
        resets.append(pool.submit(env.reset, drain=REVOKE))
        page.get_by_role("button", name="There is none").click(timeout=0)

    resets: list[Future[Moment]] = []
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(LeaseRevoked), env.page() as page:
            reset_under(page)
        assert str(resets[0].result(SECONDS_MAX)) == "a@2"
    assert env.observe().url == "about:blank"


def test_given_a_call_on_a_page_when_interrupted_then_it_ends_and_the_page_can_be_lent_again(contract: Path) -> None:
    state = contract.with_name("state")
    command = [sys.executable, "-c", INTERRUPTED, str(contract), str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "now\n", program.communicate(timeout=SECONDS_MAX)[1]
            program.send_signal(signal.SIGINT)
            said, faults = program.communicate(timeout=SECONDS_MAX)
        finally:
            program.kill()
    assert said == "again 42\n", faults
    assert program.returncode == 0, faults
    assert statefork.audit(state).clean
