"""Derived trees under a whole engine: when they are built, who shares them, and what a build that goes wrong leaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

import statefork
from statefork.adapters.interfaces.registry import check_options
from statefork.adapters.resources.derived.costs import Costs
from statefork.adapters.resources.files.overlay import release_mounts
from statefork.engine.contract import parse_contract
from statefork.engine.errors import ContractError, StateforkError
from statefork.engine.runtimes import RUNTIME_VARIABLE
from statefork.journal.values import Moment

pytestmark = pytest.mark.anyio

BUILD = """
import os, subprocess, sys, time
from pathlib import Path
output, notes, here = map(Path, sys.argv[1:])
with (here / "builds").open("a") as log:
    log.write(f"{os.getpid()}\\n")
words = sorted(word for note in notes.glob("*.txt") for word in note.read_text().split())
if "broken" in words:
    print("note is broken")
    sys.exit(3)
(output / "words").write_text(" ".join(words))
if "slow" in words:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sleep", "1000"])
    (here / "asleep").write_text("")
    time.sleep(1000)
"""
CONTRACT = """
[contract]
name = "words"
[resources.notes]
adapter = "files"
base = "notes"
[resources.index]
adapter = "derived"
durability = "derived"
depends_on = ["notes"]
inputs = ["notes"]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Desk:
    """A folder with a contract, whose index is made by a program that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.contract = folder / "words.toml"
        (folder / "notes").mkdir()
        (folder / "notes" / "first.txt").write_text("oak")
        (folder / "build.py").write_text(BUILD)
        self.write()

    def write(self, **options: object) -> None:
        command = [sys.executable, "build.py", "{output}", "{notes}", str(self.folder)]
        lines = [f"{name} = {value!r}" for name, value in {"command": command, **options}.items()]
        self.contract.write_text(CONTRACT + "\n".join(lines).replace("'", '"') + "\n")

    def open(self) -> statefork.Engine:
        return statefork.open_engine(self.contract, state=self.state)

    def builds(self) -> int:
        log = self.folder / "builds"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def half_made(self) -> list[str]:
        """What a build that went wrong might have left."""
        left = [str(path) for path in (self.state / "resources/index/tmp").glob("*")]
        for process in psutil.process_iter():
            try:
                if process.environ().get(RUNTIME_VARIABLE, "").startswith("index-build"):
                    left.append(f"process {process.pid} {process.cmdline()}")
            except psutil.Error:
                continue
        return left


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    yield Desk(tmp_path)
    release_mounts(tmp_path)


def tree(env: statefork.Environment, resource: str) -> Path:
    return Path(str(env.bindings[resource].address["path"]))


def words(env: statefork.Environment) -> str:
    return (tree(env, "index") / "words").read_text()


def note(env: statefork.Environment, text: str) -> None:
    (tree(env, "notes") / "more.txt").write_text(text)


def check_clean(desk: Desk) -> None:
    assert desk.half_made() == []
    report = statefork.audit(desk.state)
    assert report.clean, report


async def test_a_difference_says_whether_a_tree_is_stale(desk: Desk) -> None:
    desk.write(how="copy")
    async with desk.open() as engine:
        env = await engine.create("a")
        same = await engine.diff("a@1", "a")
        assert (same.equal, same.resources["index"].cache) == (True, "fresh")
        note(env, "ash")
        found = await engine.diff("a@1", "a")
        assert [change.name for change in found.resources["notes"].changes] == ["more.txt"]
        index = found.resources["index"]
        assert (index.cache, index.stale_by, index.total) == ("stale", ("notes",), 0)
        (tree(env, "index") / "words").write_text("mine")
        later = await engine.diff(found.after_at, "a")
        assert [change.name for change in later.resources["index"].changes] == ["words"]
        assert (later.resources["index"].cache, later.equal) == ("fresh", False)


async def test_one_build_for_all_generations_with_equal_inputs(desk: Desk) -> None:
    async with desk.open() as engine:
        a, b = await engine.create("a"), await engine.create("b")
        assert (words(a), words(b), desk.builds()) == ("oak", "oak", 1)
        (tree(a, "index") / "words").write_text("mine")
        assert words(b) == "oak"
        await a.reset()
        assert (words(a), desk.builds()) == ("oak", 1)

        note(a, "ash")
        await a.snapshot()
        assert words(a) == "oak"  # a running environment's tree is the application's business
        forks = await engine.fork("a", n=3)
        assert [words(each) for each in forks] == ["ash oak"] * 3
        assert desk.builds() == 2
        await a.snapshot()
        await a.restore(1)
        assert (words(a), desk.builds()) == ("oak", 2)
        for each in (b, *forks):
            await each.snapshot()
    check_clean(desk)
    async with desk.open() as engine:  # what a generation names is found again
        again = engine.environment(forks[0].name)
        await again.activate()
        assert (words(again), desk.builds()) == ("ash oak", 2)
    check_clean(desk)


@pytest.mark.parametrize("how", ["copy", "rebuild"])
async def test_what_the_application_wrote_is_kept_or_made_again(desk: Desk, how: str) -> None:
    desk.write(how=how)
    async with desk.open() as engine:
        a = await engine.create("a")
        note(a, "ash")
        (tree(a, "index") / "words").write_text("ash oak, by the application")
        kept = await a.snapshot()
        (tree(a, "index") / "words").write_text("later")
        await a.restore(kept)
        assert words(a) == ("ash oak, by the application" if how == "copy" else "ash oak")
        assert desk.builds() == (1 if how == "copy" else 2)
        strategy = engine.kernel.resources["index"].strategy()
        assert strategy.name.startswith(how)
        assert "a rebuild took" in strategy.reason
    check_clean(desk)


async def test_a_failed_build_aborts_and_the_old_generation_serves(desk: Desk) -> None:
    async with desk.open() as engine:
        a = await engine.create("a")
        note(a, "broken")
        broken = await a.snapshot()
        note(a, "mended")
        with pytest.raises(StateforkError, match=r"index: .* ended with status 3") as caught:
            await a.restore(broken)
        assert "note is broken" in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
        assert (tree(a, "notes") / "more.txt").read_text() == "mended"
        assert words(a) == "oak"
        assert desk.half_made() == []
        await a.snapshot()
        await a.reset()
    check_clean(desk)


async def test_a_build_has_a_deadline_and_ends_with_all_it_started(desk: Desk) -> None:
    desk.write(deadline_s=1.0)
    async with desk.open() as engine:
        a = await engine.create("a")
        note(a, "slow")
        slow = await a.snapshot()
        with pytest.raises(StateforkError, match=r"took longer than deadline_s = 1"):
            await a.restore(slow)
        assert (desk.folder / "asleep").exists()
        assert desk.half_made() == []
        assert a.ref == slow
    check_clean(desk)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


async def asleep(desk: Desk) -> None:
    with anyio.fail_after(30):
        await anyio.to_thread.run_sync(_wait_for, desk.folder / "asleep", abandon_on_cancel=True)


async def test_a_cancelled_build_leaves_nothing(desk: Desk) -> None:
    async with desk.open() as engine:
        a = await engine.create("a")
        note(a, "slow")
        slow = await a.snapshot()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.restore, slow)
            await asleep(desk)
            tasks.cancel_scope.cancel()
        assert desk.half_made() == []
        assert words(a) == "oak"
    check_clean(desk)


ENGINE = """
import sys, anyio, statefork
async def main():
    async with statefork.open_engine(sys.argv[1], state=sys.argv[2]) as engine:
        await engine.environment("a").activate()
        await engine.environment("a").restore(2)
