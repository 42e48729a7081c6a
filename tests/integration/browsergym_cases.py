"""What BrowserGym's own tasks and agents expect, besides the cases that both interfaces share."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import pytest
from browsergym.core.action.highlevel import HighLevelActionSet  # type: ignore[import-not-found]  # in its environment
from browsergym.core.env import BrowserEnv  # type: ignore[import-not-found]  # in its environment
from browsergym.core.task import AbstractBrowserTask, OpenEndedTask  # type: ignore[import-not-found]  # the same
from browsergym.utils.obs import (  # type: ignore[import-not-found]  # the same
    flatten_axtree_to_str,
    flatten_dom_to_str,
    prune_html,
)

from statefork import sync
from statefork.browsergym import StateforkBrowserEnv, register_task
from statefork.journal.events import EvaluationRecorded
from tests.integration.agent_cases import Stage, events
from tests.integration.agent_faces import ADD, SHOP

KEYS = """
    chat_messages goal goal_object open_pages_urls open_pages_titles active_page_index url screenshot dom_object
    axtree_object extra_element_properties focused_element_bid last_action last_action_error elapsed_time
"""


class Basket(AbstractBrowserTask):  # type: ignore[misc]  # of a package without types
    """As tasks are written for BrowserGym: it knows nothing of statefork."""

    torn_down: ClassVar[list[int]] = []

    def __init__(self, seed: int, wanted: int = 1) -> None:
        super().__init__(seed)
        self.number = seed
        self.wanted = wanted

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        page.goto(f"{SHOP}/catalogue/")
        return f"Put {self.wanted} into the basket.", {"wanted": self.wanted}

    def validate(self, page: Any, chat_messages: list[Any]) -> tuple[float, bool, str, dict[str, Any]]:
        if chat_messages[-1]["message"] == "break":
            raise ZeroDivisionError("the task is broken")
        shown = " ".join(page.locator(".basket-mini").all_inner_texts())
        done = bool(shown) and "£0.00" not in shown
        return float(done), done, "thank you" if done else "", {"shown": shown}

    def teardown(self) -> None:
        self.torn_down.append(self.number)


class Agent:
    """As AgentLab's agents are: it gets what ``obs_preprocessor`` makes of an observation, and gives an action."""

    action_set = HighLevelActionSet(subsets=["chat", "bid", "nav", "tab", "infeas"], multiaction=False)

    def obs_preprocessor(self, obs: dict[str, Any]) -> dict[str, Any]:
        properties = obs["extra_element_properties"]
        return {
            "axtree_txt": flatten_axtree_to_str(obs["axtree_object"], extra_properties=properties),
            "pruned_html": prune_html(flatten_dom_to_str(obs["dom_object"], extra_properties=properties)),
            "chat_messages": obs["chat_messages"],
        }

    def get_action(self, obs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        found = re.search(rf"\[(\w+)\] button '{ADD}'", obs["axtree_txt"])
        assert found, obs["axtree_txt"]
        assert f'bid="{found[1]}"' in obs["pruned_html"]
        return f"click('{found[1]}')", {"think": "the first one will do"}


@contextmanager
def making(engine: sync.Engine, **arguments: Any) -> Iterator[Any]:
    """A registered task, as an agent's framework makes it."""
    register_task("statefork.basket", Basket, default_task_kwargs={"wanted": 1}, contract="shop", engine=engine)
    usual = {"action_mapping": Agent.action_set.to_python_code, "pre_observation_delay": 0.05}
    env = gymnasium.make("browsergym/statefork.basket", **usual, **arguments)
    try:
        yield env
    finally:
        env.close()


def launches(engine: sync.Engine) -> int:
    """How often Chromium was launched."""
    count: int = engine._engine.kernel.resources["browser"].launches  # type: ignore[attr-defined]  # a browser's
    return count


def case_an_agent_and_a_task_run_as_they_are(stage: Stage) -> None:
    """Observation keys, marks, verdicts and messages are BrowserGym's; the journal has the verdicts."""
    agent, launched = Agent(), launches(stage.engine)
    with making(stage.engine, max_episode_steps=6) as env:
        Basket.torn_down.clear()
        obs, info = env.reset(seed=3)
        assert isinstance(env.unwrapped, BrowserEnv)
        assert set(obs) == set(KEYS.split()) == set(env.observation_space.spaces)
        assert obs in env.observation_space
        assert (obs["goal"], info["task_info"]) == ("Put 1 into the basket.", {"wanted": 1})
        assert obs["screenshot"].shape == (720, 1280, 3)
        action, _ = agent.get_action(agent.obs_preprocessor(obs))
        for attempt in (action, "noop(1000)", "noop(1000)"):  # its own bound of 500 ms is short on a busy machine
            obs, reward, terminated, _, info = env.step(attempt)
            if terminated:
                break
        assert (reward, terminated) == (1.0, True)
        assert obs["chat_messages"][-1]["message"] == "thank you"
        assert {"action_exec_start", "action_exec_stop", "task_info", "validation_stop"} <= info.keys()
        name = info["env"]
        verdicts = [one for one in events(stage.engine) if isinstance(one, EvaluationRecorded) and one.env == name]
        assert (verdicts[-1].name, verdicts[-1].score) == ("Basket", 1.0)
        obs, _ = env.reset(seed=4)
        assert "£0.00" in agent.obs_preprocessor(obs)["axtree_txt"]
    assert Basket.torn_down == [3, 4]
    assert launches(stage.engine) == launched


def case_tabs_are_the_environments(stage: Stage) -> None:
    """What the agent does with tabs, both know: BrowserGym's observation, and what is captured for a fork."""
    with making(stage.engine) as env:
        env.reset(seed=1)
        assert list(env.step("new_tab()")[0]["active_page_index"]) == [1]
        obs = env.step(f"goto('{SHOP}/basket/')")[0]
        assert [one.removeprefix(SHOP) for one in obs["open_pages_urls"]] == ["/catalogue/", "/basket/"]
        obs = env.step("tab_focus(0)")[0]
        assert (list(obs["active_page_index"]), obs["url"]) == ([0], f"{SHOP}/catalogue/")
        (child,) = env.unwrapped.fork()
        obs = child.step("noop(1)")[0]
        assert (list(obs["active_page_index"]), len(obs["open_pages_urls"])) == ([0], 2)
        child.close()
        env.step("tab_focus(1)")
        obs = env.step("tab_close()")[0]
        assert (obs["url"], len(obs["open_pages_urls"])) == (f"{SHOP}/catalogue/", 1)


def case_the_chat_goes_back_with_the_world(stage: Stage) -> None:
    """A moment has the messages that it had; an infeasible task ends."""
    with making(stage.engine) as env:
        env.reset(seed=1)
        *_, info = env.step("send_msg_to_user('one')")
        env.step("send_msg_to_user('two')")
        obs, _ = env.reset(options={"at": info["at"]})
        said = [one["message"] for one in obs["chat_messages"]]
        assert said[1:] == ["Put 1 into the basket.", "one"]
        assert (obs["last_action"], obs["last_action_error"]) == ("", "")
        obs, _, terminated, *_ = env.step("report_infeasible('no such thing')")
        assert (terminated, obs["chat_messages"][-1]["role"]) == (True, "infeasible")


def case_a_broken_task_leaves_nothing(stage: Stage) -> None:
    """What a task raises is raised, and the environment can be used again, and be closed."""
    with making(stage.engine) as env:
        env.reset(seed=1)
        with pytest.raises(ZeroDivisionError):
            env.step("send_msg_to_user('break')")
        env.reset(seed=2)
        assert env.step("noop(1)")[0]["url"] == f"{SHOP}/catalogue/"


def case_what_needs_a_browser_of_its_own_is_said(stage: Stage) -> None:
    """A window or a chat box is refused; what can't be heeded is told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        StateforkBrowserEnv(OpenEndedTask, {"start_url": SHOP}, contract="shop", slow_mo=50).close()
    assert "slow_mo not heeded" in str(told[-1].message)
    for wanted in ({"headless": False}, {"wait_for_user_message": True}):
        with pytest.raises(ValueError, match="no window"):
            StateforkBrowserEnv(OpenEndedTask, {"start_url": SHOP}, contract="shop", **wanted)
    env = StateforkBrowserEnv(OpenEndedTask, {"start_url": f"{SHOP}/basket/"}, contract="shop", engine=stage.engine)
    assert env.reset(seed=1)[0]["url"] == f"{SHOP}/basket/"
    env.close()
