"""File trees under rougher use: random changes over many seals, changed strategies, crashes, full disks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import mmap
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from statefork.adapters.resources.conformance import Bench, Driver
from statefork.adapters.resources.files import FilesResource, Options
from statefork.adapters.resources.files.mounts import mount_overlay, mounted_below
from statefork.adapters.resources.files.overlay import release_mounts
from statefork.adapters.resources.files.probe import Choice, choose
from statefork.engine.errors import ContractError, MissingDependency, ResourceBusy, ResourceFailed
from statefork.engine.ports import Services
from statefork.journal.values import Binding, Branch, Sealed
from tests.contract.files_kit import bench_for, make_base

pytestmark = pytest.mark.anyio

SEALS = 70  # more than a merge of merged layers needs
ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["trio"])  # long, and the same work in threads on any event loop
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["copy", pytest.param("overlay", marks=pytest.mark.root)])
def strategy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Choice]:
    yield request.param
    release_mounts(tmp_path)


def tree_of(binding: Binding) -> Path:
    return Path(str(binding.address["path"]))


def content(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a tree that counts, by plain system calls."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, directories, names in os.walk(root):
        for name in (*directories, *names):
            path = Path(folder) / name
            status = path.lstat()
            if path.is_symlink():
                what: object = path.readlink()
            elif path.is_dir():
                what = "directory"
            else:
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = (what, 0 if path.is_symlink() else status.st_mode)
    return found


class Vandal:
    """Changes a tree in every way that programs do, by a seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.ways = (self.write, self.write, self.append, self.remove, self.remove_tree, self.rename, self.mkdir)
        self.ways += (self.link, self.chmod, self.replace_kind, self.rename_directory, self.hard_link)

    def act(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.random.choice(self.ways)()

    def some(self, *, directory: bool) -> Path | None:
        paths = [p for p in sorted(self.root.rglob("*")) if not p.is_symlink() and p.is_dir() == directory]
        return self.random.choice(paths) if paths else None

    def place(self) -> Path:
        """A path whose parent exists; something may be there."""
        parent = (self.some(directory=True) if self.random.random() < 0.8 else None) or self.root
        return parent / f"n{self.random.randint(0, 12)}"

    def write(self) -> None:
        place = self.place()
        if not place.is_dir() or place.is_symlink():
            place.unlink(missing_ok=True)
            place.write_text(f"{self.random.random()}")

    def append(self) -> None:
        if path := self.some(directory=False):
            with path.open("a") as file:
                file.write("more")

    def remove(self) -> None:
        if path := self.some(directory=False):
            path.unlink()

    def remove_tree(self) -> None:
        if path := self.some(directory=True):
            shutil.rmtree(path)

    def rename(self) -> None:
        path, target = self.some(directory=False), self.place()
        if path and not (target.is_dir() and not target.is_symlink()):
            path.replace(target)

    def rename_directory(self) -> None:
        path, target = self.some(directory=True), self.place()
        if path and not os.path.lexists(target) and not target.is_relative_to(path):
            path.rename(target)

    def mkdir(self) -> None:
        place = self.place()
        if not os.path.lexists(place):
            place.mkdir()

    def link(self) -> None:
        place = self.place()
        if not os.path.lexists(place):
            place.symlink_to(f"somewhere/{self.random.randint(0, 9)}")

    def hard_link(self) -> None:
        path, place = self.some(directory=False), self.place()
        if path and not os.path.lexists(place):
            place.hardlink_to(path)

    def chmod(self) -> None:
        if path := self.some(directory=self.random.random() < 0.5):
            path.chmod(self.random.choice([0o700, 0o755, 0o750]))

    def replace_kind(self) -> None:
        if path := self.some(directory=False):
            path.unlink()
            path.mkdir()
            (path / "inside").write_text("was a file")
        if path := self.some(directory=True):
            shutil.rmtree(path)
            path.write_text("was a directory")


async def check(driver: Driver, sealed: Sealed, wanted: dict[str, tuple[object, ...]]) -> None:
    branch, binding = await driver.open(sealed, env="reader")
    assert content(tree_of(binding)) == wanted
    await driver.close(branch, binding)


@pytest.mark.parametrize("seed", [1, 2])
@ONE_LOOP
async def test_every_version_of_a_long_history_is_what_it_was(tmp_path: Path, strategy: Choice, seed: int) -> None:
    one = Driver(bench_for(strategy, tmp_path / "state", tmp_path))
    base = await one.base()
    branch, binding = await one.open(base)
    vandal = Vandal(tree_of(binding), seed)
    history: list[tuple[Sealed, dict[str, tuple[object, ...]]]] = [(base, content(tree_of(binding)))]
    for _ in range(SEALS):
        await anyio.to_thread.run_sync(vandal.act)
        wanted = content(tree_of(binding))
        history.append((await one.cut(branch), wanted))
        assert content(tree_of(binding)) == wanted, "the seal altered the live tree"
    for sealed, wanted in history[:: SEALS // 9] + history[-3:]:
        await check(one, sealed, wanted)
    digests = {repr(sorted(wanted.items())): await one.resource.digest(sealed) for sealed, wanted in history}
    assert len(set(digests.values())) == len(digests), "equal contents, and only they, have equal digests"
    for (old, was), (new, now) in itertools.pairwise(history):
        named = {line.split(" ", 1)[1] for line in await one.changes(old, new)}
        assert named == {path for path in was.keys() | now.keys() if was.get(path) != now.get(path)} - {"."}
    for sealed, _ in history[:-1]:
        await one.resource.discard(sealed)
    await one.close(branch, binding)
    await check(one, *history[-1])
    await one.resource.stop()


@pytest.mark.root
async def test_what_one_strategy_sealed_another_continues(tmp_path: Path) -> None:
    state = tmp_path / "state"
    wanted: dict[str, tuple[object, ...]] = {}
    sealed: Sealed | None = None
    strategies: list[Choice] = ["overlay", "copy", "overlay", "copy"]
    make_base(tmp_path / "base")
    for number, strategy in enumerate(strategies):

        def make(services: Services, strategy: Choice = strategy) -> FilesResource:
            return FilesResource("media", Options(base="base", strategy=strategy), services)

        one = Driver(Bench(make=make, write=lambda *_: None, read=lambda *_: None, state=state, base_dir=tmp_path))
        base = await one.base()
        branch, binding = await one.open(sealed or base)
        assert sealed is None or content(tree_of(binding)) == wanted
        vandal = Vandal(tree_of(binding), number)
        for _ in range(12):
            vandal.act()
            sealed = await one.cut(branch)
        wanted = content(tree_of(binding))
        await one.close(branch, binding)
        await one.resource.stop()
    assert sealed is not None
    release_mounts(tmp_path)


@pytest.mark.root
@ONE_LOOP
async def test_the_two_hundredth_snapshot_costs_what_the_fifth_did(tmp_path: Path) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    resource = one.resource
    assert isinstance(resource, FilesResource)
    depths = []
    for number in range(200):
        await one.write(binding, f"file {number % 20}", str(number))
        sealed = await one.cut(branch)
        depths.append(len(resource._ledger.sealed(sealed).layers))
    assert max(depths) <= 24
    assert len(mounted_below(tmp_path)) == 1
    assert await one.seen(sealed, "file 19") == "199"
    await one.close(branch, binding)
    assert mounted_below(tmp_path) == []


HOLDER = """
import sys
file = open(sys.argv[1], "r+b")
if sys.argv[2] == "map":
    import mmap
    view = mmap.mmap(file.fileno(), 3)
    file.close()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.parametrize("how", ["open", "map"])
async def test_a_writer_is_named_and_the_environment_goes_on(tmp_path: Path, how: str) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    command = [sys.executable, "-c", HOLDER, str(tree_of(binding) / "key"), how]
    async with await anyio.open_process(command) as process:
        assert process.stdout is not None
        assert (await process.stdout.receive()).startswith(b"open")
        with pytest.raises(ResourceBusy, match=f"pid {process.pid}"):
            await one.resource.quiesce(branch)
        await one.resource.thaw(branch)
        await one.write(binding, "key", "still writable")
        assert process.stdin is not None
        await process.stdin.aclose()
        await process.wait()
    assert await one.seen(await one.cut(branch), "key") == "still writable"
    await one.close(branch, binding)


@pytest.mark.root
async def test_a_straggler_is_refused_while_frozen_and_never_reaches_the_sealed_version(tmp_path: Path) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    inside = os.open(tree_of(binding), os.O_RDONLY | os.O_DIRECTORY)  # as a process with its working directory there
    try:
        await one.resource.quiesce(branch)
        with pytest.raises(OSError, match="Read-only"):
            await one.write(binding, "key", "while frozen")
        sealed = await one.resource.seal(branch)
        await one.resource.thaw(branch)
        with pytest.raises(OSError, match="Read-only"):
            os.open("key", os.O_WRONLY | os.O_CREAT, dir_fd=inside)
    finally:
        os.close(inside)
    await one.write(binding, "key", "afterwards")
    assert await one.seen(sealed, "key") == "value"
    await one.close(branch, binding)


@pytest.mark.root
async def test_a_deleted_file_that_is_still_read_does_not_block_a_snapshot(tmp_path: Path) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    with (tree_of(binding) / "key").open() as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        (tree_of(binding) / "key").unlink()
        sealed = await one.cut(branch)
        assert view[:] == b"value"
        view.close()
    assert await one.seen(sealed, "key") is None
    await one.close(branch, binding)


@pytest.mark.root
async def test_mounts_of_a_killed_engine_are_found_and_removed(tmp_path: Path) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    sealed = await one.cut(branch)
    await one.write(binding, "key", "lost")
    two = Driver(one.bench)
    await two.resource.start()
    assert branch in await two.handles()
    assert len(mounted_below(tmp_path)) == 1
    await two.resource.discard(branch)
    assert mounted_below(tmp_path) == []
    assert await two.seen(sealed, "key") == "value"


@pytest.mark.root
async def test_a_clean_stop_unmounts_and_a_bind_mounts_again(tmp_path: Path) -> None:
    one = Driver(bench_for("overlay", tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    mark = await one.resource.write_mark(branch)
    await one.resource.stop()
    assert mounted_below(tmp_path) == []
    binding = await one.bind(branch)
    assert await one.read(binding, "key") == "value"
    assert await one.resource.write_mark(branch) == mark
    await one.close(branch, binding)


async def test_a_seal_that_is_cancelled_at_any_moment_loses_no_write(
    tmp_path: Path, strategy: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Driver(bench_for(strategy, tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    left = 0

    def cancelled() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise CutShort

    monkeypatch.setattr(anyio.from_thread, "check_cancelled", cancelled)
    for attempt in itertools.count(1):
        await one.write(binding, f"before {attempt}", "written")
        left = attempt
        with contextlib.suppress(CutShort):
            await one.cut(branch)
        if left > 0:
            break
        await one.resource.thaw(branch)
        await one.write(binding, f"after {attempt}", "written")
    assert attempt > 2
    left = 0  # nobody is cancelled any more
    sealed = await one.cut(branch)
    names = [f"before {number}" for number in range(1, attempt + 1)] + [
        f"after {number}" for number in range(1, attempt)
    ]
    for name in names:
        assert await one.read(binding, name) == "written", name
        assert await one.seen(sealed, name) == "written", name
    await one.close(branch, binding)


class CutShort(Exception):
    """Stands for a cancellation."""


def fill(place: Path) -> None:
    """Take all the space there is."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 512):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


async def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, small_disk: Path) -> None:
    bench = bench_for("copy", small_disk / "state", tmp_path)
    one = Driver(bench)
    base = await one.base()
    branch, binding = await one.open(base)
    await one.write(binding, "key", "x" * 200_000)
    sealed = await one.cut(branch)
    await one.write(binding, "key", "y" * 200_000)
    fill(small_disk)
    before = await one.handles()
    for attempt in (lambda: one.cut(branch), lambda: one.open(sealed)):
        with pytest.raises(ResourceFailed) as caught:
            await attempt()
        assert "full" in caught.value.hint
        assert await one.handles() == before
    (small_disk / "ballast").unlink()
    assert await one.seen(await one.cut(branch), "key") == "y" * 200_000
    assert await one.seen(sealed, "key") == "x" * 200_000
    await one.close(branch, binding)


async def test_a_missing_base_names_the_key_and_the_path(tmp_path: Path) -> None:
    bench = bench_for("copy", tmp_path / "state", tmp_path)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ContractError, match=r"resources\.media\.base: there is no directory at .*base"):
        await Driver(bench).base()


