"""The synchronous face does what the asynchronous one does: same names, same results, same errors."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import statefork
from statefork import sync
from statefork.adapters.interfaces import environment, python
from statefork.adapters.resources.memory import Call, MemoryWorld
from statefork.engine.errors import (
    ActionFailed,
    ContractError,
    EngineClosed,
    HeldByCaller,
    LeaseRevoked,
    UnknownEnvironment,
)
from statefork.engine.settings import DrainPolicy, Settings
from statefork.journal.errors import StateLocked

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.page]
adapter = "memory"
initial = { greeting = "hello" }
"""
FACES = [
    (python.Engine, sync.Engine),
    (environment.Environment, sync.Environment),
    (environment.Evaluation, sync.Evaluation),
]
ASYNCHRONOUS = {"kernel", "blobs", "journal"}
"""Attributes of the asynchronous face that are themselves asynchronous objects, and stay on the engine's loop."""
REVOKE = DrainPolicy(deadline_s=0.05, then="revoke", join_s=60.0)
SETTINGS = Settings(drain_at_end=DrainPolicy(deadline_s=0.05, then="revoke", join_s=0.05))
GET = {"type": "get", "key": "greeting"}
SECONDS_MAX = 60.0


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    (tmp_path / "notes.sqlite3").touch()
    file = tmp_path / "notes.toml"
    file.write_text(CONTRACT)
    return file


@pytest.fixture
def engine(contract: Path) -> Iterator[sync.Engine]:
    with sync.open_engine(contract, state=contract.with_name("state"), settings=SETTINGS) as opened:
        yield opened
    assert statefork.audit(contract.with_name("state")).clean


def put(key: str, value: Any) -> dict[str, Any]:
    return {"type": "put", "key": key, "value": value}


def world(engine: sync.Engine) -> MemoryWorld:
    """The world of the memory resource; only the engine's own loop may touch it."""
    found = engine._engine.kernel.resources["page"].world  # type: ignore[attr-defined]  # the port does not have it
    assert isinstance(found, MemoryWorld)
    return found


def when_acting(engine: sync.Engine) -> threading.Event:
    """An event that is set when the memory resource begins its next action."""
    acting = threading.Event()

    async def hook(call: Call) -> None:
        if (call.method, call.when) == ("act", "before"):
            acting.set()

    world(engine).hook = hook
    return acting


# --- the two faces ------------------------------------------------------------------------------------------------


def public(face: type) -> dict[str, Any]:
    return {name: member for name, member in vars(face).items() if not name.startswith("_")}


@pytest.mark.parametrize(("waiting", "blocking"), FACES, ids=lambda face: face.__name__)
def test_the_synchronous_face_has_every_public_member_with_the_same_parameters(waiting: type, blocking: type) -> None:
    assert public(waiting).keys() == public(blocking).keys()
    for name, member in public(waiting).items():
        twin = public(blocking)[name]
        assert isinstance(member, property) == isinstance(twin, property), name
        if not isinstance(member, property):
            assert not inspect.iscoroutinefunction(twin), name
            assert shape(member) == shape(twin), name


