"""Branches in advance: when they are made, who gets them, and what becomes of those that nobody takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from statefork.engine.errors import ResourceFailed

pytest.importorskip("psycopg")

from statefork.adapters.resources.postgres import workshop as module
from statefork.adapters.resources.postgres.roles import Opened
from statefork.adapters.resources.postgres.together import TOGETHER_MAX, each
from statefork.adapters.resources.postgres.workshop import EXPECTED_MAX, GARBAGE_MAX, Workshop

TIMEOUT_S = 30


class Full:
    """A cloner on a full disk."""

    def branch(self, version: str, source: str, *, enter: bool) -> None:
        raise ResourceFailed(f"no room for a copy of {version}")


def test_a_full_disk_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    cloner: Any = Full()
    workshop = Workshop("db", cloner)
    workshop.start()
    workshop.keep("version", 2)
    workshop.settle()
    workshop.stop()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "no branch could be made in advance for db: no room for a copy of version"
    assert not record.exc_info


class Copies:
    """A cloner that keeps books, and whose copies of a held database last until it is let go."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, bool]] = []
        self.dropped: list[str] = []
        self.begun = threading.Event()
        self.held = ""
        self.go_on = threading.Event()

    def branch(self, version: str, source: str, *, enter: bool) -> Opened:
        self.begun.set()
        if self.held and self.held == source:
            assert self.go_on.wait(TIMEOUT_S)
        self.made.append((version, source, enter))
        return Opened(database=f"b{len(self.made)}", secret="s", mark="m")

    def drop(self, database: str) -> None:
        self.dropped.append(database)


@pytest.fixture
def copies() -> Copies:
    return Copies()


@pytest.fixture
def workshop(copies: Copies) -> Iterator[Workshop]:
    cloner: Any = copies
    made = Workshop("db", cloner)
    made.start()
    yield made
    copies.go_on.set()
    made.stop()


def within(thread: threading.Thread) -> None:
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_what_is_expected_is_copied_from_the_source_and_given_once(workshop: Workshop, copies: Copies) -> None:
    workshop.expect("v1", "source")
    workshop.settle()
    assert copies.made == [("v1", "source", False)]
    taken = workshop.take("v1")
    assert taken is not None
    assert taken.database == "b1"
    assert workshop.take("v1") is None  # whoever comes second makes one
    workshop.stop()
    assert copies.dropped == []


def test_a_source_is_let_go_when_its_copy_is_whole(workshop: Workshop, copies: Copies) -> None:
    copies.held = "source"
    workshop.expect("v1", "source")
    assert copies.begun.wait(TIMEOUT_S)
    waiting = threading.Thread(target=workshop.let_go, args=("source",), daemon=True)
    waiting.start()
    workshop.let_go("other")  # waits for nobody
    assert copies.made == []
    copies.go_on.set()
    within(waiting)
    assert copies.made == [("v1", "source", False)]


def test_what_was_not_begun_when_the_source_is_let_go_is_never_made(workshop: Workshop, copies: Copies) -> None:
    copies.held = "source"
    workshop.expect("v1", "source")
    assert copies.begun.wait(TIMEOUT_S)
    workshop.expect("v2", "other")
    workshop.let_go("other")
    copies.go_on.set()
    workshop.settle()
    assert copies.made == [("v1", "source", False)]
    assert workshop.take("v2") is None


def test_who_comes_while_it_is_copied_gets_it(workshop: Workshop, copies: Copies) -> None:
    copies.held = "source"
    workshop.expect("v1", "source")
    assert copies.begun.wait(TIMEOUT_S)
    taken: list[Opened | None] = []
    taking = threading.Thread(target=lambda: taken.append(workshop.take("v1")), daemon=True)
    taking.start()
    copies.go_on.set()
    within(taking)
    assert [opened.database for opened in taken if opened is not None] == ["b1"]


def test_what_nobody_takes_goes_with_its_version_or_when_there_are_many(workshop: Workshop, copies: Copies) -> None:
    for number in range(EXPECTED_MAX + 2):
        workshop.expect(f"v{number}", "source")
        workshop.settle()
    assert copies.dropped == ["b1", "b2"]
    workshop.leave("v5")
    workshop.settle()
    assert copies.dropped == ["b1", "b2", "b6"]
    workshop.stop()
    assert sorted(copies.dropped[3:]) == ["b3", "b4", "b5"]


def test_the_pool_rests_while_somebody_enters_what_he_took(
    workshop: Workshop, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.keep("base", 2)
    workshop.settle()
    assert copies.made == [("base", "", True)] * 2
    monkeypatch.setattr(module, "REST_S", 3600.0)
    assert workshop.take("base") is not None
    copies.begun.clear()
    workshop.expect("v1", "source")  # somebody waits for this one
    assert copies.begun.wait(TIMEOUT_S)
    assert workshop.take("v1") is not None
    assert ("base", "", True) not in copies.made[2:]
    copies.begun.clear()
    assert workshop.take("base") is not None  # the last one: now others would wait
    assert copies.begun.wait(TIMEOUT_S)


def test_a_copy_ahead_that_fails_leaves_the_pool_alone(
    workshop: Workshop, copies: Copies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(version: str, source: str, *, enter: bool) -> Opened:
        raise ResourceFailed("the source went away")

    with monkeypatch.context() as patched:
        patched.setattr(copies, "branch", fails)
        workshop.expect("v1", "source")
        workshop.settle()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    workshop.keep("base", 1)
    workshop.settle()
    assert workshop.take("v1") is None
    assert workshop.take("base") is not None


def test_what_is_removed_goes_several_at_once(workshop: Workshop, copies: Copies) -> None:
    """Each removal ends with a checkpoint of the server, and those that go together need one."""
    together = threading.Barrier(TOGETHER_MAX)
    held = threading.Event()
    dropped: list[str] = []

    def drop(database: str) -> None:
        if database == "first":
            held.set()
            assert copies.go_on.wait(TIMEOUT_S)
        else:
            together.wait(TIMEOUT_S)  # raises where they come one by one
        dropped.append(database)

    copies.drop = drop  # type: ignore[method-assign]  # what the pool of threads calls
    workshop.remove("first")
    assert held.wait(TIMEOUT_S)
    for number in range(TOGETHER_MAX):
        workshop.remove(f"d{number}")
    copies.go_on.set()
    workshop.settle()
    assert sorted(dropped) == [*(f"d{number}" for number in range(TOGETHER_MAX)), "first"]


def test_who_brings_more_than_fits_waits_until_some_are_removed(workshop: Workshop, copies: Copies) -> None:
    held = threading.Event()

    def drop(database: str) -> None:
        held.set()
        assert copies.go_on.wait(TIMEOUT_S)
        copies.dropped.append(database)

    copies.drop = drop  # type: ignore[method-assign]  # what the thread calls
    workshop.remove("first")
    assert held.wait(TIMEOUT_S)
    for number in range(GARBAGE_MAX):
        workshop.remove(f"d{number}")
    late = threading.Thread(target=workshop.remove, args=("late",), daemon=True)
    late.start()
    copies.go_on.set()
    within(late)
    workshop.settle()
    assert len(copies.dropped) == GARBAGE_MAX + 2


def test_all_end_before_the_first_failure_is_told() -> None:
    done: list[str] = []

    def work(name: str) -> None:
        if name == "b":
            raise ResourceFailed("b is kept")
        done.append(name)

    with pytest.raises(ResourceFailed, match="b is kept"):
        each("abc", work)
    assert sorted(done) == ["a", "c"]
