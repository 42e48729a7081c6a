"""Trees that lead out of themselves: what a version holds is the links, and never what they lead to."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.files.probe import Choice
from tests.contract.files_kit import bench_for

pytestmark = pytest.mark.anyio

SECRET = "known to the engine alone"
ASIDE_S = 30.0


@pytest.fixture(params=["copy", pytest.param("overlay", marks=pytest.mark.root)])
def strategy(request: pytest.FixtureRequest) -> Choice:
    found: Choice = request.param
    return found


class Outside:
    """Files that belong to nobody's tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outside"
        self.folder.mkdir(mode=0o700)
        self.file = self.folder / "secret"
        self.file.write_text(SECRET)
        self.file.chmod(0o600)
        self._before = self._look()

    def _look(self) -> list[tuple[str, tuple[int, ...]]]:
        places = [self.folder, *sorted(self.folder.iterdir())]
        looks = [(place.name, place.lstat()) for place in places]
        return [(name, (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_mtime_ns)) for name, s in looks]

    def is_untouched(self) -> bool:
        return self._look() == self._before and self.file.read_text() == SECRET

    def is_copied_into(self, state: Path) -> list[Path]:
        """The files of a state directory that hold the secret."""
        files = (path for path in state.rglob("*") if path.is_file() and not path.is_symlink())
        return [path for path in files if SECRET.encode() in path.read_bytes()]


@contextlib.contextmanager
def plant(tree: Path, outside: Outside) -> Iterator[None]:
    """Everything by which a tree can lead elsewhere or hold a reader up; two links stand in the place of what was."""
    up = "/".join([".."] * 40)
    (tree / "to a file").symlink_to(outside.file)
    (tree / "to a directory").symlink_to(outside.folder)
    (tree / "up").symlink_to(up)
    (tree / "up and down").symlink_to(f"{up}{outside.file}")
    (tree / "loop").symlink_to("loop")
    (tree / "process").symlink_to("/proc/self/environ")
    (tree / "top.txt").unlink()
    (tree / "top.txt").symlink_to(outside.file)
    for path in sorted((tree / "a").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tree / "a").rmdir()
    (tree / "a").symlink_to(outside.folder)
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(tree, os.O_PATH)
        try:
            listening.bind(f"/proc/self/fd/{at}/socket")
        finally:
            os.close(at)
        yield


async def test_links_are_sealed_as_links_and_nothing_behind_them_is_touched(tmp_path: Path, strategy: Choice) -> None:
    one = Driver(bench_for(strategy, tmp_path / "state", tmp_path))
    outside = Outside(tmp_path)
    base = await one.base()
    branch, binding = await one.open(base, env="a")
    sibling, its = await one.open(base, env="b")
    await one.write(its, "key", "of b")
    with anyio.fail_after(ASIDE_S), plant(Path(str(binding.address["path"])), outside):
        sealed = await one.cut(branch)
        changes = [change async for change in one.resource.diff(base, sealed)]
        assert {"to a file", "a", "top.txt"} <= {change.name for change in changes}
        assert SECRET not in repr(changes)
        assert await one.resource.digest(sealed) != await one.resource.digest(base)
        child, at = await one.open(sealed, env="child")
        tree = Path(str(at.address["path"]))
        for name in ("to a file", "top.txt"):
            assert (tree / name).readlink() == outside.file
        assert (tree / "a").readlink() == outside.folder
        again = await one.cut(child)
        assert [change async for change in one.resource.diff(sealed, again)] == []
        await one.close(child, at)
        await one.close(branch, binding)
        for version in (again, sealed):
            await one.resource.discard(version)
    assert outside.is_untouched()
    assert outside.is_copied_into(tmp_path / "state") == []
    assert await one.read(its, "key") == "of b"
    assert await one.seen(await one.cut(sibling), "top.txt") == "top"
    await one.close(sibling, its)


async def test_a_base_with_links_out_of_it_gives_nothing_of_what_they_lead_to(tmp_path: Path, strategy: Choice) -> None:
    bench = bench_for(strategy, tmp_path / "state", tmp_path)
    outside = Outside(tmp_path)
    (tmp_path / "base" / "out").symlink_to(outside.folder)
    (tmp_path / "base" / "up").symlink_to("../outside/secret")
    one = Driver(bench)
    branch, binding = await one.open(await one.base())
    tree = Path(str(binding.address["path"]))
    assert (tree / "up").readlink() == Path("../outside/secret")
    assert not (tree / "up").exists(), "it leads out of another place now, to nothing"
    await one.close(branch, binding)
    assert outside.is_copied_into(tmp_path / "state") == []
    assert outside.is_untouched()