async def test_a_changed_base_is_a_new_version_and_alters_no_sealed_one(tmp_path: Path) -> None:
    one = Driver(bench_for("copy", tmp_path / "state", tmp_path))
    old = await one.base()
    (tmp_path / "base" / "key").write_text("new in the base")
    new = await one.resource.provision()
    assert new.version != old.version
    assert await one.seen(old, "key") is None
    assert await one.seen(new, "key") == "new in the base"
    (tmp_path / "base" / "key").unlink()
    assert await one.resource.provision() == old


async def test_more_than_max_bytes_is_refused(tmp_path: Path) -> None:
    make_base(tmp_path / "base")

    def make(services: Services) -> FilesResource:
        return FilesResource("media", Options(base="base", strategy="copy", max_bytes=100_000), services)

    state = tmp_path / "state"
    one = Driver(Bench(make=make, write=lambda *_: None, read=lambda *_: None, state=state, base_dir=tmp_path))
    branch, binding = await one.open(await one.base())
    (tree_of(binding) / "key").write_text("x" * 200_000)
    with pytest.raises(ResourceFailed, match="more than max_bytes = 100000"):
        await one.cut(branch)
    (tree_of(binding) / "key").write_text("x")
    await one.cut(branch)


INSIDE = """
import sys, anyio, pathlib
sys.path.insert(0, sys.argv[2])
from tests.contract.files_kit import bench_for
from statefork.adapters.resources.conformance import Driver

async def main():
    tmp = pathlib.Path(sys.argv[1])
    one = Driver(bench_for("auto", tmp / "state", tmp))
    branch, binding = await one.open(await one.base())
    for number in range(20):
        await one.write(binding, "key", str(number))
        await one.write(binding, f"key {number}", "x")
        (pathlib.Path(binding.address["path"]) / f"key {number - 1}").unlink(missing_ok=True)
        sealed = await one.cut(branch)
    assert await one.seen(sealed, "key") == "19"
    assert await one.seen(sealed, "key 18") is None
    print(one.resource.strategy().name)
    await one.close(branch, binding)
    await one.resource.stop()

anyio.run(main)
"""


