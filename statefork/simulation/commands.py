"""Commands on environments: transitions, births and ends, alone and in bulk; what they answer must be so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from statefork.engine.errors import EnvironmentExists, GenerationPruned
from statefork.engine.kernel import BulkResult
from statefork.engine.policy import Choice
from statefork.engine.retention import KEEP_ALL, Retention
from statefork.engine.settings import DrainPolicy
from statefork.journal.errors import StateforkError
from statefork.journal.values import Moment
from statefork.simulation.model import Content
from statefork.simulation.workload import Agent, Work, founded


def _drain(agent: Agent) -> DrainPolicy | None:
    if agent.random.random() < 0.6:
        return None
    return DrainPolicy(
        deadline_s=agent.random.choice([0.05, 1.0, 4.0]),
        then="revoke" if agent.random.random() < 0.5 else "abort",
        join_s=agent.random.choice([0.1, 2.0]),
        hold_s=agent.random.choice([0.0, 0.5, 10.0]),
    )


async def _commanded(agent: Agent, what: str, env: str, work: Callable[[], Awaitable[object]]) -> Moment | None:
    """The moment that a command answers with: a published one, of this environment, not older than before."""
    before = agent.truth.models[env].generation if env in agent.truth.models else 0
    agent.scene.hot = env
    done: Any = await agent.scene.tried(what, work)
    agent.look(env)
    if not isinstance(done, Moment):
        return None
    fits = done.env == env and done.generation >= before and str(done) in agent.truth.published
    agent.truth.require(fits, "answer", f"{what} answered {done}")
    return done


def _is(agent: Agent, done: Moment | None, source: str, what: str) -> None:
    if done is not None:
        same = agent.truth.published[str(done)] == agent.truth.published[source]
        agent.truth.require(same, "answer", f"{what} answered {done}, which is not {source}")


async def snapshot(agent: Agent) -> None:
    """Publish the present: it is one of the contents that there were meanwhile."""
    if env := agent.env():
        drain = _drain(agent)
        with agent.truth.watching(env) as seen:
            done = await _commanded(agent, f"snapshot {env}", env, lambda: agent.kernel.snapshot(env, drain=drain))
        if done is not None:
            found = agent.truth.published[str(done)]
            agent.truth.require(found in seen, "answer", f"{done} is {found}, which {env} did not hold meanwhile")


async def reset(agent: Agent) -> None:
    """Back to the origin."""
    if env := agent.env():
        drain, origin = _drain(agent), agent.truth.models[env].origin
        done = await _commanded(agent, f"reset {env}", env, lambda: agent.kernel.reset(env, drain=drain))
        _is(agent, done, origin, f"reset of {env}")


def _past(agent: Agent) -> Moment | None:
    """Some published moment, of whatever environment, also of one that has ended."""
    private = agent.scene.private
    published = [one for one in agent.kernel.environments.values() if one.generation and one.env not in private]
    if not published:
        return None
    capsule = agent.random.choice(published)
    return Moment(env=capsule.env, generation=agent.random.randint(1, capsule.generation))


async def restore(agent: Agent) -> None:
    """A generation of its own past, mostly; or of another's."""
    env, target = agent.env(), _past(agent)
    if not env or target is None:
        return
    if agent.random.random() < 0.7:
        target = Moment(env=env, generation=agent.random.randint(1, agent.kernel.environments[env].generation))
    chosen, drain = target, _drain(agent)
    what = f"restore {env} to {chosen}"
    done = await _commanded(agent, what, env, lambda: agent.kernel.restore(env, chosen, drain=drain))
    _is(agent, done, str(chosen), what)


async def park(agent: Agent) -> None:
    """Seal and unbind."""
    if env := agent.env():
        drain = _drain(agent)
        await _commanded(agent, f"park {env}", env, lambda: agent.kernel.park(env, drain=drain))


async def activate(agent: Agent) -> None:
    """Bind."""
    if env := agent.env():
        await _commanded(agent, f"activate {env}", env, lambda: agent.kernel.activate(env))


async def recover(agent: Agent) -> None:
    """Give up the tail, or let its page die, which the next who comes will notice."""
    if not (env := agent.env()):
        return
    if agent.random.random() < 0.5:
        await _commanded(agent, f"recover {env}", env, lambda: agent.kernel.recover(env))
        return
    world = agent.scene.world
    for branch, identity in list(world.bindings):
        if identity.env == env and world.identities.get(branch) == identity and branch.startswith("page-"):
            agent.scene.tell(f"the page of {identity} dies")
            world.dead.add((branch, identity))


async def retire(agent: Agent) -> None:
    """The end of an environment; its name is never used again."""
    if env := agent.env():
        await agent.scene.tried(f"retire {env}", lambda: agent.kernel.retire(env))


async def create(agent: Agent) -> None:
    """A new one, if there is room."""
    if agent.room() > 0:
        agent.look(await founded(agent))


async def name(agent: Agent) -> None:
    """A name that is taken, now or in history, is refused."""
    taken = [model.env for model in agent.truth.models.values() if model.generation]
    if taken:
        env = agent.random.choice(taken)
        try:
            with anyio.move_on_after(60):
                await agent.kernel.create(env)
                agent.truth.fail("answer", f"{env} was created a second time")
        except EnvironmentExists:
            agent.scene.tell(f"create {env}: its name is taken")
        except StateforkError as error:
            agent.scene.check(f"create {env} again", error)


def _names(agent: Agent, most: int) -> list[str]:
    room = min(agent.room(), most)
    return [agent.scene.name() for _ in range(agent.random.randint(1, room))] if room > 0 else []


