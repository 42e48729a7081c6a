"""The test's side of the crash tests: a zygote, a world on disk, and copies of prepared states."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from statefork.adapters.interfaces.assembly import assemble
from statefork.adapters.resources.files.mounts import detach, mounted_below
from statefork.adapters.resources.ledger import remove_tree
from statefork.engine.settings import Settings
from tests.crash.boundaries import ON_DISK
from tests.crash.hand import FOLDER
from tests.crash.hands import CONTRACT_FILE, Facts, Hands
from tests.crash.zygote import Answer, Request

ROOT = Path(__file__).parents[2]
CONTRACT = """
[contract]
name = "notes"

[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"

[resources.media]
adapter = "files"
base = "media"

[resources.hand]
adapter = "hand"
durability = "derived"
depends_on = ["db", "media"]
"""


FROM_NOTHING = "first opening"


class Zygote:
    """Forks engines on demand, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, request: Request) -> Answer:
        """Have it done in a process of its own."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Answer)

    def end(self) -> None:
        self._process.communicate()


class Moments(NamedTuple):
    """Boundaries, in their order, at which the disk looks the same: to kill at the last is to kill at each."""

    names: tuple[str, ...]
    number: int  # of the last one among all boundaries

    @property
    def last(self) -> str:
        """Where most was acknowledged."""
        return self.names[-1]

    @property
    def only_within_a_call(self) -> bool:
        """Nothing but steps on the disk."""
        return all(name.startswith(ON_DISK) for name in self.names)


class Stage:
    """One scenario: its prepared state, and engines on copies of it."""

    def __init__(self, zygote: Zygote, folder: Path, scenario: str) -> None:
        self._zygote = zygote
        self._folder = folder
        self.scenario = scenario
        self._prepared = folder / "prepared"
        self._facts = Facts()
        self._copies = 0
        self._contract = folder / CONTRACT_FILE
        self._contract.write_text(CONTRACT)
        make_bases(folder)

    def prepare(self) -> list[dict[str, Any]]:
        """Once, before anything else; the scenario that begins with nothing has nothing to prepare."""
        if self.scenario == FROM_NOTHING:
            return []
        said = self.well("prepare", self._prepared)
        self._facts = self._facts.take(said)
        return said

    @contextmanager
    def state(self) -> Iterator[Path]:
        """A copy of the prepared state."""
        self._copies += 1
        state = self._folder / f"state-{self._copies}"
        if self._prepared.exists():
            subprocess.run(["cp", "-a", str(self._prepared), str(state)], check=True)
        yield state
        if state.exists():  # where a test failed, the state stays for whoever looks at it, until its folder goes
            release(state)
            remove_tree(state)

    def ask(self, do: str, state: Path, *, facts: Facts | None = None, kill: str = "") -> Answer:
        """Have something done to a state."""
        return self._zygote.ask(
            Request(
                do=do,
                scenario=self.scenario,
                contract=str(self._contract),
                state=str(state),
                facts=facts or self._facts,
                kill=kill,
            )
        )

    def well(self, do: str, state: Path, *, facts: Facts | None = None) -> list[dict[str, Any]]:
        """The same, where it must succeed; what was said."""
        answer = self.ask(do, state, facts=facts)
        assert answer.status == 0, f"{do} of {self.scenario}: {told(answer)}"
        return answer.said

    def recorded(self, do: str, state: Path, *, facts: Facts | None = None) -> list[Moments]:
        """All boundaries of a run that is not killed, those together between which nothing was written."""
        (passed,) = (one["passed"] for one in self.well(do, state, facts=facts) if "passed" in one)
        moments: dict[str, Moments] = {}
        for number, (name, disk) in enumerate(passed, 1):
            before = moments[disk].names if disk in moments else ()
            moments[disk] = Moments((*before, name), number)
        return list(moments.values())

    def killed(self, do: str, state: Path, kill: str, facts: Facts | None = None) -> Facts | None:
        """The facts with what a process said until it was killed at a boundary; None where it did not come by."""
        answer = self.ask(do, state, kill=kill, facts=facts)
        if answer.status == 0:
            return None
        assert answer.status == -signal.SIGKILL, f"{self.scenario}, to be killed {kill!r}: {told(answer)}"
        return (facts or self._facts).take(answer.said)

    def examine(self, state: Path, facts: Facts, note: str) -> dict[str, Any]:
        """Open what was left, and look at everything."""
        answer = self.ask("examine", state, facts=facts)
        assert answer.status == 0, f"{self.scenario}, killed {note}: {told(answer)}"
        (summary,) = (one["summary"] for one in answer.said if "summary" in one)
        return dict(summary)


def told(answer: Answer) -> str:
    """How a child ended, for people."""
    errors = [one["error"] for one in answer.said if "error" in one]
    return "\n".join(errors) or f"status {answer.status} after {answer.said[-3:]}"


def release(folder: Path) -> None:
    """Take away what a killed engine left mounted."""
    for place in mounted_below(folder):
        detach(place)


def make_bases(folder: Path, *, bytes_more: int = 0) -> None:
    """A database with a table of witnesses and a tree with a folder for them; the database may be larger."""
    with closing(sqlite3.connect(folder / "notes.sqlite3")) as connection, connection:
        connection.execute("CREATE TABLE witnesses (witness TEXT PRIMARY KEY) WITHOUT ROWID")
        connection.execute("CREATE TABLE ballast AS SELECT zeroblob(?) AS ballast", (bytes_more,))
    (folder / "media" / FOLDER).mkdir(parents=True)
    (folder / "media" / "readme").write_text("base")


@asynccontextmanager
async def opened(folder: Path, state: Path, *, base_bytes: int = 0) -> AsyncIterator[Hands]:
    """An engine in this very process, and somebody who uses it."""
    contract = folder / CONTRACT_FILE
    if not contract.exists():
        contract.write_text(CONTRACT)
        make_bases(folder, bytes_more=base_bytes)
    pipe = os.open(os.devnull, os.O_WRONLY)
    try:
        async with assemble(contract, state=state, settings=Settings(settle_s=1.0), progress=None) as assembled:
            yield Hands(assembled, Facts(), pipe, lambda name: None)
    finally:
        os.close(pipe)
