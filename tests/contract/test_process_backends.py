"""Private backends: ended with all they have started, out of each other's reach, held still while they are sealed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.process import ProcessResource
from statefork.adapters.resources.process.cgroups import parent_of_leaves
from statefork.adapters.resources.process.ports import PORTS
from statefork.adapters.resources.process.standing import Standing, find_standing, started
from statefork.engine.errors import ContractError, NotReady, ResourceFailed, RuntimeDied
from statefork.engine.ports import Needs, Owner
from statefork.journal.values import Binding, Identity
from tests.contract.process_kit import COMMAND, SERVER, ask, bench_for, gone, read, until

pytestmark = pytest.mark.anyio

LEAVES = ("leaves", "signals")


@pytest.fixture(params=LEAVES)
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With cgroup leaves where there are any, and without."""
    if request.param == "leaves" and parent_of_leaves()[0] is None:
        pytest.skip(parent_of_leaves()[1])
    if request.param == "signals":
        monkeypatch.setattr(
            "statefork.adapters.resources.process.starting.parent_of_leaves", lambda: (None, "a test does without")
        )
    return str(request.param)


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    """Makes drivers of a resource with these options."""
    made: list[Driver] = []

    def new(state: Path = tmp_path / "state", **options: Any) -> Driver:
        made.append(Driver(bench_for(state, tmp_path, **{"strategy": "copy", **options})))
        return made[-1]

    yield new
    leaves = [bound.running.launch.leaf for driver in made for bound in resource_of(driver)._bound.values()]
    for driver in made:
        await driver.resource.stop()
    assert not [leaf.path for leaf in leaves if leaf is not None and leaf.path.exists()], "leaves are left"


Make = Callable[..., Driver]


def resource_of(driver: Driver) -> ProcessResource:
    assert isinstance(driver.resource, ProcessResource)
    return driver.resource


async def posted(binding: Any, path: str) -> str:
    return (await anyio.to_thread.run_sync(ask, binding, "POST", path))[1]


async def test_whatever_a_command_started_ends_with_it(make: Make, held: str) -> None:
    one = make()
    branch, binding = await one.open(await one.base())
    daemon = int(await posted(binding, "/spawn"))
    assert started(daemon)
    assert daemon in resource_of(one).process_ids()
    await one.close(branch, binding)
    assert not started(daemon)
    assert resource_of(one).process_ids() == ()


async def test_a_command_that_ends_takes_along_what_it_started_and_says_how_it_ended(make: Make, held: str) -> None:
    one = make()
    branch, binding = await one.open(await one.base())
    daemon = int(await posted(binding, "/spawn"))
    assert resource_of(one).died(binding) == ""
    with pytest.raises(OSError, match=r".*"):
        await posted(binding, "/die")
    await gone(daemon)
    await until(lambda: resource_of(one).died(binding))
    assert resource_of(one).died(binding) == "tracker: it ended with status 7"
    with pytest.raises(NotReady):
        await one.resource.probe(binding)
    with pytest.raises(RuntimeDied):
        await one.resource.quiesce(branch)
    await one.close(branch, binding)


async def test_a_keeper_that_was_killed_leaves_nothing(make: Make, held: str) -> None:
    one = make()
    branch, binding = await one.open(await one.base())
    server = int((await anyio.to_thread.run_sync(ask, binding, "GET", "/pid"))[1])
    keeper = resource_of(one).process_ids()[0]
    os.kill(keeper, signal.SIGKILL)
    await gone(keeper)
    await one.close(branch, binding)
    await gone(server)


ENGINE = """
    import sys, anyio
    from pathlib import Path
    from tests.contract.process_kit import ask, bench_for
    from statefork.adapters.resources.conformance import Driver

    async def main():
        one = Driver(bench_for(Path(sys.argv[1]), Path(sys.argv[2]), strategy="copy"))
        branch, binding = await one.open(await one.base())
        print(ask(binding, "GET", "/pid")[1], ask(binding, "POST", "/spawn")[1], flush=True)
        await anyio.sleep_forever()

    anyio.run(main)
"""


def left_by_a_killed_engine(state: Path, base_dir: Path, keepers: bool) -> tuple[list[int], Standing]:
    """The processes of a backend whose engine was killed, with its keeper or without; and its record."""
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENGINE), str(state), str(base_dir)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert engine.stdout is not None
    pids = [int(word) for word in engine.stdout.readline().split()]
    assert len(pids) == 2
    (workplace,) = (state / "resources" / "tracker" / "branches").glob("*/")
    standing = find_standing(workplace)
    assert standing is not None
    if keepers:
        os.kill(engine.pid, signal.SIGSTOP)
        os.kill(standing.keeper.pid, signal.SIGKILL)
    engine.kill()
    engine.wait()
    engine.stdout.close()
    return pids, standing