async def fork(agent: Agent, most: int = 2) -> None:
    """Children of the present: what they begin with is something that their parent held meanwhile."""
    env, names = agent.env(), _names(agent, most)
    if not env or not names:
        return
    drain, bind = _drain(agent), agent.random.random() < 0.6
    agent.scene.hot = env
    with agent.truth.watching(env) as seen:
        born = await agent.scene.tried(
            f"fork {env} into {' '.join(names)}",
            lambda: agent.kernel.fork(env, names, activate=bind, drain=drain),
        )
    _check_born(agent, born, names, seen)
    agent.look(env, *names)


async def bulk(agent: Agent) -> None:
    """Many at once."""
    await fork(agent, 12)


async def fork_past(agent: Agent) -> None:
    """Children of some moment of the past."""
    target, names = _past(agent), _names(agent, 2)
    if target is None or not names:
        return
    bind = agent.random.random() < 0.6
    work = f"fork {target} into {' '.join(names)}"
    born = await agent.scene.tried(work, lambda: agent.kernel.fork(target, names, activate=bind))
    _check_born(agent, born, names, [agent.truth.published[str(target)]])
    agent.look(*names)


def _check_born(agent: Agent, born: object, names: Sequence[str], may_be: list[Content]) -> None:
    for name, result in zip(names, check_each(agent, born, names), strict=False):
        if result.moment is not None:
            found = agent.truth.published[f"{name}@1"]
            agent.truth.require(found in may_be, "answer", f"{name} begins with {found}, which is none of {may_be}")


def check_each(agent: Agent, results: object, names: Sequence[str]) -> list[BulkResult]:
    """The results of a bulk command: one for each name, in order; each error has a cause."""
    if not isinstance(results, list):
        return []
    told = [result.env for result in results]
    agent.truth.require(told == list(names), "answer", f"{told} were answered, {names} asked for")
    for result in results:
        if result.error is not None:
            agent.scene.check(f"{result.env}, one of many,", result.error)
    return results


async def clone(agent: Agent) -> None:
    """A new environment whose origin is the present of another."""
    env, names = agent.env(), _names(agent, 1)
    if env and names:
        (child,) = names
        with agent.truth.watching(env) as seen:
            done = await _commanded(agent, f"clone {env} as {child}", child, lambda: agent.kernel.clone(env, child))
        if done is not None:
            found = agent.truth.published[str(done)]
            agent.truth.require(found in seen, "answer", f"{done} is {found}, which {env} did not hold meanwhile")
        agent.look(env)


async def collect(agent: Agent) -> None:
    """Remove what nothing reaches."""
    await agent.scene.tried("collect", agent.kernel.collect)
    agent.look(*agent.usable())


async def prune(agent: Agent) -> None:
    """Let generations go, now or at each publish; of any environment, also of one that has ended."""
    target, upkeep = _past(agent), agent.kernel.upkeep
    if target is None:
        return
    marked = sorted(agent.truth.marks)
    env = agent.random.choice(marked).partition("@")[0] if marked and agent.random.random() < 0.5 else target.env
    retention = agent.random.choice([KEEP_ALL, Retention(last=1), Retention(last=3), Retention(forked=True)])
    if agent.random.random() < 0.3:
        choice = Choice(retention=str(retention))
        await agent.scene.tried(f"{env} keeps {retention} from now on", lambda: upkeep.choose(env, choice))
        return
    gone = await agent.scene.tried(f"prune {env}: {retention}", lambda: upkeep.prune(env, retention))
    agent.truth.require(gone is None or isinstance(gone, tuple), "answer", f"prune answered {gone}")
    agent.look(env)


async def mark(agent: Agent) -> None:
    """Call a generation something, or nothing any more."""
    if (target := _past(agent)) is not None:
        chosen, text = target, agent.random.choice(["here", "there", ""])
        upkeep = agent.kernel.upkeep
        if (head := agent.kernel.environments[chosen.env].generation) > 2:  # one that would go
            chosen = Moment(env=chosen.env, generation=agent.random.randint(2, head - 1))
        await agent.scene.tried(
            f"mark {chosen}: {text}", lambda: upkeep.mark(chosen, text), excused=(GenerationPruned,)
        )


async def many(agent: Agent) -> None:
    """Several created, or reset, by one command."""
    if agent.random.random() < 0.5:
        if names := _names(agent, 4):
            bind = agent.random.random() < 0.6
            work = f"create {' '.join(names)}"
            done = await agent.scene.tried(work, lambda: agent.kernel.create_each(names, activate=bind))
            check_each(agent, done, names)
            agent.look(*names)
        return
    if usable := agent.usable():
        chosen = agent.random.sample(usable, min(len(usable), agent.random.randint(1, 4)))
        origins = [agent.truth.models[env].origin for env in chosen]
        done = await agent.scene.tried(f"reset {' '.join(chosen)}", lambda: agent.kernel.reset_each(chosen))
        for result, origin in zip(check_each(agent, done, chosen), origins, strict=False):
            _is(agent, result.moment, origin, f"reset of {result.env}")
        agent.look(*chosen)


KINDS: dict[str, Work] = {
    "snapshot": snapshot,
    "reset": reset,
    "restore": restore,
    "park": park,
    "activate": activate,
    "recover": recover,
    "retire": retire,
    "create": create,
    "name": name,
    "fork": fork,
    "fork_past": fork_past,
    "bulk": bulk,
    "clone": clone,
    "collect": collect,
    "prune": prune,
    "mark": mark,
    "many": many,
}
