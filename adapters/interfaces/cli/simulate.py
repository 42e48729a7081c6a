"""``statefork simulate``: the real engine in a world that lies, for those who change the engine."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import JsonOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.sentences import counted

if TYPE_CHECKING:
    from statefork.simulation.many import Options
    from statefork.simulation.run import Outcome

EXAMPLES = """
    statefork simulate
    statefork simulate --seeds 100000 --jobs 8 --keep-going
    statefork simulate --seed 614
    statefork simulate --environments 20-50 --steps 40
    statefork simulate --mutant all
"""
TRACE_LINES_SHOWN = 60

SEEDS = 200

SeedsOption = Annotated[
    int | None, typer.Option("--seeds", help="How many seeds.", min=1, metavar="N", show_default=str(SEEDS))
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Run this one seed and print its trace.", metavar="S", show_default=False)
]
FromOption = Annotated[int | None, typer.Option("--from", help="The first seed.", metavar="S", show_default="0")]
EnvironmentsOption = Annotated[
    str, typer.Option("--environments", help="How many, at most: 20-50.", metavar="A-B", show_default=False)
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", help="Of each agent in each life.", metavar="N", min=1, show_default=False)
]
LivesOption = Annotated[
    int | None, typer.Option("--lives", help="Engines, one after the other.", metavar="N", min=1, show_default=False)
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes.", metavar="N", min=1)]
MutantOption = Annotated[
    str,
    typer.Option(
        "--mutant", help="Plant this fault (all: each of them) and see it caught.", metavar="NAME", show_default=False
    ),
]
KeepGoingOption = Annotated[bool, typer.Option("--keep-going", help="Do not stop at the first failure.")]


def simulate(
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    first: FromOption = None,
    environments: EnvironmentsOption = "",
    steps: StepsOption = None,
    lives: LivesOption = None,
    jobs: JobsOption = 1,
    mutant: MutantOption = "",
    keep_going: KeepGoingOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the real engine on a simulated clock, disk and world that fail, lie and crash, and check every rule.

    One seed is one run, the same on every machine. A failure prints its trace and the one command that gives it again.
    With --mutant a fault is planted in the engine, which must be caught within a stated number of seeds.
    Needs no state directory and touches none. Exit status: 0 every rule held (the mutant was caught), 1 not so.
    """
    from statefork.simulation.many import Options

    out = Out(as_json=as_json)
    options = Options(environments=_range(environments), steps=steps, lives=lives)
    if mutant:
        _check_mutant(mutant)
    if seed is not None and (seeds is not None or first is not None):
        raise UsageError("--seed runs one seed, --seeds and --from run many", hint="Leave one of them out")
    if seed is not None:
        options = _with_mutant(options, "" if mutant == "all" else mutant)
        raise typer.Exit(_one(out, seed, options))
    if mutant:
        raise typer.Exit(_mutants(out, "" if mutant == "all" else mutant, first or 0))
    begin = first or 0
    raise typer.Exit(_many(out, range(begin, begin + (seeds or SEEDS)), options, jobs, keep_going))


