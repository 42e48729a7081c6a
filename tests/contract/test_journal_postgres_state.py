"""State directories whose journal is in a database: opened, refused, read, released, and served by a whole engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

import statefork
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.leftovers import Released, release
from statefork.engine.live import Doubt
from statefork.journal.conformance import note, refused, texts, to
from statefork.journal.errors import ClaimLost, JournalUnavailable, StateForeign, StateLocked, StateMissing
from statefork.journal.store import open_state
from statefork.replay.auditing import follow
from tests.contract.postgres_server import PostgresServer, missing_postgres

pytestmark = pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "-")

CONTRACT = """
[contract]
name = "notes"

[resources.tree]
adapter = "files"
base = "base"
"""


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Any]:
    from tests.contract.postgres_journal_kit import place_on

    with place_on(postgres_server) as place:
        yield place


@pytest.mark.anyio
async def test_a_state_directory_keeps_to_its_journal(place: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with refused(StateMissing):
        async with open_state(state, write=False, journal=place.dsn):
            pass
    async with open_state(state, write=True, journal=place.dsn) as opened:
        await opened.journal.append(to("env/a", "1"))
        assert not (state / "journal.sqlite3").exists()
        async with open_state(state, write=False, journal=place.dsn) as view:
            assert view.journal.id == opened.journal.id
            assert await texts(view.journal) == ["1"]
    for write in (True, False):
        with refused(JournalUnavailable, path=str(state)):
            async with open_state(state, write=write):  # type: ignore[call-overload]  # both at once
                pass
    with refused(StateForeign):  # that of another schema
        async with open_state(state, write=True, journal=f"{place.dsn}_2"):
            pass
    async with open_state(tmp_path / "file", write=True):
        pass
    with refused(StateForeign):
        async with open_state(tmp_path / "file", write=True, journal=place.dsn):
            pass
    place.ask("DROP SCHEMA {s} CASCADE")
    with refused(StateForeign):  # a new journal under the old name
        async with open_state(state, write=True, journal=place.dsn):
            pass


@pytest.mark.anyio
async def test_after_a_crash_its_own_directory_need_not_wait(place: Any, tmp_path: Path) -> None:
    async with open_state(tmp_path / "state", write=True, journal=place.dsn) as opened:
        await opened.journal.append(to("env/a", "1"))
        (tmp_path / "state" / "lock").unlink()  # as if its process were gone, and its claim still there
        async with open_state(tmp_path / "state", write=True, journal=place.dsn) as again:
            await again.journal.append(to("env/a", "2"))
            with refused(ClaimLost):
                await opened.journal.append(to("env/a", "x"))
            with anyio.fail_after(60):
                assert (await opened.journal.fenced()).facts["stream"] == f"engine/{again.place}"


@pytest.mark.anyio
async def test_several_directories_share_a_journal_and_a_copy_of_one_is_refused(place: Any, tmp_path: Path) -> None:
    async with open_state(tmp_path / "one", write=True, journal=place.dsn) as one:
        await one.journal.append(to("env/a", "1"))
        async with open_state(tmp_path / "two", write=True, journal=place.dsn) as two:
            assert (two.journal.id, two.place != one.place) == (one.journal.id, True)
            await two.journal.append(to("env/b", "2"))
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        with refused(StateLocked, place=one.place):
            async with open_state(tmp_path / "copy", write=True, journal=place.dsn):
                pass
        place.ask("UPDATE {s}.claims SET expires = clock_timestamp()")
        async with open_state(tmp_path / "copy", write=True, journal=place.dsn) as copy:
            await copy.journal.append(to("env/a", "3"))
            one.journal.ride("act/a", note("x"))
            with refused(ClaimLost):  # to whatever stream
                await one.journal.append(to("env/new", "x"))
            assert await texts(one.journal) == ["1", "2", "3"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_whole_engine(place: Any, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "note").write_text("hello")
    (tmp_path / "notes.toml").write_text(CONTRACT)
    state = tmp_path / "state"
    options: dict[str, Any] = {"state": state, "journal": place.dsn}
    async with statefork.open_engine(tmp_path / "notes.toml", **options) as engine:
        env = await engine.create("a")
        await env.snapshot()
        await engine.fork("a@1", n=1)
    async with statefork.open_engine(tmp_path / "notes.toml", **options) as engine:
        assert [one.name for one in engine.environments()] == ["a", "a-f1"]
        await engine.environment("a").reset()
        await engine.kernel.activate("a")
        await without_its_branch(engine, state, place.dsn)
    assert [row[0] for row in place.ask("SELECT environment FROM {s}.environments")] == ["a", "a-f1"]
    assert await release(state) == Released()
    report = await run_sync(partial(statefork.audit, state, world=True, journal=place.dsn))
    assert report.clean, report
    assert report.events == place.ask("SELECT count(*) FROM {s}.events")[0][0]
    options = {"told": lambda found: None, "idle": lambda: False, "looked": lambda position, head: True}
    followed = await run_sync(partial(follow, state, journal=place.dsn, **options))
    assert followed.clean
    assert followed.events == report.events
    place.ask("UPDATE {s}.events SET event = replace(event, '\"a\"', '\"b\"') WHERE stream = 'env/a' AND version = 1")
    assert not (await run_sync(partial(statefork.audit, state, journal=place.dsn))).clean
    unnamed = await run_sync(statefork.audit, state)
    assert "STATEFORK_JOURNAL" in unnamed.unreadable[0]
    gone = await run_sync(partial(statefork.audit, state, journal="postgresql://user:hush@127.0.0.1:1/x"))
    assert gone.unreadable
    assert "hush" not in str(gone)


async def without_its_branch(engine: statefork.Engine, state: Path, dsn: str) -> None:
    """An environment that is bound, with a branch and without, as an audit beside the engine sees it."""
    record = state / "resources" / "tree" / "branches" / f"{engine.kernel.branches('a')['tree'].id}.json"
    look = partial(statefork.audit, state, world=True, journal=dsn)
    assert (await run_sync(look)).clean
    record.rename(tmp := state / "aside")
    report = await run_sync(look)
    tmp.rename(record)
    assert [finding.sentence for finding in report.findings] == ["a is bound (activation 2), and has no branch of tree"]


@pytest.mark.anyio
async def test_only_the_directory_of_a_journal_is_compared_with_it(place: Any, tmp_path: Path) -> None:
    states = {name: tmp_path / name for name in ("mine", "other", "file", "none")}
    for name, journal in {"mine": place.dsn, "other": f"{place.dsn}_2", "file": None}.items():
        async with open_state(states[name], write=True, journal=journal) as opened:  # type: ignore[call-overload]  # each
            await opened.journal.append(to("env/a", "1"))
    states["none"].mkdir()
    said = {name: await run_sync(partial(statefork.audit, state, journal=place.dsn)) for name, state in states.items()}
    assert said["mine"].exit_code != 2 or not said["mine"].unreadable
    assert "and that of" in said["other"].unreadable[0]
    assert "(?schema=…)" in said["other"].unreadable[0]
    for name in ("file", "none"):
        assert said[name].unreadable == (f"{states[name]} belongs to no journal in a database: it has no journal.json",)


def statefork_command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statefork", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


def test_the_commands_that_read(place: Any, tmp_path: Path) -> None:
    async def write() -> None:
        async with open_state(tmp_path / "state", write=True, journal=place.dsn) as opened:
            await opened.journal.append(to("env/a", "1"))

    anyio.run(write)
    state = str(tmp_path / "state")
    told = statefork_command("log", "--state", state, STATEFORK_JOURNAL=place.dsn)
    assert "env/a" in told.stdout, told.stderr
    told = statefork_command("log", "--state", state)
    assert told.returncode == 2
    assert "STATEFORK_JOURNAL" in told.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_environment_in_doubt_is_listed_as_that(place: Any, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "notes.toml").write_text(CONTRACT)
    state = tmp_path / "state"
    async with statefork.open_engine(tmp_path / "notes.toml", state=state, journal=place.dsn) as engine:
        for name in "ab":
            await engine.create(name)
        live = engine.kernel._conductor.lives["a"]
        live.doubt = Doubt()
        async with serve_control(engine):
            listed = partial(statefork_command, "ls", "--json", "--state", str(state), STATEFORK_JOURNAL=place.dsn)
            told = await run_sync(listed)
        live.doubt = None
    phases = {one["env"]: one["phase"] for one in json.loads(told.stdout)["environments"]}
    assert phases == {"a": "in doubt", "b": "serving"}
