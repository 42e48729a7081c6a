"""``statefork rollout``: a policy acts in many environments, and trajectories are kept for whoever trains."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import anyio
import msgspec
import typer
from anyio.abc import TaskStatus

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, UsageError
from statefork.adapters.interfaces.cli.options import JsonOption
from statefork.adapters.interfaces.cli.output import Bar, Out, while_opening
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.journal.errors import StateLocked

if TYPE_CHECKING:
    from statefork.adapters.interfaces.rollout import Collected, Task

EXAMPLES = """
    statefork rollout --policy agent:act --tasks tasks.json --out rollouts -n 8
    statefork rollout --policy agent:act --tasks tasks.json --out rollouts --world office --slots 4 --best-of 4
    statefork rollout --policy agent:act --tasks tasks.json --out rollouts     again: only what is missing
    jq -c 'select(.reward == 1) | .messages' rollouts/trajectories.jsonl
"""
FAILURES_TOLD = 10
SLOT_WAIT_S = 600.0


PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        help="What decides: module:function, asynchronous or plain, of goal, observation and history. It gives an "
        "action or Stop(answer). This directory is looked in first.",
        metavar="MODULE:NAME",
        show_default=False,
    ),
]
TasksOption = Annotated[
    Path, typer.Option("--tasks", help="A task file of WebArena's form.", metavar="FILE", show_default=False)
]
OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        help="Where trajectories are kept. What is complete there is not done again.",
        metavar="DIR",
        show_default=False,
    ),
]
JudgeOption = Annotated[
    str,
    typer.Option(
        "--judge",
        help="What tells the reward: plain (answers, addresses, texts, SQL, Python), webarena (its evaluators), "
        "or module:name of a judge.",
        metavar="JUDGE",
    ),
]
SiteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--site",
        help="Which host a site of the tasks is: shopping=shop.example for __SHOPPING__.",
        metavar="NAME=HOST",
        show_default="those of the packaged worlds",
    ),
]
WorldOption = Annotated[str, typer.Option("--world", help="A packaged world, or a contract file.", metavar="CONTRACT")]
SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", min=1, help="How many of them are bound at once.", show_default="no limit"),
]
BestOption = Annotated[
    int, typer.Option("--best-of", min=1, help="Rollouts of each task; best.jsonl has the best of each.")
]
AtOption = Annotated[
    str,
    typer.Option(
        "--at",
        help="Begin each rollout as a fork of this moment, in which somebody is logged in, say; with --state.",
        metavar="REF",
        show_default="new environments",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State directory.", metavar="DIR", show_default="state in --out"),
]


def rollout(
    policy: PolicyOption,
    tasks: TasksOption,
    out_dir: OutOption,
    n: Annotated[int, typer.Option("-n", min=1, help="How many environments at once.")] = 8,
    world: WorldOption = "shop",
    slots: SlotsOption = None,
    best_of: BestOption = 1,
    steps_max: Annotated[int, typer.Option("--steps-max", min=1, help="Actions of one rollout at most.")] = 30,
    judge: JudgeOption = "plain",
    site: SiteOption = None,
    at: AtOption = "",
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Roll out tasks with a policy, and keep what was done, seen and rewarded: one line of JSON for each rollout.

    It opens an engine of its own. A rollout begins in a new environment (or a fork: --at) at the page of its task, and
    ends when the policy stops or at --steps-max; it is judged then, published, and retired: its moments can still be
    forked. Killed at any time it goes on when it is given again: what is complete is skipped, nothing is there twice.

    Exit status: 0 every rollout is there, 1 some failed (given again they are tried again), 2 it can't be begun.
    """
    from statefork.adapters.interfaces.rollout.policies import load_policy
    from statefork.adapters.interfaces.rollout.tasks import read_tasks

    out = Out(as_json=as_json)
    wish = _Wish(
        tasks=read_tasks(tasks, _hosts(site or [])),
        policy=load_policy(policy),
        name=policy,
        judge=judge,
        out=out_dir,
        world=world,
        state=state or out_dir / "state",
        slots=slots,
        at_once=n,
        attempts=best_of,
        steps_max=steps_max,
        at=at,
    )
    with out.progress(f"opening {world}") as bar:
        # asyncio, for that is what clients of models are mostly written for
        found = anyio.run(_until_told, wish, bar, out, backend="asyncio")
    if found is None:
        raise KeyboardInterrupt
    _tell(out, found, out_dir)
    if not found.complete:
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)


class _Wish(NamedTuple):
    tasks: Sequence[Task]
    policy: Any
    name: str
    judge: str
    out: Path
    world: str
    state: Path
    slots: int | None
    at_once: int
    attempts: int
    steps_max: int
    at: str


async def _until_told(wish: _Wish, bar: Bar, out: Out) -> Collected | None:
    """What was collected; None where it was told to stop: environments are retired, and the engine is closed then."""
    found = None
    async with anyio.create_task_group() as tasks:

        async def listen(*, task_status: TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        await tasks.start(listen)
        found = await _roll(wish, bar, out)
        tasks.cancel_scope.cancel()
    return found


async def _roll(wish: _Wish, bar: Bar, out: Out) -> Collected:
    from statefork.adapters.interfaces.python import open_engine
    from statefork.adapters.interfaces.rollout.collecting import collect
    from statefork.adapters.interfaces.rollout.judges import chosen
    from statefork.engine.settings import Settings

    def tell(done: int, of: int, reward: float) -> None:
        bar.tell(done / of, "rolling out", f"{done} of {of}" + (f", mean reward {reward:.2f}" if done else ""))

    settings = Settings(slot_wait_s=SLOT_WAIT_S)
    opening = open_engine(
        wish.world, state=wish.state, slots=wish.slots, settings=settings, progress=while_opening(bar, out)
    )
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(chosen(wish.judge, wish.tasks))
        try:
            engine = await stack.enter_async_context(opening)
        except StateLocked as locked:
            hint = f"End the other engine (statefork world down --state {wish.state}), or give another --state or --out"
            raise StateLocked(locked, hint=hint) from None
        return await collect(
            engine,
            wish.tasks,
            wish.policy,
            judge,
            wish.out,
            policy_name=wish.name,
            at_once=wish.at_once,
            attempts=wish.attempts,
            steps_max=wish.steps_max,
            at=wish.at,
            tell=tell,
        )


def _hosts(given: Sequence[str]) -> dict[str, str]:
    hosts = {}
    for text in given:
        name, equals, host = text.partition("=")
        if not (name and equals and host):
            raise UsageError(f"--site: {text!r} is not NAME=HOST", hint="Give it as shopping=shop.example")
        hosts[name] = host.removeprefix("http://").rstrip("/")
    return hosts


def _tell(out: Out, found: Collected, place: Path) -> None:
    out.data({"complete": found.complete, **msgspec.to_builtins(found), "out": os.fspath(place)})
    skipped = f", {found.skipped} were there already" if found.skipped else ""
    reward = f"; mean reward {found.reward:.2f}" if found.done + found.skipped else ""
    out.say(f"{counted(found.done, 'rollout')} in {found.seconds:.0f} s{skipped}{reward}", "bold")
    out.say(f"  {place / 'trajectories.jsonl'}")
    for failure in found.failed[:FAILURES_TOLD]:
        out.say(f"failed: {failure.task}/{failure.attempt}: {failure.code}: {' '.join(failure.message.split())}", "red")
    if len(found.failed) > FAILURES_TOLD:
        out.say(f"and {len(found.failed) - FAILURES_TOLD} more: --json has them all", "red")
    if found.failed:
        out.say("Given again it tries these again, and nothing else.")