@ONE_LOOP
async def test_an_engine_inside_a_user_namespace_uses_overlays(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("this needs unshare (package util-linux)")
    command = [unshare, "--user", "--map-root-user", "--mount", sys.executable, "-c", INSIDE, str(tmp_path)]
    done = await anyio.run_process([*command, str(REPOSITORY)], check=False)
    said = done.stderr.decode()
    if "unshare failed" in said:
        pytest.skip(f"no user namespaces here: {said.strip()}")
    assert done.returncode == 0, said
    assert done.stdout.decode().strip() in ("overlay (user namespace)", "copy", "reflink")


async def test_a_strategy_that_was_asked_for_and_does_not_work_is_told(small_disk: Path) -> None:
    """A tmpfs has no reflinks."""
    resource = bench_for("copy", small_disk / "state", small_disk).make(
        Services(state=small_disk / "state", journal="j", blobs=None, base_dir=small_disk)
    )
    assert isinstance(resource, FilesResource)
    with pytest.raises(MissingDependency, match="reflink"):
        choose(resource._layers, "reflink")


async def test_a_branch_is_a_handle_with_relative_paths(tmp_path: Path, strategy: Choice) -> None:
    one = Driver(bench_for(strategy, tmp_path / "state", tmp_path))
    branch, binding = await one.open(await one.base())
    assert isinstance(branch, Branch)
    assert str(one.bench.state / str(branch.data["path"])) == binding.address["path"]
    await one.close(branch, binding)


@pytest.mark.root
async def test_a_trial_that_a_killed_engine_left_is_cleared_away(tmp_path: Path) -> None:
    bench = bench_for("overlay", tmp_path / "state", tmp_path)
    left = tmp_path / "state" / "resources" / "media" / ".overlay-left"
    for name in ("base", "up", "work", "view"):
        (left / name).mkdir(parents=True)
    overlay = mount_overlay([left / "base"], left / "up", left / "work", ("volatile",))
    overlay.attach(left / "view")
    overlay.close()
    await Driver(bench).resource.start()
    assert not left.exists()
    assert mounted_below(tmp_path) == []