def test_opening_takes_the_same_parameters() -> None:
    assert shape(python.open_engine) == shape(sync.open_engine)


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """A function's parameters: name, kind, default."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def test_the_synchronous_face_has_every_plain_attribute(engine: sync.Engine) -> None:
    env = engine.create("a")
    pairs: list[tuple[object, object]] = [(engine._engine, engine), (env._environment, env)]
    env.evaluate(lambda seen: pairs.append((seen._evaluation, seen)) or 0.0)  # type: ignore[func-returns-value]  # a list's append, for its effect
    assert len(pairs) == len(FACES)
    for waiting, blocking in pairs:
        assert {name for name in vars(waiting) if name[0] != "_"} - ASYNCHRONOUS == {
            name for name in vars(blocking) if name[0] != "_"
        }


def test_it_is_found_as_a_module_and_as_an_attribute() -> None:
    for statement in ("import statefork.sync", "import statefork", "from statefork.sync import open_engine"):
        uses = "open_engine" if "from" in statement else "statefork.sync.open_engine"
        subprocess.run([sys.executable, "-c", f"{statement}; {uses}"], check=True, timeout=SECONDS_MAX)


# --- what it does -------------------------------------------------------------------------------------------------


def test_policies_are_chosen_at_the_beginning_and_answered(engine: sync.Engine) -> None:
    env = engine.create("a", snapshots="every action", retention="last 1")
    env.act(put("basket", "tea"))
    env.act(put("basket", "coffee"))
    assert str(env.ref) == "a@3"
    assert [one.generation for one in env.prune("last 1", only_say=True)] == []  # 2 went when 3 was published
    assert (env.keep_snapshots("when changed"), env.keep_generations("last 7")) == ("when changed", "last 7")
    assert (env.keep_snapshots(None), env.keep_generations(None)) == ("on demand", "all")
    for one in engine.create_many(["b", "c"], snapshots="every action"):
        one.act(put("basket", "tea"))
        assert str(one.ref) == f"{one.name}@2"
    with pytest.raises(ContractError, match="a retention is"):
        engine.create("d", retention="some")
    assert "d" not in engine.capsules


def test_the_life_of_environments(engine: sync.Engine, contract: Path) -> None:
    assert engine.state == contract.with_name("state").resolve()
    assert engine.recovered.recovered == ()
    env = engine.create("a")
    assert env.act(put("basket", "tea")).value == "tea"
    assert env.observe().value == {"greeting": "hello", "basket": "tea"}
    assert str(env.snapshot()) == "a@2"
    left, right = engine.fork("a@2", n=2)
    left.act(put("basket", "coffee"))
    assert right.act({"type": "get", "key": "basket"}).value == "tea"
    copy = engine.clone(env.ref, "copy")
    assert [found.name for found in engine.environments()] == ["a", "a-f1", "a-f2", "copy"]
    assert engine.environment("copy").capsule.env == "copy"
    (change,) = engine.diff("a@1", "a@2").resources["page"].changes
    blamed = engine.blame("a", item="basket")
    assert (blamed.ref, blamed.number, blamed.certain) == ("a#1", 1, True)
    assert (change.kind, change.name, change.after) == ("added", "basket", "tea")
    assert str(engine.moment("a")) == "a@2"
    assert str(env.reset()) == "a@3"
    assert str(env.restore(2)) == "a@4"
    copy.park("enough")
    with pytest.raises(statefork.StateforkError, match="not bound"):
        _ = copy.bindings
    copy.activate()
    assert copy.bindings.keys() == {"db", "page"}
    assert right.private_bytes().keys() == {"db", "page"}
    assert engine.replay("a-f1").exact
    right.retire()
    assert right.name in engine.capsules
    assert right.name not in [found.name for found in engine.environments()]
    assert engine.gc().failed == ()
    assert engine.cost().private_bytes.keys() == {"a", "a-f1", "copy"}


def test_an_evaluator_reads_one_generation_in_the_calling_thread(engine: sync.Engine) -> None:
    env = engine.create("a")
    kept: list[sync.Evaluation] = []

    def check(seen: sync.Evaluation) -> tuple[float, Any]:
        kept.append(seen)
        assert threading.current_thread() is threading.main_thread()
        assert (seen.env, seen.generation, seen.epoch) == ("a", 1, 1)
        assert seen.look().value == {"greeting": "hello"}
        with pytest.raises(HeldByCaller):
            env.snapshot()
        return 0.5, {"rows": seen.query("db", "SELECT ? AS one", (1,))}

    assert env.evaluate(check, name="half") == 0.5
    for use in (kept[0].look, kept[0].base_url, lambda: kept[0].query("db", "SELECT 1")):
        with pytest.raises(LeaseRevoked, match="this evaluation has ended"):
            use()
    assert str(env.snapshot()) == "a@2", "the lease is free again"


def test_a_lent_page_is_one_opaque_action(engine: sync.Engine) -> None:
    env = engine.create("a")
    with env.page() as content:
        content["drawn"] = "a line"
        assert env.act(GET).value == "hello", "what the block causes belongs to it"
        with pytest.raises(HeldByCaller):
            env.reset()
    assert env.observe().value == {"greeting": "hello", "drawn": "a line"}
    assert env.capsule.actions == 2


def test_a_lent_page_may_be_given_back_in_another_context(engine: sync.Engine) -> None:
    import contextvars

    env = engine.create("a")
    stack = ExitStack()
    contextvars.copy_context().run(stack.enter_context, env.page())
    contextvars.copy_context().run(stack.close)
    assert str(env.snapshot()) == "a@2"


# --- errors -------------------------------------------------------------------------------------------------------


def test_errors_come_through_unchanged_and_lead_from_the_caller_to_the_cause(engine: sync.Engine) -> None:
    env = engine.create("a")
    with pytest.raises(ActionFailed, match="the world says no") as caught:
        env.act({"type": "fail", "key": "it"})
    assert caught.value.seen.value == {"greeting": "hello"}
    functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert functions[0] == test_errors_come_through_unchanged_and_lead_from_the_caller_to_the_cause.__name__
    assert Path(traceback.extract_tb(caught.value.__traceback__)[-1].filename).name == "environment.py"
    with pytest.raises(UnknownEnvironment):
        engine.environment("nobody")


@pytest.mark.parametrize("how", ["evaluate", "page"])
def test_the_callers_own_errors_come_back_as_they_were(engine: sync.Engine, how: str) -> None:
    env = engine.create("a")
    mine = ZeroDivisionError("mine")

    def fail(_: object) -> float:
        raise mine

    def use_a_page() -> None:
        with env.page() as page:
            fail(page)

    with pytest.raises(ZeroDivisionError) as caught:
        env.evaluate(fail) if how == "evaluate" else use_a_page()
    assert caught.value is mine
    assert mine.__context__ is None
    functions = [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert functions[-1] == "fail"
    assert "_serve" not in functions
    assert "_offer" not in functions
    assert str(env.snapshot())[:1] == "a", "the lease is free again"


def test_opening_twice_and_opening_nothing(engine: sync.Engine, contract: Path) -> None:
    with pytest.raises(StateLocked), sync.open_engine(contract, state=engine.state):
        pass
    with pytest.raises(ContractError), sync.open_engine("nowhere.toml", state=engine.state):
        pass
    assert engine.create("a").act(GET).value == "hello"


def test_an_error_in_the_block_comes_out_and_everything_is_parked(contract: Path) -> None:
    state = contract.with_name("state")
    made: list[sync.Environment] = []

    def fail(engine: sync.Engine) -> None:
        made.append(engine.create("a"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), sync.open_engine(contract, state=state) as engine:
        fail(engine)
    (env,) = made
    for use in (env.observe, env.snapshot, engine.environments, lambda: engine.create("b"), lambda: env.ref):
        with pytest.raises(EngineClosed, match="the engine is closed"):
            use()
    with pytest.raises(EngineClosed), env.page():
        pass
    assert repr(env) == "<Environment a>"
    assert statefork.audit(state).clean


# --- threads and loops ----------------------------------------------------------------------------------------------


def test_calls_of_several_threads_run_side_by_side(engine: sync.Engine) -> None:
    env = engine.create("a")
    acting = when_acting(engine)
    with ThreadPoolExecutor(8) as pool:
        waiting = pool.submit(env.act, {"type": "wait", "key": "flag"})
        assert acting.wait(SECONDS_MAX)
        list(pool.map(lambda _: env.act({"type": "add", "key": "sum", "amount": 1}), range(50)))
        children = list(pool.map(lambda number: engine.create(f"b{number}").ref.env, range(4)))
        assert not waiting.done()
        engine._calls.run(lambda: world(engine).signal("flag"))
        waiting.result(SECONDS_MAX)
    assert env.act({"type": "get", "key": "sum"}).value == 50
    assert children == ["b0", "b1", "b2", "b3"]


@pytest.mark.anyio
async def test_it_works_in_a_thread_that_runs_a_loop(contract: Path) -> None:
    """As in a notebook. The loop stands still meanwhile, whichever it is."""
    with sync.open_engine(contract, state=contract.with_name("state")) as engine:
        env = engine.create("a")
        assert env.act(put("basket", "tea")).value == "tea"
        assert env.evaluate(lambda seen: float(seen.look().value["basket"] == "tea")) == 1.0
        with env.page() as content:
            assert content["basket"] == "tea"
    assert statefork.audit(contract.with_name("state")).clean


def test_given_a_lent_page_when_another_thread_resets_then_it_is_taken_back(engine: sync.Engine) -> None:
    env = engine.create("a")
    with pytest.raises(LeaseRevoked), env.page():
        with ThreadPoolExecutor(1) as pool:
            assert str(pool.submit(env.reset, drain=REVOKE).result(SECONDS_MAX)) == "a@2"
    assert env.act(GET).value == "hello"


def test_given_an_evaluator_when_another_thread_resets_then_the_reset_waits_for_its_end(engine: sync.Engine) -> None:
    env = engine.create("a")
    revoked = threading.Event()

    def look_until_revoked(seen: sync.Evaluation) -> None:
        while True:
            seen.look()

    with ThreadPoolExecutor(1) as pool:

        def check(seen: sync.Evaluation) -> float:
            resetting = pool.submit(env.reset, drain=REVOKE)
            with pytest.raises(LeaseRevoked):
                look_until_revoked(seen)
            revoked.set()
            assert not resetting.done(), "what the evaluator reads is there until it has ended"
            return 1.0

        with pytest.raises(LeaseRevoked):
            env.evaluate(check)
    assert revoked.is_set()
    assert str(env.ref) == "a@2"


@pytest.mark.parametrize("how", ["act", "evaluate"])
def test_given_a_call_of_another_thread_when_the_engine_closes_then_it_ends_with_an_error(
    contract: Path, how: str
) -> None:
    begun, closed = threading.Event(), threading.Event()

    def check(_: object) -> float:
        begun.set()
        assert closed.wait(SECONDS_MAX), "closing does not wait for another thread's evaluator"
        return 1.0

    with ThreadPoolExecutor(1) as pool:
        with sync.open_engine(contract, state=contract.with_name("state"), settings=SETTINGS) as engine:
            env = engine.create("a")
            if how == "evaluate":
                call: Any = pool.submit(env.evaluate, check)
            else:
                begun = when_acting(engine)
                call = pool.submit(env.act, {"type": "wait", "key": "never"})
            assert begun.wait(SECONDS_MAX)
        closed.set()
        assert isinstance(call.exception(SECONDS_MAX), LeaseRevoked | EngineClosed)


def test_given_a_forked_process_then_the_engine_is_not_its_own(tmp_path: Path, contract: Path) -> None:
    program = f"""
import os
from statefork import sync
with sync.open_engine({str(contract)!r}, state={str(tmp_path / "state")!r}) as engine:
    env = engine.create("a")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    else:
        try:
            env.observe()
        except Exception as error:
            assert error.code == "engine_closed", error
        else:
            os._exit(3)
if child:
    assert str(env.name) == "a"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    assert statefork.audit(tmp_path / "state").clean


def test_a_call_from_the_engines_own_thread_is_refused(engine: sync.Engine) -> None:
    env = engine.create("a")
    with pytest.raises(RuntimeError, match="would wait for itself"):
        engine._calls.run(env.observe)
