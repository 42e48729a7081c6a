"""The library that makes a server's clones quicker: the same results, and none where there is no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.postgres import Options
from statefork.adapters.resources.postgres.accelerator import Accelerator, build, find_compiler
from statefork.adapters.resources.reflink import ReflinkProbe, shared_bytes
from statefork.engine.errors import MissingDependency
from tests.contract.postgres_kit import private_bench, reuse_clusters
from tests.contract.postgres_server import missing_postgres

if reason := missing_postgres():
    pytest.skip(reason, allow_module_level=True)

MEBIBYTE = 1 << 20
COPY = """
import os, sys
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    with open(source, "rb", buffering=0) as reading, open(target, "r+b", buffering=0) as writing:
        reading.seek(int(os.environ.get("FROM", 0)))
        writing.seek(0, os.SEEK_END)
        told = []
        while count := os.copy_file_range(reading.fileno(), writing.fileno(), 1 << 20):
            told.append(count)
        assert reading.tell() == os.path.getsize(source), "the positions are where a copy leaves them"
        assert writing.tell() == os.path.getsize(target)
        assert all(0 < count <= 1 << 20 for count in told)
for target in sys.argv[2::2]:  # as PostgreSQL does: when all are copied
    with open(target, "rb") as file:
        os.fsync(file.fileno())
"""
Copy = Callable[..., str]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("library"))
    except MissingDependency as missing:
        pytest.skip(missing.message)


@pytest.fixture
def copy(library: Path) -> Copy:
    """Copy files as PostgreSQL does, by a program that has the library; what it says if it fails."""

    def run(*pairs: tuple[Path, Path], under: tuple[str, ...] = (), begin: int = 0, preload: bool = True) -> str:
        for _, target in pairs:
            target.touch()
        paths = [str(path) for pair in pairs for path in pair]
        environment = {**os.environ, "LD_PRELOAD": str(library) if preload else "", "FROM": str(begin)}
        command = [*under, sys.executable, "-I", "-c", COPY, *paths]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return "" if done.returncode == 0 else done.stderr.splitlines()[-1]

    return run


def data(place: Path, name: str, size: int) -> Path:
    path = place / name
    path.write_bytes(os.urandom(size))
    return path


@pytest.mark.root
def test_a_file_is_cloned_whole_and_a_part_is_copied(copy: Copy, xfs_place: Path) -> None:
    sizes = (3 * MEBIBYTE + 4096, MEBIBYTE, 100, 0)
    pairs = [(data(xfs_place, f"{size}", size), xfs_place / f"copy of {size}") for size in sizes]
    assert not copy(*pairs)
    for source, target in pairs:
        assert target.read_bytes() == source.read_bytes()
        assert shared_bytes(target) >= source.stat().st_size
    source = pairs[0][0]
    assert not copy((source, xfs_place / "part"), begin=MEBIBYTE)
    assert (xfs_place / "part").read_bytes() == source.read_bytes()[MEBIBYTE:]
    (xfs_place / "more").write_bytes(b"there already")
    assert not copy((source, xfs_place / "more"))
    assert (xfs_place / "more").read_bytes() == b"there already" + source.read_bytes()


@pytest.mark.root
def test_where_nothing_can_be_shared_the_call_is_what_it_was(copy: Copy, xfs_place: Path, tmp_path: Path) -> None:
    source = data(xfs_place, "here", 2 * MEBIBYTE + 1)
    shutil.copyfile(source, tmp_path / "there")
    said = []
    for preload in (True, False):
        target = tmp_path / f"beside it {preload}"  # EOPNOTSUPP, if this is no file system with reflinks
        assert not copy((tmp_path / "there", target), preload=preload)
        assert target.read_bytes() == source.read_bytes()
        target = tmp_path / f"elsewhere {preload}"  # EXDEV, which older kernels copy in spite of
        said.append(copy((source, target), preload=preload))
        assert said[-1] or target.read_bytes() == source.read_bytes()
    assert said[0] == said[1]


@pytest.mark.root
def test_what_was_cloned_is_forced_to_the_disk_at_once(copy: Copy, xfs_place: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("this needs strace")
    sizes = (2 * MEBIBYTE, 8192, 8192)
    pairs = [(data(xfs_place, f"{n}", size), xfs_place / f"copy {n}") for n, size in enumerate(sizes)]
    copied = (data(xfs_place, "part", 8192), xfs_place / "copied")  # it is not empty, so that it is no clone
    copied[1].write_bytes(b"-")
    log = tmp_path / "calls"
    if fault := copy(*pairs, copied, under=("strace", "-o", str(log), "-e", "trace=fsync,syncfs,ioctl")):
        pytest.skip(f"no process may be traced here: {fault}")
    calls = log.read_text()
    assert calls.count("FICLONE") == len(sizes)
    assert calls.count("syncfs(") == 1
    assert calls.count("\nfsync(") == 1  # of the one that was copied


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(MissingDependency, match=r"no C compiler \(no-such-compiler\)") as caught:
        find_compiler()
    assert "apt-get install" in caught.value.hint
    wanted = Accelerator(tmp_path, wanted=True)
    assert wanted.preload() == ""
    assert str(wanted) == "not accelerated: there is no C compiler (no-such-compiler)"
    assert str(Accelerator(tmp_path, wanted=False)) == ""
    monkeypatch.setenv("CC", "false")  # one that compiles nothing
    assert wanted.preload() == ""
    assert "could not be compiled by false" in str(wanted)
    assert not list(tmp_path.iterdir())


def test_it_is_for_our_own_server() -> None:
    with pytest.raises(ValueError, match="accelerate"):
        Options(base="base.sql", dsn="host=there", accelerate=True)


def test_nothing_is_accelerated_where_nothing_is_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = ReflinkProbe(False, "no reflinks here")
    monkeypatch.setattr("statefork.adapters.resources.postgres.server.probe_reflink", lambda _: probed)
    (tmp_path / "state").mkdir()
    one = Driver(private_bench(tmp_path / "state", tmp_path, strategy="shared", accelerate=True))
    assert one.resource.strategy().reason.endswith("; nothing is accelerated, since nothing is cloned")


@pytest.mark.root
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_server_takes_it_and_branches_are_what_they_were(
    library: Path,
    xfs_place: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = tmp_path_factory.getbasetemp() / "clusters"
    kept.mkdir(exist_ok=True)
    reuse_clusters(monkeypatch, kept)
    digests = set()
    for accelerate in (True, False):
        state = xfs_place / str(accelerate)
        bench = private_bench(state, tmp_path, strategy="auto", accelerate=accelerate, survives="os")
        one = Driver(bench)
        assert ("to be accelerated" in one.resource.strategy().reason) is accelerate
        branch, binding = await one.open(await one.base())
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        digests.add(await one.resource.digest(sealed))
        usage = await one.resource.usage(sealed)
        assert usage.shared_bytes > 10 * usage.private_bytes
        strategy = one.resource.strategy()
        assert strategy.name == "clone"
        assert ("; accelerated: one FICLONE for each file" in strategy.reason) is accelerate
        assert await one.seen(sealed, "key") == "value"
        await one.resource.stop()
    assert len(digests) == 1
