"""Fixtures and rules for all tests: both event loops, true reasons for skipping, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, cast

import hypothesis
import pytest

from statefork.adapters.resources.browser.chromium import find_chromium
from statefork.engine.errors import MissingDependency
from tests.contract.postgres_server import missing_postgres
from tests.leak_guard import LeakGuard

GUARD = pytest.StashKey[LeakGuard]()
LEFT = pytest.StashKey[list[str]]()

# The same examples in every run: a failure is found again by running again. 'explore' looks further, with fresh ones.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell that starts something in the background makes it ignore interrupts, and its children inherit that: commands
# under test could not be interrupted then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests run on both event loops."""
    return cast(str, request.param)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A server as the resource ``postgres`` runs it, one for the session; tests come with journals of their own."""
    if reason := missing_postgres():
        pytest.skip(reason)
    from tests.contract.postgres_kit import cluster  # it imports what is to be rewritten

    with cluster() as server:
        yield server


def missing_chromium() -> str:
    """Why the browser's tests can't run; empty when they can."""
    try:
        find_chromium()
    except MissingDependency as error:
        return str(error)
    return ""


def missing_root() -> str:
    """Why tests that need root can't run; empty when they can."""
    return "" if os.geteuid() == 0 else "this needs root"


def missing_shop() -> str:
    """Why the shop's tests can't run; empty when they can."""
    absent = [name for name in ("oscar", "whoosh", "PIL") if find_spec(name) is None]
    return f"the shop needs {', '.join(absent)}: pip install 'statefork[demo]'" if absent else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what can't run here, with the reason. Of several processes let none be left with a long test at the end."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = long_ones_first(items, workers)
    reasons = {"browser": missing_chromium(), "root": missing_root(), "shop": missing_shop()}
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def long_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each process begins with an equal part of the list, in its order, and then takes from the ends of the others'."""
    long = [item for item in items if is_long(item)]
    long_ids = set(map(id, long))
    short = [item for item in items if id(item) not in long_ids]
    found: list[pytest.Item] = []
    for left in range(workers, 0, -1):
        part, mine = (len(long) + len(short)) // left, long[: len(long) // left]
        rest = max(part - len(mine), 0)
        found += mine + short[:rest]
        del long[: len(mine)], short[:rest]
    return found


def is_long(item: pytest.Item) -> bool:
    """Whether it starts servers of real applications, or processes that are killed."""
    marked = item.get_closest_marker("shop") or item.get_closest_marker("sites")
    return marked is not None or "tests/crash/test_kill" in item.nodeid


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch."""
    config.stash[GUARD] = LeakGuard()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session when something was left behind; session-wide fixtures have ended by now."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    folder = getattr(factory, "_basetemp", None)
    left = session.config.stash[GUARD].end(folder) + session.config.stash.get(LEFT, [])
    session.config.stash[LEFT] = left
    if hasattr(session.config, "workeroutput"):  # one of several processes: the one that started it tells
        session.config.workeroutput["left"] = left
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear from a process that ran a part of the tests what it left behind."""
    stash = node.config.stash
    stash[LEFT] = stash.get(LEFT, []) + getattr(node, "workeroutput", {}).get("left", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left behind."""
    left = config.stash.get(LEFT, [])
    if left:
        terminalreporter.section("left behind by this session", red=True)
        for line in left:
            terminalreporter.line(line, red=True)