def _range(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(f"--environments: {text!r} is no range", hint="Give two numbers: 20-50")
    return least, most


def _check_mutant(name: str) -> None:
    from statefork.simulation.mutants import MUTANTS

    if name != "all" and name not in MUTANTS:
        raise UsageError(f"--mutant: there is none called {name!r}", hint=f"There are: {', '.join(MUTANTS)}")


def _with_mutant(options: Options, name: str) -> Options:
    from msgspec.structs import replace

    return replace(options, mutant=name)


def _one(out: Out, seed: int, options: Options) -> int:
    from statefork.simulation.many import run_one

    outcome = run_one(seed, options)
    out.data(_as_json(outcome, options, trace=True))
    for line in outcome.trace:
        out.say(line)
    if outcome.rule:
        out.say(outcome.traceback)
        out.say(f"seed {seed}: {outcome.message}", "bold red")
        return 1
    out.say(f"seed {seed}: every rule held; {_sizes([outcome])}; fingerprint {outcome.fingerprint}", "bold green")
    return 0


def _many(out: Out, seeds: range, options: Options, jobs: int, keep_going: bool) -> int:
    from statefork.simulation.many import run_many

    began, done, failed = time.monotonic(), list[Any](), list[Any]()
    with out.progress("simulating") as bar:
        for outcome in run_many(seeds, options, jobs=jobs):
            done.append(_without_trace(outcome))
            if outcome.rule:
                failed.append(outcome)
                if not keep_going:
                    break
            bar.tell(len(done) / len(seeds), "simulating")
    took_s = time.monotonic() - began
    out.data(
        {
            "seeds": len(done),
            "first": seeds.start,
            "seconds": round(took_s, 3),
            "events": sum(outcome.events for outcome in done),
            "crashes": sum(outcome.crashes for outcome in done),
            "failures": [_as_json(outcome, options, trace=True) for outcome in failed],
        }
    )
    for outcome in failed:
        _tell(out, outcome, options)
    told = f"{counted(len(done), 'seed')} in {took_s:.1f} s ({len(done) / took_s:.1f} a second): {_sizes(done)}"
    if failed:
        out.say(f"{told}; {counted(len(failed), 'seed')} failed", "bold red")
        return 1
    out.say(f"{told}; every rule held", "bold green")
    return 0


def _tell(out: Out, outcome: Outcome, options: Options) -> None:
    shown = outcome.trace[-TRACE_LINES_SHOWN:]
    if len(shown) < len(outcome.trace):
        out.say(f"… {len(outcome.trace) - len(shown)} lines before")
    for line in shown:
        out.say(line)
    out.say(f"seed {outcome.seed}: {outcome.message}", "bold red")
    out.say(f"Again: {options.command(outcome.seed)}")


def _mutants(out: Out, name: str, first: int) -> int:
    from statefork.simulation.many import catch
    from statefork.simulation.mutants import planted

    rows: list[dict[str, Any]] = []
    chosen = planted(name)
    with out.progress("planting faults") as bar:
        for number, mutant in enumerate(chosen.values()):
            bar.tell(number / len(chosen), mutant.name)
            took, caught = catch(mutant, first=first)
            rows.append(
                {
                    "mutant": mutant.name,
                    "fault": mutant.fault,
                    "caught": caught is not None,
                    "seeds": took,
                    "within": mutant.within,
                    "rule": caught.rule if caught is not None else "",
                    "message": caught.message if caught is not None else "",
                }
            )
    out.data(rows)
    out.table(
        ("mutant", "rule", "seeds>", "within>", "fault"),
        [
            (
                row["mutant"],
                row["rule"] or "SURVIVED",
                str(row["seeds"]),
                str(row["within"]),
                " ".join(row["fault"].split()),
            )
            for row in rows
        ],
    )
    return 0 if all(row["caught"] for row in rows) else 1


def _sizes(outcomes: list[Any]) -> str:
    events, made = sum(one.events for one in outcomes), sum(one.generations for one in outcomes)
    crashes = sum(one.crashes for one in outcomes)
    return f"{counted(events, 'event')}, {counted(made, 'generation')}, {counted(crashes, 'killed engine')}"


def _without_trace(outcome: Outcome) -> Outcome:
    from msgspec.structs import replace

    return replace(outcome, trace=(), traceback="")


def _as_json(outcome: Outcome, options: Options, *, trace: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seed": outcome.seed,
        "rule": outcome.rule,
        "message": outcome.message,
        "fingerprint": outcome.fingerprint,
        "events": outcome.events,
        "environments": outcome.environments,
        "generations": outcome.generations,
        "crashes": outcome.crashes,
        "simulated_seconds": round(outcome.simulated_s, 3),
        "seconds": round(outcome.took_s, 3),
        "again": options.command(outcome.seed),
    }
    return found | ({"trace": list(outcome.trace)} if trace else {})