@pytest.mark.parametrize("keepers", ["live", "are killed too"])
async def test_what_a_killed_engine_left_is_ended(make: Make, tmp_path: Path, keepers: str) -> None:
    state = tmp_path / "state"
    pids, standing = await anyio.to_thread.run_sync(left_by_a_killed_engine, state, tmp_path, keepers != "live")
    one = make(state)
    await one.resource.start()
    if standing.leaf or keepers == "live":
        await gone(*pids)
        assert not standing.leaf or not await anyio.Path(standing.leaf).exists()
    else:  # without a leaf, what wiped its environment can't be told from others': see docs/design/process.md
        await gone(pids[0])
        os.kill(pids[1], signal.SIGKILL)
    assert len(await one.handles()) == 2  # the base, and the branch that nobody needs
    for handle in await one.handles():
        await one.resource.discard(handle)


async def test_it_is_held_still_while_it_is_sealed(make: Make, held: str) -> None:
    one = make()
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "before")
    await one.resource.quiesce(branch)
    with anyio.move_on_after(0.2) as waited:
        await anyio.to_thread.run_sync(ask, binding, "PUT", "/keys/key", "during", abandon_on_cancel=True)
    assert waited.cancelled_caught, "a frozen server answers nobody"
    sealed = await one.resource.seal(branch)
    await one.resource.thaw(branch)
    await until(lambda: read(binding, "key") == "during")
    assert await one.seen(sealed, "key") == "before"


async def test_what_starting_writes_is_no_change(make: Make) -> None:
    command = ["/bin/sh", "-c", 'date +%N > "$0/started"; exec "$@"', "{data}", *COMMAND]
    for cut in ("freeze", "restart"):
        one = make(command=command, cut=cut)
        base = await one.base()
        branch, binding = await one.open(base)
        assert await one.cut(branch) == base
        assert await one.cut(branch) == base
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        assert sealed != base
        assert await one.cut(branch) == sealed
        assert await one.seen(sealed, "key") == "value"
        await one.close(branch, binding)
        await one.resource.discard(sealed)


async def test_what_is_written_through_a_mapping_is_sealed(make: Make, held: str) -> None:
    one = make()
    branch, binding = await one.open(await one.base())
    await posted(binding, "/map")
    first = await one.cut(branch)
    await posted(binding, "/poke")
    await posted(binding, "/poke")
    second = await one.cut(branch)
    assert (await one.seen(first, "mapped") or "")[:1] == "0"
    assert (await one.seen(second, "mapped") or "")[:1] == "2"


@pytest.mark.root
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the tests' own Python may be where only root may go")
async def test_a_user_of_its_own_reaches_nothing_of_others(make: Make, open_place: Path) -> None:
    shutil.copy(SERVER, open_place)
    command = ["/usr/bin/python3", "-I", "-S", str(open_place / SERVER.name), "{data}", "{port}"]
    one = make(open_place / "state", user="own", processes_max=40, base="", command=command)
    base = await one.base()
    left, left_binding = await one.open(base, env="left")
    _, right_binding = await one.open(base, env="right")
    users = [json.loads(ask(binding, "GET", "/me")[1])["uid"] for binding in (left_binding, right_binding)]
    assert len({0, *users}) == 3
    await one.write(left_binding, "key", "value")
    stolen = str(left_binding.address["path"])
    as_right = ["setpriv", f"--reuid={users[1]}", f"--regid={users[1]}", "--clear-groups"]
    for theft in (["cat", f"{stolen}/key"], ["ls", stolen], ["touch", f"{right_binding.address['path']}/../log"]):
        assert (await anyio.run_process([*as_right, *theft], check=False)).returncode != 0, theft
    assert int(await posted(right_binding, "/forks")) < 40
    assert await one.read(left_binding, "key") == "value"
    sealed = await one.cut(left)
    assert await one.seen(sealed, "key") == "value"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder), *Path(folder).parents[:1]):
            path.chmod(0o711)
        yield Path(folder)


@pytest.mark.root
async def test_a_directory_that_the_user_may_not_enter_is_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    one = make(tmp_path / "closed" / "state", user="own")
    with pytest.raises(ResourceFailed, match="may not enter") as caught:
        await one.open(await one.base())
    assert "chmod o+x" in caught.value.hint


