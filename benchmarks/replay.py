"""What any moment costs on the shop, and how many forks of a trajectory are the same world.

    ./dev bench replay [--trajectories N] [--first SEED] [--errands N] [--keep N] [--rounds N]
                       [--skip-moments] [--skip-costs] [--json]

*Moments*: wanderers (statefork.worlds.shop.wanderers) do 15 to 40 actions each; each trajectory is then forked at every
one of its actions, in random order, and each fork is compared: how it was made, what it holds, how the next action is
seen in it. A snapshot is taken after each action, and what it holds is kept as digests; then all but each N-th (and the
newest) are let go, so that the others are made by doing actions again. ``digests`` counts for each resource how many
forks hold the ``same``, and how many but for when cookies expire and what else is ``masked``. Then each whole
trajectory is re-executed by a fresh engine in a process of its own. Verdicts are counted.

*Costs*, in milliseconds, medians and the worst: ``act`` without snapshots and with one after each action, side by side,
on one page of the shop; a snapshot of what has not changed; a live fork until it is ready (its page is there and
answers) and until the agent has its first observation; a fork of the past by re-execution of one action; 16 children at
once, observed; a fork that stays parked; the difference of two neighbours. Not covered: other worlds, many pages, a
machine with other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from _machine import machine

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.browser.actions import Goto, Scroll
from statefork.worlds.shop.agents import SITE, Shopper
from statefork.worlds.shop.moments import Digests, Tried, compared, digests, fork_everywhere
from statefork.worlds.shop.wanderers import Wanderer

AT_ONCE = 3  # forks of a trajectory that are alive together
CHILDREN = 16
PAGES = 5
EXACT = ("exact-state", "exact-observed")


class Costs:
    """Times by what was done, in milliseconds."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)

    @asynccontextmanager
    async def timed(self, what: str) -> AsyncIterator[None]:
        """Until the body's end."""
        began = time.perf_counter()
        yield
        self.ms[what].append((time.perf_counter() - began) * 1000)

    def summed_up(self) -> dict[str, dict[str, float]]:
        """Median, worst and number of each."""
        return {
            what: {"median": round(statistics.median(spans), 1), "worst": round(max(spans), 1), "times": len(spans)}
            for what, spans in self.ms.items()
        }


async def costs(engine: Engine, rounds: int) -> dict[str, Any]:
    """All but the moments."""
    found = Costs()
    env = await engine.create("costs")
    pages = [f"{SITE}{article.path}" for article in Shopper(env, seed=1).articles]
    await env.act(Goto(pages[0]))
    for number in range(rounds):
        for policy in ("on demand", "every action"):
            await env.keep_snapshots(policy)
            async with found.timed(f"act, snapshots {policy}"):
                await env.act(Goto(pages[number % len(pages)]))
        await env.keep_snapshots("on demand")
        async with found.timed("snapshot, unchanged"):
            await env.snapshot()
        async with found.timed("looked for changes, unchanged"):
            await env.kernel.publish_changes(env.name)
    await env.park()
    await _forks(engine, pages[0], found, rounds)
    await _neighbours(engine, found, rounds)
    result: dict[str, Any] = found.summed_up()
    with_, without = (found.ms[f"act, snapshots {policy}"] for policy in ("every action", "on demand"))
    result["snapshot after an action, above"] = {
        "median": round(statistics.median(with_) - statistics.median(without), 1)
    }
    return result


async def _forks(engine: Engine, page: str, found: Costs, rounds: int) -> None:
    """Of an environment whose only tab has been on one page; and of the same after so many pages."""
    env = await engine.create("forked")
    await env.act(Goto(page))
    for _ in range(rounds):
        await env.act(Scroll(dy=50))
        async with found.timed("fork, live, first observation"):
            async with found.timed("fork, live, ready"):
                (child,) = await engine.fork(env.name)
            await child.observe()
        await child.retire()
        await env.act(Scroll(dy=50))
        await env.act(Scroll(dy=50))
        async with found.timed("fork, one action done again"):
            (child,) = await engine.fork(f"{env.name}#{env.capsule.actions - 1}")
        await child.retire()
    async with found.timed(f"fork, live, {CHILDREN} children"):
        children = await engine.fork(env.name, n=CHILDREN)
        for child in children:
            await child.observe()
    for child in children:
        await child.retire()
    for _ in range(PAGES):
        await env.act(Goto(page))
        await env.act(Goto(f"{SITE}/"))
    async with found.timed(f"fork, live, {2 * PAGES} pages later"):
        await engine.fork(env.name)


