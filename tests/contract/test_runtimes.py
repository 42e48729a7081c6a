"""Resident processes: started, probed, restarted, and gone when the engine is gone, however it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest

from statefork.engine.errors import ResourceFailed, RuntimeDied
from statefork.engine.memory import process_pss, tree_pss
from statefork.engine.runtimes import Plan, Runtime, log_tail, marks, reap_leftovers, resident, rotate

pytestmark = pytest.mark.anyio

JOURNAL = "journal-of-the-test"
FAMILY = "sleep 1000 & setsid sleep 1001 & echo started ; wait"
"""A process with a child in its group and one that left it."""


async def at_once(runtime: Runtime) -> None:
    """The probe of a process that is ready when it runs."""


def asks_for(path: Path) -> Callable[[Runtime], object]:
    async def probe(runtime: Runtime) -> None:
        if not await anyio.Path(path).exists():
            raise FileNotFoundError(f"{path.name} is not there yet")

    return probe


def shell(script: str, **more: object) -> Plan:
    return Plan(name="thing", command=("/bin/sh", "-c", script), **{"probe": at_once, **more})


def living(state: Path) -> set[str]:
    """The commands of the processes that belong to a state directory."""
    wanted = marks(state, JOURNAL, "thing")
    found = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and wanted.items() <= process.environ().items():
                found.add(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - other processes can't set an event of ours
            await anyio.sleep(0.005)


async def test_a_runtime_lives_as_long_as_its_scope_and_its_whole_family_ends_with_it(tmp_path: Path) -> None:
    async with resident(shell(FAMILY), state=tmp_path, journal=JOURNAL) as runtime:
        await runtime.ready()
        await until(lambda: {"sleep 1000", "sleep 1001"} <= living(tmp_path))
        assert (tmp_path / "runtimes" / "thing.json").exists()
        assert tree_pss(runtime.pid)[0] >= 2
        assert tree_pss(runtime.pid)[1] >= process_pss(runtime.pid) > 0
        pid = runtime.pid
    assert living(tmp_path) == set()
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "runtimes" / "thing.json").exists()


async def test_readiness_is_asked_until_it_answers(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    plan = shell(f"sleep 0.2; touch {ready}; sleep 1000", probe=asks_for(ready))
    async with resident(plan, state=tmp_path, journal=JOURNAL):
        assert ready.exists()


async def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    plan = shell("echo one; echo 'port is taken' >&2; exit 3", probe=asks_for(tmp_path / "never"))
    with pytest.raises(ResourceFailed, match="ended with code 3") as caught:
        async with resident(plan, state=tmp_path, journal=JOURNAL):
            pytest.fail("it must not come up")
    assert "port is taken" in caught.value.hint


async def test_a_start_that_never_answers_ends_at_the_deadline(tmp_path: Path) -> None:
    plan = shell("echo waiting; sleep 1000", probe=asks_for(tmp_path / "never"), ready_s=0.3)
    with pytest.raises(ResourceFailed, match=r"did not answer within 0\.3 s \(never is not there yet\)"):
        async with resident(plan, state=tmp_path, journal=JOURNAL):
            pytest.fail("it must not come up")
    assert living(tmp_path) == set()


async def test_a_missing_command_is_told(tmp_path: Path) -> None:
    plan = Plan(name="thing", command=("no-such-program-anywhere",), probe=asks_for(tmp_path / "never"))
    with pytest.raises(ResourceFailed) as caught:
        async with resident(plan, state=tmp_path, journal=JOURNAL):
            pytest.fail("it must not come up")
    assert "not found" in caught.value.hint


async def test_a_killed_runtime_is_started_again_and_its_death_is_told(tmp_path: Path) -> None:
    deaths: list[int] = []

    async def died(runtime: Runtime, code: int) -> None:
        deaths.append(code)

    async with resident(shell("sleep 1000"), state=tmp_path, journal=JOURNAL, on_death=died) as runtime:
        first = runtime.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: deaths)
        await runtime.ready()
        assert runtime.pid not in (0, first)
        assert runtime.starts == 2
    assert deaths == [-signal.SIGKILL]
    assert (tmp_path / "logs" / "thing.log.1").exists()


async def test_one_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    """It dies when it was found ready, and not before: else it would be one that can't be started."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)

    async def lets_it_die(runtime: Runtime) -> None:
        os.write(pipe, b"now\n")

    plan = shell(f"read _ < '{tmp_path}/pipe'; echo bad luck; exit 7", restarts_max=1, probe=lets_it_die)
    try:
        async with resident(plan, state=tmp_path, journal=JOURNAL) as runtime:
            await until(lambda: runtime.given_up)
            with pytest.raises(RuntimeDied, match="2 times in a row"):
                await runtime.ready()
    finally:
        os.close(pipe)
    assert living(tmp_path) == set()


async def test_cancellation_ends_the_process(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with resident(shell(FAMILY), state=tmp_path, journal=JOURNAL):
            await until(lambda: "sleep 1000" in living(tmp_path))
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert living(tmp_path) == set()


async def test_an_error_of_the_body_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with resident(shell("sleep 1000"), state=tmp_path, journal=JOURNAL):
            raise ValueError("mine")


ENGINE = """
    import pathlib, sys, trio
    from statefork.engine.runtimes import Plan, resident

    async def at_once(runtime):
        pass

    async def main():
        plan = Plan(name="thing", command=("/bin/sh", "-c", sys.argv[2]), probe=at_once)
        async with resident(plan, state=pathlib.Path(sys.argv[1]), journal="journal-of-the-test"):
            print("up", flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


def engine(state: Path, script: str) -> subprocess.Popen[str]:
    """An engine in a process of its own, with a runtime."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENGINE), str(state), script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


async def test_the_group_dies_with_a_killed_engine_and_the_rest_is_reaped(tmp_path: Path) -> None:
    with engine(tmp_path, FAMILY) as process:
        await until(lambda: {"sleep 1000", "sleep 1001"} <= living(tmp_path))
        process.kill()
    await until(lambda: "sleep 1000" not in living(tmp_path))  # by the tether alone
    assert living(tmp_path) == {"sleep 1001"}  # it left the group
    assert reap_leftovers(tmp_path, "another journal") == []
    assert living(tmp_path) == {"sleep 1001"}
    assert reap_leftovers(tmp_path, JOURNAL) == ["thing"]
    assert living(tmp_path) == set()
    assert reap_leftovers(tmp_path, JOURNAL) == []


def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, **environment})


async def test_a_record_whose_pid_was_taken_by_another_process_harms_nobody(tmp_path: Path) -> None:
    with engine(tmp_path, "sleep 1000") as process:
        record = (tmp_path / "runtimes" / "thing.json").read_text()
        process.kill()
    await until(lambda: living(tmp_path) == set())
    stranger = start("sleep", "1002", **marks(tmp_path, "another journal", "thing"))
    try:
        pid = record.partition('"pid": ')[2].partition(",")[0]
        (tmp_path / "runtimes" / "thing.json").write_text(record.replace(f'"pid": {pid}', f'"pid": {stranger.pid}'))
        assert reap_leftovers(tmp_path, JOURNAL) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not (tmp_path / "runtimes" / "thing.json").exists()


def test_logs_are_rotated_at_each_start(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    for number in range(8):
        rotate(log)
        log.write_text(f"start {number}\n")
    assert log_tail(log) == "start 7"
    assert sorted(path.name for path in log.parent.iterdir()) == ["thing.log", *(f"thing.log.{n}" for n in range(1, 5))]
    assert log_tail(tmp_path / "none") == ""
