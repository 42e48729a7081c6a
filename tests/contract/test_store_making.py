"""Making stores, moving resources into them, and what is left when that is interrupted. Real file systems."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statefork
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.store import keeping, kinds, loop, making
from statefork.adapters.interfaces.store.errors import (
    StoreExists,
    StoreForeign,
    StoreFull,
    StoreNotLarger,
    StoreUnavailable,
)
from statefork.adapters.interfaces.store.keeping import collect, mount_by_hand, reachable, resize
from statefork.adapters.interfaces.store.kinds import KINDS
from statefork.adapters.interfaces.store.looking import advise, look
from statefork.adapters.interfaces.store.making import Wish, fault, init
from statefork.adapters.interfaces.store.mounting import mount_store
from statefork.adapters.interfaces.store.place import FOLDER, PARTIAL, Place, is_linked, read_record
from statefork.adapters.interfaces.store.sizes import MIB
from statefork.adapters.resources.files.mounts import detach, mounted_below
from statefork.journal.errors import StateForeign
from tests.contract.store_kit import (
    SIZE,
    engine_on,
    filled,
    freed,
    holds,
    make_store,
    make_world,
    nothing_is_left,
    places,
    write,
)

pytestmark = [pytest.mark.anyio, pytest.mark.root]


def nowhere(fraction: float, text: str) -> None:
    """Nobody waits for progress."""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(autouse=True)
def left_behind(tmp_path: Path) -> Iterator[None]:
    """Nothing: no mount, no loop device."""
    if why := fault(KINDS["xfs"]):
        pytest.skip(f"no store can be made here: {why}")
    yield
    left = mounted_below(tmp_path)
    for place in left:
        detach(place)
    assert not left
    assert all(freed(image) for image in tmp_path.rglob("image"))


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    return make_world(tmp_path)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def used(contract: Path, state: Path) -> None:
    """A state directory with two generations, without a store."""
    async with engine_on(contract, state) as engine:
        env = await engine.create("a")
        write(engine, "a", "one")
        await env.snapshot()
        write(engine, "a", "two")
        _, tree = places(engine, "a")
        (tree / "readme").rename(tree / "other")
        (tree / "readme").mkdir()
        (tree / "other").unlink()


def paths(state: Path) -> list[Path]:
    """Everything in a state directory."""
    return sorted(path for path in state.rglob("*") if path.name != "lock")


async def goes_on(contract: Path, state: Path) -> None:
    """What ``used`` left is all there."""
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["one", "two"]


async def test_resources_are_moved_whole_when_that_is_asked_for(contract: Path, state: Path) -> None:
    await used(contract, state)
    with pytest.raises(StoreExists, match="are not in a store"):
        make_store(state)
    assert not is_linked(state)
    told: list[str] = []
    init(state, Wish(size_bytes=SIZE, migrate=True), lambda fraction, text: told.append(text))
    assert "copying the resources" in told
    assert is_linked(state)
    assert sorted(path.name for path in (state / FOLDER).iterdir()) == ["image", "mounted", "store.json"]
    mount_by_hand(state)
    assert statefork.audit(state, world=True).clean, "every byte, whiteout and attribute is there"
    await goes_on(contract, state)
    with pytest.raises(StoreExists, match="has a store"):
        make_store(state)


async def test_resources_that_do_not_fit_stay_where_they_are(contract: Path, state: Path) -> None:
    await used(contract, state)
    with (state / "resources" / "db" / "much").open("wb") as file:
        for _ in range(270):
            file.write(bytes(MIB))
    before = paths(state)
    with pytest.raises(StoreFull, match="could not be copied"):
        make_store(state, migrate=True)
    assert paths(state) == before


@pytest.mark.parametrize("step", ["finish", "_replace", "_exchange", "remove_tree"])
async def test_a_move_that_is_interrupted_is_finished_by_the_next_opening(
    contract: Path, state: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs after a SIGKILL; here nothing does since it raises, from the last rename on."""
    await used(contract, state)
    real = getattr(making, step)
    calls: list[Any] = []

    def killed(*arguments: Any) -> Any:
        """From the moment at which the new store has its name."""
        calls.append(arguments)
        if (state / FOLDER).exists():
            raise SystemExit
        return real(*arguments)

    monkeypatch.setattr(making, step, killed)
    with pytest.raises(SystemExit):
        make_store(state, migrate=True)
    monkeypatch.undo()
    assert calls
    assert "not in its place yet" in look(state).problems[0]
    await goes_on(contract, state)
    assert is_linked(state)
    assert look(state).problems == ()
    assert sorted(path.name for path in (state / FOLDER).iterdir()) == ["image", "mounted", "store.json"]


def left_by_a_killed_init(state: Path) -> Place:
    """A store that is not in its place, and mounted."""
    state.mkdir()
    partial = Place.of(state, PARTIAL)
    making._build(partial, Wish(size_bytes=SIZE), nowhere)
    mount_store(partial, read_record(partial)).forget()
    return partial


async def test_a_store_that_was_being_made_is_removed_by_the_next_opening(contract: Path, state: Path) -> None:
    partial = left_by_a_killed_init(state)
    assert "was not finished" in look(state).problems[0]
    async with engine_on(contract, state) as engine:
        await engine.create("a")
    assert not partial.folder.exists()
    assert not is_linked(state)