async def test_the_engines_environment_is_not_handed_down(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_ENGINE", "hidden")
    one = make(environment={"MODE": "at {port}"})
    _, binding = await one.open(await one.base())
    seen = json.loads(ask(binding, "GET", "/me")[1])["environment"]
    assert "SECRET_OF_THE_ENGINE" not in seen
    assert seen["MODE"] == f"at {binding.address['port']}"
    assert seen["PORT"] == str(binding.address["port"])
    assert seen["STATEFORK_DATA"] == binding.address["path"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": "sh -c 'echo no licence >&2; exit 3'"}, "did not come up: it ended with status 3"),
        ({"command": "no-such-program-here"}, "did not come up: it ended with status 127"),
        ({"command": "sleep 1000", "ready": "tcp", "ready_s": 0.3}, "no process of it listens at port"),
        ({"ready": "http /missing", "ready_s": 3.0}, "was answered with 404"),
        ({"command": "sh -c 'echo warming up; sleep 1000'", "ready": "line ^ready$", "ready_s": 0.3}, "has not said"),
    ],
)
async def test_one_that_does_not_come_up_says_why(make: Make, options: dict[str, Any], says: str) -> None:
    one = make(**options)
    base = await one.base()
    with pytest.raises(ResourceFailed, match=says) as caught:
        await one.open(base)
    if "echo" in str(options):
        assert caught.value.hint.startswith("It said:\n")
    assert resource_of(one).process_ids() == ()


async def test_a_line_may_say_that_it_is_ready(make: Make) -> None:
    one = make(command="sh -c 'echo listening on {port}; exec sleep 1000'", ready=r"line listening on \d+$")
    _, binding = await one.open(await one.base())
    await one.resource.probe(binding)


async def test_a_port_that_somebody_took_is_left_to_him(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PORTS.take
    with socket.create_server(("127.0.0.1", 0)) as thief:
        offered = iter([thief.getsockname()[1]])
        monkeypatch.setattr(PORTS, "take", lambda: next(offered, None) or real())
        one = make()
        _, binding = await one.open(await one.base())
        assert binding.address["port"] != thief.getsockname()[1]
        await one.write(binding, "key", "value")


async def test_names_in_braces_stand_for_what_it_depends_on(make: Make) -> None:
    one = make(command="serve {db.name}")
    base = await one.base()
    with pytest.raises(ContractError, match=r"resources.tracker.command: \{db.name\}"):
        await one.open(base)
    branch = await one.resource.branch(base, Owner(env="one", epoch=1))
    identity = Identity(env="one", epoch=1, activation=9)
    db = Binding(journal="j", resource="db", adapter="x", branch="b", identity=identity, address={"name": "shop"})
    one = make(command=[*COMMAND, "{db.name}"], environment={"DATABASE": "{db.name}"})
    binding = await one.resource.bind(branch, identity, Needs(bindings={"db": db}))
    seen = json.loads(ask(binding, "GET", "/me")[1])["environment"]
    assert (seen["DATABASE"], seen["STATEFORK_DB_NAME"]) == ("shop", "shop")


def tree_of(path: Path) -> dict[str, str]:
    """What a directory shows, by path: kinds, links and texts."""
    found = {}
    for place in sorted(path.rglob("*")):
        what = f"-> {place.readlink()}" if place.is_symlink() else "/" if place.is_dir() else place.read_text()
        found[str(place.relative_to(path))] = what
    return found


def meddle(tree: Path, round_: int) -> None:
    """One of each thing that a layer has to tell, while a process works in the tree."""
    (tree / "keep").mkdir(exist_ok=True)
    (tree / "keep" / f"{round_}").write_text(str(round_))
    (tree / "same").write_text("same" if round_ < 3 else "other")
    if round_ % 3 == 0:
        shutil.rmtree(tree / "inner", ignore_errors=True)
        (tree / "inner").mkdir()
        (tree / "inner" / "new").symlink_to(f"nowhere-{round_}")
    if round_ == 1:
        (tree / "moved").rename(tree / "renamed")
    if round_ == 5:
        (tree / "renamed" / "deep").unlink()
        (tree / "seeded").unlink()
    if round_ == 9:
        (tree / "renamed").rename(tree / "keep" / "renamed")


@pytest.mark.parametrize("strategy", [pytest.param("overlay", marks=pytest.mark.root), "copy"])
async def test_every_version_is_what_the_tree_showed(make: Make, tmp_path: Path, strategy: str) -> None:
    one = make(strategy=strategy)
    for name in ("inner", "moved"):
        (tmp_path / "base" / name).mkdir()
        (tmp_path / "base" / name / "deep").write_text(name)
    branch, binding = await one.open(await one.base())
    tree = Path(str(binding.address["path"]))
    sealed = []
    for round_ in range(12):
        await one.write(binding, "held", str(round_))  # a file that stays open
        await anyio.to_thread.run_sync(meddle, tree, round_)
        shown = await anyio.to_thread.run_sync(tree_of, tree)
        sealed.append((await one.cut(branch), shown))
        if round_ == 6:
            await one.resource.discard(sealed.pop(0)[0])
    assert await anyio.to_thread.run_sync(tree_of, tree) == sealed[-1][1]
    for version, shown in sealed:
        again = await one.resource.branch(version, Owner(env="again", epoch=1))
        path = one.bench.state / str(again.data["path"])
        assert await anyio.to_thread.run_sync(tree_of, path) == shown
        await one.resource.discard(again)
