"""Commands with a key, given again and again by callers who don't know whether they had happened: they happen once.

Each story has environments of its own, which no other agent touches, so that what happened can be counted. A story goes
on in the next life where the process died in the middle of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from statefork.engine.kernel import Kernel
from statefork.simulation.commands import check_each
from statefork.simulation.workload import Agent, Work

_TRIES = 4


class Story(msgspec.Struct, eq=False):
    """A command with a key: what it is, about which environment, and what it answered so far."""

    what: str
    env: str
    key: str
    command: Callable[[Kernel, str, str], Awaitable[Any]]
    answer: Any = None
    before: int = 0


async def _create(kernel: Kernel, env: str, key: str) -> Any:
    return await kernel.create(env, activate=False, key=key)


async def _snapshot(kernel: Kernel, env: str, key: str) -> Any:
    return await kernel.snapshot(env, key=key)


async def _reset(kernel: Kernel, env: str, key: str) -> Any:
    return await kernel.reset(env, key=key)


async def _fork(kernel: Kernel, env: str, key: str) -> Any:
    return await kernel.fork(env, 2, activate=False, key=key)


async def keyed(agent: Agent) -> None:
    """Begin a story, or go on with one."""
    stories = agent.scene.stories
    if stories and agent.random.random() < 0.7:
        await _repeat(agent, stories.pop(agent.random.randrange(len(stories))))
        return
    name = f"k{agent.scene.name()}"
    agent.scene.private.add(name)
    story = Story("create", name, f"key of {name}", _create)
    await _repeat(agent, story)
    if name in agent.truth.models and agent.truth.models[name].generation:
        what, command = agent.random.choice([("snapshot", _snapshot), ("reset", _reset), ("fork", _fork)])
        if agent.random.random() < 0.5:
            await agent.put(name, "db", "keyed")
        before = agent.truth.models[name].generation
        await _repeat(agent, Story(what, name, f"key of {what} of {name}", command, before=before))


async def _repeat(agent: Agent, story: Story) -> None:
    scene = agent.scene
    for _ in range(_TRIES):
        patience_s = scene.seconds(0.05) if agent.random.random() < 0.5 else 1000.0
        answer = await scene.tried(
            f"{story.what} of {story.env} with a key",
            lambda: story.command(agent.kernel, story.env, story.key),
            patience_s=patience_s,
        )
        if scene.process.dead:
            scene.stories.append(story)
            return
        if answer is not None:
            _answered(agent, story, answer)
    if story.answer is None or agent.random.random() < 0.3:
        scene.stories.append(story)  # asked again later, perhaps by another engine


def _answered(agent: Agent, story: Story, answer: Any) -> None:
    """The same answer every time; and what it tells of has happened once."""
    told = answer
    if story.what == "fork":
        names = [result.env for result in answer]
        check_each(agent, answer, names)
        if any(result.moment is None for result in answer):
            return
        told = names
        children = agent.truth.models[story.env].children
        agent.scene.private.update(names)
        agent.truth.require(sorted(children) == sorted(names), "answer", f"{story.env} has {children}, not {names}")
    elif story.what == "reset":
        later = range(story.before + 1, agent.truth.models[story.env].generation + 1)
        found = sum(agent.truth.ops[f"{story.env}@{number}"] == "reset" for number in later)
        agent.truth.require(found <= 1, "answer", f"the reset of {story.env} happened {found} times")
    if story.answer is not None:
        agent.truth.require(told == story.answer, "answer", f"{story.what} answered {story.answer}, then {told}")
    story.answer = told


KINDS: dict[str, Work] = {"keyed": keyed}
