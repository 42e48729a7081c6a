"""Environments as Gymnasium has them: its own checker, vectors in threads and in processes, and what is told."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv

import statefork
from statefork.adapters.interfaces.gym.door import serving as serving_seats
from statefork.adapters.interfaces.gym.engines import sit
from statefork.adapters.interfaces.gym.remote import RemoteSeat, dial
from statefork.adapters.interfaces.gym.spaces import Actions, Unicode
from statefork.engine.capsule import Phase
from statefork.engine.errors import ContractError, OutOfRange, TransitionAborted, UnknownRef
from statefork.gym import StateforkEnv, StateforkVectorEnv
from tests.integration.browser_kit import serving

CONTRACT = """
[contract]
name = "notes"
[resources.notes]
adapter = "memory"
initial = { title = "Untitled" }
slot = "desk"
"""
PAGE = """
[contract]
name = "page"
[resources.browser]
adapter = "browser"
width = 320
height = 200
start = "SITE/second"
external = ["SITE"]
"""
FORK = {"type": "put", "key": "title", "value": "Fork me"}
HELLO = '{"type": "put", "key": "title", "value": "Hello"}'
HANG = {"type": "wait", "key": "for ever"}
SECONDS_MAX = 60.0


def titled(seen: Any) -> float:
    value = seen.look().value
    return float(value["title"] == "Fork me")


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    file = tmp_path / "notes.toml"
    file.write_text(CONTRACT)
    return file


@pytest.fixture
def made_with(contract: Path) -> dict[str, Any]:
    return {"contract": str(contract), "state": str(contract.with_name("state")), "judge": titled}


@pytest.fixture
def env(made_with: dict[str, Any]) -> Iterator[gymnasium.Env[dict[str, Any], Any]]:
    made = gymnasium.make("statefork/contract-v0", **made_with, max_episode_steps=3)
    yield made
    made.close()


def phases(state: Path) -> dict[str, str]:
    """What became of each environment, as the next opening finds it."""
    with statefork.sync.open_engine(state.with_name("notes.toml"), state=state) as engine:
        return {name: capsule.phase.value for name, capsule in engine.capsules.items()}


def ours(env: gymnasium.Env[dict[str, Any], Any]) -> StateforkEnv:
    inner = env.unwrapped
    assert isinstance(inner, StateforkEnv)
    return inner


# --- one environment --------------------------------------------------------------------------------------------------


def test_each_packaged_world_is_registered() -> None:
    from statefork.adapters.interfaces.worlds import packaged_worlds

    ids = {f"statefork/{world}-v0" for world in packaged_worlds()} | {"statefork/contract-v0"}
    assert ids <= gymnasium.registry.keys()
    assert "statefork/shop-v0" in ids


def test_given_only_a_name_when_it_says_the_module_then_nothing_need_be_imported(contract: Path) -> None:
    program = (
        "import gymnasium, sys; "
        "made = gymnasium.make('statefork.gym:statefork/contract-v0', contract=sys.argv[1]); "
        "print(made.observation_space.keys()); made.close()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(contract)], capture_output=True, text=True, check=False)
    assert "last_action_error" in done.stdout, done.stderr


@pytest.mark.parametrize(("module", "absent"), [("gym", "gymnasium"), ("browsergym", "browsergym")])
def test_given_a_package_that_is_missing_when_imported_then_it_is_said_what_to_install(
    module: str, absent: str
) -> None:
    program = f"import sys; sys.modules['{absent}'] = None; import statefork.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingDependency" in done.stderr.splitlines()[-1]
    assert "pip install" in done.stderr.splitlines()[-1]


def test_an_episode_is_judged_and_ends(env: gymnasium.Env[dict[str, Any], Any]) -> None:
    obs, info = env.reset(seed=7)
    assert (obs["text"], obs["last_action_error"]) == ('{"title":"Untitled"}', "")
    name = info["env"]
    obs, reward, terminated, truncated, info = env.step(HELLO)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["at"] == f"{name}#1"
    obs, reward, terminated, truncated, info = env.step(FORK)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert env.reset()[0]["text"] == '{"title":"Untitled"}'
    steps = [env.step("") for _ in range(3)]
    assert [one[3] for one in steps] == [False, False, True], "TimeLimit"


def test_what_an_action_does_wrong_is_told_and_nothing_is_lost(env: gymnasium.Env[dict[str, Any], Any]) -> None:
    env.reset()
    inner = ours(env)
    inner.step(FORK)
    bad: dict[str, list[Any]] = {
        "invalid_action": ["no JSON", "7", '{"type": "jump"}', None, 3.5, {"type": "put", "key": object()}, "[" * 9999],
        "action_failed": [{"type": "fail", "key": "door"}],
        "limit_exceeded": [{"type": "put", "key": "title", "value": "x" * 4_000_000}],
    }
    for code, actions in bad.items():
        for action in actions:
            obs, reward, _, truncated, info = inner.step(action)
            assert info["error"]["code"] == code, (repr(action)[:60], info)
            assert obs["last_action_error"] == info["error"]["message"]
            assert (reward, truncated) == (1.0, False), "what was there is there"
            assert obs in inner.observation_space
    assert "error" not in inner.step("")[4]


def test_given_a_step_when_the_world_is_taken_away_then_the_episode_is_truncated(made_with: dict[str, Any]) -> None:
    with statefork.sync.open_engine(made_with["contract"], state=made_with["state"]) as engine:
        made = StateforkEnv(made_with["contract"], engine=engine, act_timeout_s=SECONDS_MAX)
        made.reset()

        async def taken() -> None:
            import anyio

            while not engine._engine.kernel.world.capsule(made.name).actions:
                await anyio.lowlevel.checkpoint()
            await engine._engine.environment(made.name).recover()

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(engine._calls.call, taken)
            _, reward, terminated, truncated, info = made.step(HANG)
            taking.result(SECONDS_MAX)
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert info["error"]["code"] == "lease_revoked"
        assert made.reset()[0]["text"] == '{"title":"Untitled"}'
        made.close()


def test_any_moment_can_be_gone_back_to(env: gymnasium.Env[dict[str, Any], Any]) -> None:
    _, info = env.reset()
    at = env.step(HELLO)[4]["at"]
    env.step(FORK)
    assert env.reset(options={"at": at})[0]["text"] == '{"title":"Hello"}'
    ref = ours(env).snapshot()
    env.step(FORK)
    assert env.reset(options={"at": ref})[0]["text"] == '{"title":"Hello"}'
    with pytest.raises(UnknownRef):
        env.reset(options={"at": f"{info['env']}#99"})
    with pytest.raises(ValueError, match="'to'"):
        env.reset(options={"to": ref})
    assert env.reset()[0]["text"] == '{"title":"Untitled"}'


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_present_moment_is_always_told(made_with: dict[str, Any], elsewhere: bool) -> None:
    state = Path(made_with["state"])
    with (
        statefork.sync.open_engine(made_with["contract"], state=state) as engine,
        door_of(engine, elsewhere) as dialled,
    ):
        made = StateforkEnv(made_with["contract"], engine=engine)
        if dialled is not None:
            made._seat = RemoteSeat(state, dialled, None, lambda: None)
        _, info = made.reset()
        assert info["at"] == "gym-1@1"
        assert made.step("")[4]["at"] == "gym-1@1"
        assert made.step(HELLO)[4]["at"] == "gym-1#1"
        for action in ("", "no JSON", '{"type": "jump"}'):
            _, _, _, _, info = made.step(action)
            assert (info["at"], "number" in info) == ("gym-1#1", False), action
        assert made.step({"type": "fail", "key": "door"})[4]["at"] == "gym-1#2"
        (child,) = made.fork()
        _, _, _, _, info = child.step("no JSON")
        assert (info["env"], info["at"]) == (child.name, f"{child.name}@1")
        at = made.reset()[1]["at"]
        assert made.step(FORK)[0]["text"] == '"Fork me"'
        assert made.reset(options={"at": at})[0]["text"] == '{"title":"Untitled"}', "it can be gone back to"
        child.close()
        made.close()


@contextmanager
def door_of(engine: statefork.sync.Engine, elsewhere: bool) -> Iterator[Any]:
    """A connection as another process has it, or None."""
    if not elsewhere:
        yield None
        return
    with serving_seats(engine):
        yield dial(engine.state)


def test_children_continue_and_are_their_own(env: gymnasium.Env[dict[str, Any], Any]) -> None:
    env.reset()
    env.step(HELLO)
    for wrong in (0, -1):
        with pytest.raises(OutOfRange):
            ours(env).fork(wrong)
    left, right = ours(env).fork(2)
    assert left.step(FORK)[1] == 1.0
    assert right.look()[0]["text"] == '{"title":"Hello"}'
    assert env.step("")[0]["text"] == '{"title":"Hello"}'
    assert right.reset()[0]["text"] == '{"title":"Untitled"}', "their origin is the parent's"
    left.close()
    right.close()


def test_closing_releases_everything_also_after_an_exception(made_with: dict[str, Any]) -> None:
    state = Path(made_with["state"])

    def broken(seen: Any) -> float:
        raise ZeroDivisionError

    made = StateforkEnv(made_with["contract"], state=state, judge=broken)
    made.reset()
    with pytest.raises(ZeroDivisionError):
        made.step(HELLO)
    with pytest.raises(ContractError, match="serves 'notes'"):
        StateforkEnv("shop", state=state).reset()
    made.close()
    made.close()
    named = StateforkEnv(made_with["contract"], state=state, name="mine")
    named.reset()
    named.close()
    assert phases(state) == {"gym-1": "retired", "mine": "parked"}
    assert statefork.audit(state).clean


def test_given_a_reset_that_fails_when_asked_then_what_was_there_serves(made_with: dict[str, Any]) -> None:
    with statefork.sync.open_engine(made_with["contract"], state=made_with["state"]) as engine:
        made = StateforkEnv(made_with["contract"], engine=engine, judge=titled)
        made.reset()
        made.step(FORK)
        world = engine._engine.kernel.resources["notes"].world  # type: ignore[attr-defined]  # memory's

        async def fail(call: Any) -> None:
            if call.method == "branch":
                raise OSError("no room")

        world.hook = fail
        with pytest.raises(TransitionAborted, match="no room"):
            made.reset()
        world.hook = None
        assert made.step("")[1] == 1.0
        made.close()


def test_what_is_closed_is_not_made_again_and_nothing_is_done_before_the_first_reset(made_with: dict[str, Any]) -> None:
    made = StateforkEnv(**made_with, render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        made.step(HELLO)
    assert not Path(made_with["state"]).exists(), "nothing was opened"
    made.reset()
    (child,) = made.fork()
    assert child.step("")[0]["text"] == '{"title":"Untitled"}', "a child has begun"
    child.close()
    made.close()
    vector = StateforkVectorEnv(num_envs=1, **made_with)
    vector.reset()
    vector.close()
    made.close()
    for use in (made.reset, made.render, made.fork, made.snapshot, made.look, lambda: made.step(HELLO)):
        with pytest.raises(ClosedEnvironmentError):
            use()
    for use in (vector.reset, vector.render, lambda: vector.step([HELLO])):
        with pytest.raises(ClosedEnvironmentError):
            use()
    assert set(phases(Path(made_with["state"])).values()) == {"retired"}


def test_it_works_where_an_asyncio_loop_runs_already(made_with: dict[str, Any]) -> None:
    async def cell() -> float:
        made = gymnasium.make("statefork/contract-v0", **made_with)
        made.reset()
        reward = made.step(FORK)[1]
        made.close()
        return float(reward)

    assert asyncio.run(cell()) == 1.0


@pytest.mark.browser
def test_gymnasiums_checker_has_nothing_to_say(tmp_path: Path) -> None:
    file = tmp_path / "page.toml"
    with serving() as site:
        file.write_text(PAGE.replace("SITE", site.base))
        made = gymnasium.make(
            "statefork/contract-v0", contract=str(file), state=tmp_path / "state", render_mode="rgb_array"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(made.unwrapped, skip_close_check=True)
        obs, _ = made.reset(seed=1)
        assert obs["screenshot"].shape == (200, 320, 3)
        assert "page /second" in obs["text"]
        shown = made.render()
        assert isinstance(shown, np.ndarray)
        assert (shown == obs["screenshot"]).all()
        assert np.unique(shown).size > 1, "something is drawn"
        made.close()


def test_spaces_know_any_text_and_all_forms_of_an_action() -> None:
    text, actions = Unicode(5), Actions(lambda random: "")
    assert [one in text for one in ("", "häé中😀", "123456", 7)] == [True, True, False, False]
    assert text.sample() in Unicode(100)
    assert [one in actions for one in (HELLO, FORK, "", None, 7)] == [True, True, True, False, False]
    assert Unicode(5) == text != Unicode(6)


# --- several ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_eight_share_one_engine(made_with: dict[str, Any], mode: str) -> None:
    state = Path(made_with["state"])
    vector = gymnasium.make_vec("statefork/contract-v0", num_envs=8, vectorization_mode=mode, **made_with)
    try:
        assert vector.reset(seed=1)[0]["text"] == ('{"title":"Untitled"}',) * 8
        obs, rewards, terminated, _, infos = vector.step([FORK if i % 2 else HELLO for i in range(8)])
        assert list(rewards) == [float(i % 2) for i in range(8)]
        assert list(terminated) == [bool(i % 2) for i in range(8)]
        assert len(set(infos["env"])) == 8
        assert obs["text"][:2] == ('"Hello"', '"Fork me"')
        obs, rewards, *_ = vector.step([""] * 8)  # those that had ended are reset
        assert obs["text"][:2] == ('{"title":"Hello"}', '{"title":"Untitled"}')
        obs, *_ = vector.step(["nonsense"] * 8)
        assert all("not JSON" in one for one in obs["last_action_error"])
    finally:
        vector.close()
    assert set(phases(state).values()) == {"retired"}
    assert statefork.audit(state).clean


def test_workers_use_the_engine_that_their_program_has_open(
    env: gymnasium.Env[dict[str, Any], Any], made_with: dict[str, Any]
) -> None:
    env.reset()
    env.step(HELLO)
    vector = AsyncVectorEnv([lambda: StateforkEnv(**made_with)] * 2)
    try:
        vector.reset()
        assert list(vector.step([FORK, HELLO])[1]) == [1.0, 0.0]
        assert set(ours(env).environment._environment.kernel.environments) == {"gym-1", "gym-2", "gym-3"}
    finally:
        vector.close()
    assert env.step("")[0]["text"] == '{"title":"Hello"}'


def test_a_vector_has_a_time_limit_and_a_mask_of_resets(made_with: dict[str, Any]) -> None:
    vector = StateforkVectorEnv(num_envs=2, max_episode_steps=2, **made_with)
    try:
        vector.reset()
        vector.step([HELLO, HELLO])
        obs, _ = vector.reset(options={"reset_mask": np.array([True, False])})
        assert obs["text"] == ('{"title":"Untitled"}', '{"title":"Hello"}')
        assert list(vector.step(["", ""])[3]) == [False, True]
    finally:
        vector.close()


def worker(made_with: dict[str, Any], told: Any) -> None:
    """Takes a seat, says so, and hangs in an action."""
    made = StateforkEnv(**made_with, slots=1)
    made.reset()
    told.put(made.name)
    made.step(HANG)


def test_a_client_that_disappears_releases_its_slot(made_with: dict[str, Any]) -> None:
    """Another process waits for the only slot, which one has that is killed in the middle of an action."""
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    made_with = {**made_with, "judge": None}
    first = context.Process(target=worker, args=(made_with, told))
    second = context.Process(target=worker, args=(made_with, told))
    first.start()
    name = told.get(timeout=SECONDS_MAX)
    second.start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    other = told.get(timeout=SECONDS_MAX)
    assert other != name
    assert second.pid is not None
    os.kill(second.pid, signal.SIGKILL)
    second.join()
    state = Path(made_with["state"])
    seat = sit(made_with["contract"], state, None, None)  # waits until the engine that nobody uses has ended
    seat.leave()
    assert phases(state)[name] == phases(state)[other] == Phase.RETIRED.value


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium tells of it so, too
def test_given_an_engine_that_cant_start_when_workers_want_it_then_they_are_told(tmp_path: Path) -> None:
    file = tmp_path / "notes.toml"
    file.write_text(CONTRACT + "\n[resources.db]\nadapter = 'sqlite'\nbase = 'missing.sqlite3'\n")
    make = [lambda: StateforkEnv(str(file), state=tmp_path / "state")] * 2
    vector = AsyncVectorEnv(make)
    with pytest.raises(Exception, match=r"missing\.sqlite3"):
        vector.reset()
    vector.close(terminate=True)
