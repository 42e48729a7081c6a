"""Replaying as its users see it: how far it is, each action's verdict, halting, and what went otherwise."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from statefork.adapters.interfaces.cli import replay as command
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control import protocol, stepping
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import RemoteError
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.memory import Call
from statefork.journal.events import ReplayVerdict, activity_stream

pytestmark = pytest.mark.anyio

CONTRACT = '[contract]\nname = "notes"\n[resources.page]\nadapter = "memory"\n'
PATIENCE_S = 30.0


class Notes:
    """An engine with its control door, three actions done in ``a``, and the commands beside it."""

    def __init__(self, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine = engine
        self.capsys = capsys

    async def command(self, *words: str, status: int = 0) -> str:
        """What a command printed."""
        self.capsys.readouterr()
        line = [words[0], "--state", str(self.engine.state), *words[1:]]
        got = await anyio.to_thread.run_sync(invoke, line, abandon_on_cancel=True)
        told = self.capsys.readouterr()
        assert got == status, told
        return told.out

    async def ask(self, verb: str, request: protocol.Request) -> dict[str, Any]:
        """What the door answers."""
        return await anyio.to_thread.run_sync(Control(self.engine.state).ask, verb, request, abandon_on_cancel=True)

    def meddle(self, hook: Any) -> None:
        """Before and after each call of the memory world."""
        resource: Any = self.engine.kernel.resources["page"]
        resource.world.hook = hook

    def goes_otherwise(self, place: int) -> None:
        """In replays this action fails, as something else has been written there."""
        seen: list[Call] = []

        async def hook(call: Call) -> None:
            if (call.method, call.when) == ("act", "before") and call.env.startswith("a-r"):
                seen.append(call)
                if len(seen) == place:
                    resource: Any = self.engine.kernel.resources["page"]
                    resource.world.write(self.engine.kernel.branches(call.env)["page"].id, "count", "no number")

        self.meddle(hook)

    def phase(self, env: str) -> str:
        return self.engine.capsules[env].phase.value


@pytest.fixture
def anyio_backend() -> str:
    """What ``statefork up`` runs on."""
    return "trio"


@pytest.fixture
async def notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Notes]:
    async with _notes(tmp_path, capsys) as made:
        yield made


@asynccontextmanager
async def _notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Notes]:
    (folder / "notes.toml").write_text(CONTRACT)
    with anyio.fail_after(PATIENCE_S):
        async with open_engine(folder / "notes.toml", state=folder / "state") as engine, serve_control(engine):
            env = await engine.create("a")
            for number in (1, 2, 3):
                await env.act({"type": "add", "key": "count", "amount": number})
            yield Notes(engine, capsys)


async def test_each_action_has_a_verdict(notes: Notes) -> None:
    told = await notes.command("replay", "a")
    assert told.splitlines() == ["exact-observed: a from a@1, 3 of 3 steps compared (3 actions)"]
    told = await notes.command("replay", "a", "-v")
    assert told.splitlines()[:3] == [f"  #{n}  add amount={n} key='count'  same" for n in (1, 2, 3)]
    answer = json.loads(await notes.command("replay", "a", "--json"))
    assert [(one["place"], one["of"], one["outcome"]) for one in answer["by_step"]] == [
        (n, 3, "same") for n in (1, 2, 3)
    ]
    assert answer["by_step"][0]["digest"]


async def test_the_first_divergence_is_shown_in_full_and_the_environment_named(notes: Notes, tmp_path: Path) -> None:
    notes.goes_otherwise(2)
    told = await notes.command("replay", "a", "-v", "--keep", "--pictures", str(tmp_path / "seen"), status=1)
    assert "  #2  add amount=2 key='count'  differs: it was ok and is now failed" in told
    assert "first divergence: action 2 (add): it was ok and is now failed" in told
    rows = [line.split() for line in told.splitlines()]
    assert ["outcome", "ok", "failed", "≠"] in rows
    assert "no screenshot was taken" in told
    assert "kept: a-r1  (statefork act a-r1 look" in told
    assert notes.phase("a-r1") == "serving"


async def test_without_anybody_to_ask_each_step_is_printed_as_it_happens(notes: Notes) -> None:
    told = (await notes.command("replay", "a", "--step")).splitlines()
    assert told[:3] == [f"  #{n}  add amount={n} key='count'  same" for n in (1, 2, 3)]
    assert told[3].startswith("exact-observed: a from a@1, 3 of 3")
    notes.goes_otherwise(3)
    lines = [
        json.loads(line) for line in (await notes.command("replay", "a", "--step", "--json", status=1)).splitlines()
    ]
    assert [(line["type"], line.get("outcome")) for line in lines] == [
        ("step", "same"),
        ("step", "same"),
        ("step", "differs"),
        ("result", None),
    ]
    assert lines[-1]["verdict"] == "diverged"
    assert lines[-1]["pictures"]["why"] == "no screenshot was taken"
    assert json.loads(await notes.command("replay", "a", "--step", "--inject", "2: get", "--json", status=2))["error"]


async def test_who_looks_on_says_when_to_go_on(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    said: Iterator[str] = iter(())
    monkeypatch.setattr(command, "somebody_is_there", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda _prompt: next(said))
    said = iter(["s", "", "q"])
    told = await notes.command("replay", "a", "--step", "--keep", status=3)
    assert "it has no text" in told, "of a page it is shown"
    assert "#2  add" in told
    assert "#3  add" not in told
    assert "unverified: stopped after step 2 of 3: what came after was not done again" in told
    assert "kept: a-r1" in told
    said = iter(["c"])
    told = await notes.command("replay", "a", "--step")
    assert "#3  add" in told
    assert notes.phase("a-r2") == "retired"


async def test_who_is_gone_or_drops_it_leaves_nothing_behind(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    request = protocol.Replay(ref="a", keep=True, task="t", steps=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_ask_for_the_first_step, notes, "drop")
        with pytest.raises(RemoteError, match="was dropped by who led it"):
            await notes.ask("replay", request)
    assert notes.phase("a-r1") == "retired"
    monkeypatch.setattr(stepping, "SILENCE_S", 0.1)
    with pytest.raises(RemoteError, match="nobody asked for the next step within") as caught:
        await notes.ask("replay", request)
    assert caught.value.code == "replay_dropped"
    assert notes.phase("a-r2") == "retired"
    assert (await notes.ask("step", protocol.Step(task="t")))["step"] is None
    await notes.engine.journal.flush()
    events = [recorded.event async for recorded in notes.engine.journal.read(stream=activity_stream("a"))]
    assert not any(isinstance(event, ReplayVerdict) for event in events)


async def _ask_for_the_first_step(notes: Notes, then: Any = None) -> None:
    while (told := await notes.ask("step", protocol.Step(task="t", then="on")))["step"] is None:
        await anyio.lowlevel.checkpoint()
    assert told["step"]["number"] == 1
    if then is not None:
        await notes.ask("step", protocol.Step(task="t", after=1, then=then))


async def test_an_engine_that_closes_does_not_wait_for_who_looks_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statefork.adapters.interfaces.control.server.GRACE_S", 0.1)

    async def replay(notes: Notes) -> None:
        with pytest.raises(Exception, match="did not answer"):
            await notes.ask("replay", protocol.Replay(ref="a", task="t", steps=True))

    async with anyio.create_task_group() as tasks, _notes(tmp_path, capsys) as notes:
        tasks.start_soon(replay, notes)
        await _ask_for_the_first_step(notes)
        engine = notes.engine
    assert engine.capsules["a-r1"].phase.value == "retired"


async def test_how_far_it_is_can_be_asked_meanwhile(notes: Notes) -> None:
    acting, go = anyio.Event(), anyio.Event()
    acts: list[str] = []

    async def hook(call: Call) -> None:
        if (call.method, call.when) == ("act", "before"):
            acts.append(call.env)
            if len(acts) == 3:
                acting.set()
                await go.wait()

    notes.meddle(hook)
    for request, doing in (
        (protocol.Replay(ref="a", task="t"), "replaying a"),
        (protocol.Fork(ref="a#3", task="t"), "making a#3"),
    ):
        acts.clear()
        acting, go = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(notes.ask, "replay" if doing == "replaying a" else "fork", request)
            await acting.wait()
            told = await notes.ask("progress", protocol.Watched(task="t"))
            assert (told["doing"], told["detail"]) == (doing, "2 of 3 steps")
            go.set()
    assert (await notes.ask("progress", protocol.Watched(task="t")))["doing"] == ""


async def test_on_step_is_told_of_each_and_ends_it_by_false(notes: Notes) -> None:
    seen: list[Any] = []
    assert (await notes.engine.replay("a", on_step=seen.append)).exact
    assert [one.done for one in seen] == [f"add amount={n} key='count'" for n in (1, 2, 3)]

    async def enough(step: Any) -> bool:
        return bool(step.number < 2)

    result = await notes.engine.replay("a", on_step=enough)
    assert (result.verdict, result.compared, len(result.by_step)) == ("unverified", 2, 2)
    with pytest.raises(ZeroDivisionError):
        await notes.engine.replay("a", keep=True, on_step=lambda step: 1 // 0)
    assert notes.phase("a-r3") == "retired"
