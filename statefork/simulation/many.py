"""Many seeds, in several processes, and mutants: what the command line and the tests run."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import msgspec

from statefork.simulation.mutants import MUTANTS, Mutant
from statefork.simulation.plan import Plan
from statefork.simulation.run import Outcome, simulate


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all seeds of one command: it replaces what a seed would have chosen."""

    environments: tuple[int, int] | None = None
    steps: int | None = None
    lives: int | None = None
    mutant: str = ""

    def command(self, seed: int) -> str:
        """The one command that gives this run again."""
        words = ["statefork simulate", f"--seed {seed}"]
        if self.environments is not None:
            words.append(f"--environments {self.environments[0]}-{self.environments[1]}")
        words += [f"--{name} {value}" for name in ("steps", "lives") if (value := getattr(self, name)) is not None]
        words += [f"--mutant {self.mutant}"] if self.mutant else []
        return " ".join(words)


_NO_OPTIONS = Options()


def run_one(seed: int, options: Options = _NO_OPTIONS) -> Outcome:
    """One seed, with the mutant that the options plant."""
    plan = Plan.of(seed, environments=options.environments, steps=options.steps, lives=options.lives)
    with MUTANTS[options.mutant].plant() if options.mutant else nullcontext():
        return simulate(plan)


def run_many(seeds: Iterable[int], options: Options = _NO_OPTIONS, *, jobs: int = 1) -> Iterator[Outcome]:
    """Each seed's outcome, as it comes; of runs in which every rule held without their traces."""
    if jobs <= 1:
        for seed in seeds:
            yield _slim(run_one(seed, options))
        return
    crew = _Crew(seeds, options, jobs)
    try:
        yield from crew.outcomes()
    finally:
        crew.end()


class _Crew:
    """Processes that run seeds, each told by a thread of its own: a seed a line in, an outcome a line out."""

    def __init__(self, seeds: Iterable[int], options: Options, jobs: int) -> None:
        self._seeds = iter(seeds)
        self._taking = threading.Lock()
        self._told: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        command = [sys.executable, "-m", "statefork.simulation.many", msgspec.json.encode(options).decode()]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(jobs)
        ]
        self._threads = [threading.Thread(target=self._tell, args=(process,)) for process in self._processes]
        for thread in self._threads:
            thread.start()

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                with self._taking:
                    seed = next(self._seeds, None)
                if seed is None:
                    return
                process.stdin.write(b"%d\n" % seed)
                process.stdin.flush()
                self._told.put(msgspec.json.decode(process.stdout.readline(), type=Outcome))
        except (OSError, ValueError, msgspec.MsgspecError) as error:  # it has died, or was ended
            self._told.put(error)
        finally:
            self._told.put(None)

    def outcomes(self) -> Iterator[Outcome]:
        """What they tell. Raises what made one of them unable to."""
        running = len(self._threads)
        while running:
            told = self._told.get()
            if isinstance(told, BaseException):
                raise ChildProcessError("a process that runs seeds has died") from told
            if told is None:
                running -= 1
            else:
                yield told

    def end(self) -> None:
        """Nobody wants more. Joins them."""
        with self._taking:
            self._seeds = iter(())
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            with process:  # closes its pipes and waits for it
                pass


def serve(options: Options) -> None:
    """Run the seeds that standard input names."""
    for line in sys.stdin:
        sys.stdout.buffer.write(msgspec.json.encode(_slim(run_one(int(line), options))) + b"\n")
        sys.stdout.buffer.flush()


def _slim(outcome: Outcome) -> Outcome:
    return outcome if outcome.rule else msgspec.structs.replace(outcome, trace=())


def catch(mutant: Mutant, *, first: int = 0) -> tuple[int, Outcome | None]:
    """Run seeds with the mutant planted until one of its rules is found broken, or it has survived.

    How many seeds that took, and the run in which it was caught; None for a survivor. A run that breaks another rule
    only does not count.
    """
    options = Options(mutant=mutant.name)
    for number in range(mutant.within):
        outcome = run_one(first + number, options)
        if outcome.rule in mutant.rules:
            return number + 1, outcome
    return mutant.within, None


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Options))