def test_gc_removes_what_a_killed_init_and_a_killed_engine_left(state: Path) -> None:
    partial = left_by_a_killed_init(state)
    assert collect(state, nowhere).unfinished
    assert not partial.folder.exists()
    place = make_store(state, sparse=True)
    mount_by_hand(state)
    (place.mounted / "much").write_bytes(b"x" * (40 * MIB))
    (place.mounted / ".statefork-store.json").touch()
    subprocess.run(["sync", "-f", str(place.mounted)], check=True)
    (place.mounted / "much").unlink()
    done = collect(state, nowhere)
    assert done.unmounted
    assert done.given_back_bytes > 30 * MIB
    assert nothing_is_left(place)


def test_strange_directories_and_links_are_refused(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    (state / "thesis.txt").touch()
    with pytest.raises(StateForeign):
        make_store(state)
    (state / "thesis.txt").unlink()
    (state / "resources").symlink_to(tmp_path)
    with pytest.raises(StoreForeign, match="no directory of ours"):
        make_store(state)
    (state / "resources").unlink()
    place = make_store(state)
    place.link.unlink()
    place.link.mkdir()
    (place.link / "mine").touch()
    with pytest.raises(StoreForeign, match="not what the store replaced"):
        mount_by_hand(state)
    assert (place.link / "mine").exists()
    shutil.rmtree(place.link)
    place.link.symlink_to("store/mounted/resources")
    place.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreForeign, match="there is none in"):
        make_store(state)


def test_sizes_that_can_not_be_had_change_nothing(state: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreFull, match="too few"):
        make_store(state, size_bytes=10 * MIB)
    with pytest.raises(StoreFull, match="the store takes"):
        make_store(state, size_bytes=1 << 60)
    assert not (state / PARTIAL).exists()
    place = make_store(state)
    for size in (SIZE - 64 * MIB, SIZE, 0):
        with pytest.raises(StoreNotLarger, match="only grow"):
            resize(state, size, None, nowhere)
    with pytest.raises(StoreFull, match="has no room"):
        resize(state, 1 << 50, None, nowhere)
    assert place.image.stat().st_size == SIZE
    assert resize(state, None, SIZE * 3, nowhere).limit_bytes == SIZE * 3
    assert nothing_is_left(place)


def test_a_full_store_at_its_limit_is_told_as_a_problem(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_store(state, limit_bytes=SIZE)
    with reachable(state):
        with filled(place.mounted):
            assert invoke(["store", "status", "--state", str(state)]) == 1
            assert "problem: it is full" in (told := capsys.readouterr().out)
            assert "at its limit of 330.0 MiB" in told
        assert invoke(["store", "resize", "0", "--state", str(state)]) == 2
        assert "error[store_not_larger]" in capsys.readouterr().err
        assert not look(state).problems
    assert nothing_is_left(place)


async def test_a_growth_that_was_interrupted_goes_on_at_the_next_opening(contract: Path, state: Path) -> None:
    place = make_store(state, limit_bytes=SIZE)
    keeping.extend(place.image, SIZE + 200 * MIB, sparse=False)  # and then it was killed
    async with engine_on(contract, state) as engine:
        await engine.create("a")
        free = look(state).free_bytes
        assert free is not None
        assert free > SIZE


def test_who_can_not_have_one_is_told_what_to_install(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds.shutil, "which", lambda name, path: None)
    with pytest.raises(StoreUnavailable, match=r"mkfs\.xfs is not installed.*apt-get install xfsprogs.*dnf"):
        make_store(state)
    told = advise(state, state.parent, "ext4")
    if told.grade == "slower":
        assert "s for each GiB here" in told.found
        assert "apt-get install xfsprogs (Debian, Ubuntu) or dnf install xfsprogs (Fedora)" in told.advice
    monkeypatch.undo()
    monkeypatch.setattr(making.os, "geteuid", lambda: 1000)
    with pytest.raises(StoreUnavailable, match="only root"):
        make_store(state)
    monkeypatch.undo()
    monkeypatch.setattr(loop, "_CONTROL", "/dev/there-is-none")
    with pytest.raises(StoreUnavailable, match="module loop"):
        make_store(state)
    assert not state.exists()


def test_the_command_line(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(*words: str, status: int = 0) -> Any:
        assert invoke(["store", *words, "--state", str(state), "--json"]) == status
        return json.loads(capsys.readouterr().out)

    assert say("status")["store"] is False
    assert say("gc", status=2)["error"]["code"] == "store_missing"
    assert say("init", "--size", "330M", "--max", "400M")["size_bytes"] == SIZE
    assert say("init", status=2)["error"]["code"] == "store_exists"
    assert say("resize", status=2)["error"]["code"] == "usage"
    assert say("resize", "big", status=2)["error"]["code"] == "usage"
    assert say("resize", "1M", status=2)["error"]["code"] == "store_not_larger"
    assert say("mount")["mounted"] == str(state / "store" / "mounted")
    assert say("status")["mounted"] is True
    assert say("resize", "400M")["size_bytes"] == 400 * MIB
    assert say("gc")["unmounted"] is True
    assert say("status")["free_bytes"] is None
    (state / "store" / "image").write_bytes(b"broken")
    assert say("status", status=1)["problems"]
    assert invoke(["store", "status", "--state", str(state)]) == 1
    assert "problem: " in capsys.readouterr().out
    assert invoke(["store"]) == 2


def test_a_mount_in_the_way_is_named(state: Path) -> None:
    (state / "resources" / "db").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(state / "resources" / "db")], check=True)
    try:
        with pytest.raises(StoreExists, match="something is mounted in"):
            make_store(state, migrate=True)
    finally:
        detach(state / "resources" / "db")