async def _neighbours(engine: Engine, found: Costs, rounds: int) -> None:
    env = await engine.create("written")
    before = await _written(env)
    for _ in range(rounds):
        after = await _written(env)
        async with found.timed("diff of neighbours"):
            await engine.diff(before, after)
        async with found.timed("fork, parked"):
            (result,) = await engine.kernel.fork(after, 1, activate=False)
        await engine.environment(result.env).retire()
        before = after


async def _written(env: Environment) -> Any:
    await Shopper(env, seed=2).put_in_basket(Shopper(env, seed=2).articles[0])
    return await env.snapshot()


async def moments(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every fork of every trajectory, and each trajectory again in a fresh engine."""
    verdicts: Counter[str] = Counter()
    repeated: Counter[str] = Counter()
    trouble: list[str] = []
    everything: list[Tried] = []
    forks = alike = actions = gone = 0
    for seed in range(given.first, given.first + given.trajectories):
        name = f"wanderer-{seed}"
        async with open_engine("shop", state=folder / name) as engine:
            env = await engine.create(name)
            await env.keep_snapshots("every action")
            await Wanderer(Shopper(env, seed=seed)).wander(given.errands)
            actions += env.capsule.actions
            known, let_go = await thinned_out(engine, env, given.keep)
            gone += let_go

            def tell(one: Tried) -> None:
                print(f"  {one.ref}: {one.verdict} {one.trouble}", file=sys.stderr)

            tried = await fork_everywhere(engine, name, seed=seed, tell=tell, known=known, at_once=AT_ONCE)
        everything += tried
        for one in tried:
            forks, alike = forks + 1, alike + one.alike
            verdicts[one.verdict] += 1
            if not one.alike:
                trouble.append(f"{one.ref}: {one.verdict}: {one.trouble or one.holds}")
        told = await in_another_process(folder / name, name)
        repeated[told["verdict"]] += 1
        if told["verdict"] not in EXACT:
            trouble.append(f"{name} again: {told['verdict']}: {told['why']}")
        print(f"  {name} again: {told['verdict']}", file=sys.stderr)
    return {
        "trajectories": given.trajectories,
        "generations_kept": f"each {given.keep}th",
        "generations_gone": gone,
        "actions": actions,
        "forks": forks,
        "alike": alike,
        "verdicts": dict(verdicts),
        "digests": {resource: dict(found) for resource, found in compared(everything).items()},
        "again": dict(repeated),
        "trouble": trouble,
    }


async def thinned_out(engine: Engine, env: Environment, keep: int) -> tuple[Digests, int]:
    """What each generation holds; and how many have gone, since all but each ``keep``-th (and the newest) then go."""
    known = await digests(engine, env.name)
    for number in range(keep, env.capsule.actions, keep):
        await engine.mark(f"{env.name}#{number}", "stays")
    return known, len(await env.prune("last 1"))


async def in_another_process(state: Path, name: str) -> dict[str, str]:
    """A whole trajectory once more, with nothing that this process has in memory."""
    command = [sys.executable, __file__, "--again", name, "--state", str(state)]
    done = await anyio.run_process(command, stderr=None)
    told: dict[str, str] = json.loads(done.stdout)
    return told


async def again(state: Path, name: str) -> None:
    """What that process does."""
    async with open_engine("shop", state=state) as engine:
        result = await engine.replay(name)
        found = result.divergence
        why = f"{found.step}: {found.what}" if found is not None else "; ".join(result.unverified)
        print(json.dumps({"verdict": result.verdict, "why": why}))


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Both parts."""
    result: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="sf-replay-") as name:
        folder = Path(name)
        if not given.skip_costs:
            async with open_engine("shop", state=folder / "costs") as engine:
                result["costs_ms"] = await costs(engine, given.rounds)
        if not given.skip_moments:
            result["moments"] = await moments(given, folder)
    return result


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print(result["machine"])
    for what, found in result.get("costs_ms", {}).items():
        print(f"  {what:36}{'  '.join(f'{name} {value}' for name, value in found.items())}")
    for what, found in result.get("moments", {}).items():
        print(f"  {what:14}{found}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="seed of the first wanderer")
    parser.add_argument("--errands", type=int, default=7, help="of each wanderer: 3 to 5 actions each")
    parser.add_argument("--keep", type=int, default=5, help="each N-th of the wanderers' generations stays")
    parser.add_argument("--rounds", type=int, default=20, help="of the costs")
    parser.add_argument("--skip-moments", action="store_true", help="the costs alone")
    parser.add_argument("--skip-costs", action="store_true", help="the moments alone")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--again", help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.again:
        anyio.run(again, given.state, given.again, backend="trio")
        return
    result = anyio.run(run, given, backend="trio")
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