anyio.run(main, backend="trio")
"""


async def test_an_engine_killed_while_it_builds_leaves_nothing(desk: Desk) -> None:
    async with desk.open() as engine:
        a = await engine.create("a")
        note(a, "slow")
        await a.snapshot()
        await a.reset()
    command = [sys.executable, "-c", ENGINE, str(desk.contract), str(desk.state)]
    async with await anyio.open_process(command, stdin=None, stdout=None, stderr=None) as child:
        await asleep(desk)
        os.kill(child.pid, signal.SIGKILL)
    async with desk.open() as engine:
        assert desk.half_made() == []
        a = engine.environment("a")
        await a.activate()
        assert words(a) == "oak"
    check_clean(desk)


def test_the_cheaper_is_taken_as_measured(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    assert costs.choice("auto")[0] == "copy"
    costs.note("rebuild", 0.010)
    assert costs.choice("auto")[0] == "copy"
    costs.note("copy", 0.020)
    assert costs.choice("auto") == (
        "rebuild",
        "a rebuild took 10 ms, keeping what was written 20 ms (medians of 1 and 1 here)",
    )
    for _ in range(3):
        costs.note("copy", 0.002)
    assert Costs(tmp_path).choice("auto")[0] == "copy"
    assert costs.choice("rebuild")[0] == "rebuild"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('durability = "derived"', "", "adapter 'derived' is for derived resources"),
        ('inputs = ["notes"]', 'inputs = ["notes"]\ncall = "a:b"', "exactly one of command and call"),
    ],
)
def test_a_contract_that_makes_no_sense_is_refused(desk: Desk, old: str, new: str, told: str) -> None:
    text = desk.contract.read_text().replace(old, new)
    with pytest.raises(ContractError, match=told):
        check_options(parse_contract(text, "words.toml"))


async def test_an_input_has_to_be_depended_on(desk: Desk) -> None:
    desk.contract.write_text(desk.contract.read_text().replace('depends_on = ["notes"]', ""))
    async with desk.open() as engine:
        with pytest.raises(StateforkError, match="'notes' is not among depends_on"):
            await engine.create("a")


async def test_a_python_function_gets_every_input_with_its_address(desk: Desk) -> None:
    (desk.folder / "making.py").write_text(
        "def index(output, inputs):\n    (output / 'words').write_text(','.join(sorted(inputs['notes'])))\n"
    )
    text = desk.contract.read_text()
    desk.contract.write_text(text[: text.index("command")] + 'call = "making:index"\npath = "."\n')
    async with desk.open() as engine:
        assert words(await engine.create("a")) == "path"
        assert isinstance(engine.environment("a").ref, Moment)
