"""The state store in use: engines on it, ended, killed, robbed of it, and disks that fill up. Real loop mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import statefork
from statefork.adapters.interfaces.leftovers import release
from statefork.adapters.interfaces.store import mounting
from statefork.adapters.interfaces.store.errors import StoreForeign, StoreFull, StoreLost, StoreUnavailable
from statefork.adapters.interfaces.store.keeping import mount_by_hand, resize
from statefork.adapters.interfaces.store.kinds import KINDS
from statefork.adapters.interfaces.store.looking import look
from statefork.adapters.interfaces.store.making import fault
from statefork.adapters.interfaces.store.mounting import mounts_at, unmount
from statefork.adapters.interfaces.store.place import PARTIAL, read_record, write_record
from statefork.adapters.interfaces.store.sizes import MIB
from statefork.adapters.resources.files.mounts import detach, mounted_below
from statefork.engine.errors import TransitionAborted
from statefork.journal.errors import StateForeign, StateLocked
from statefork.replay.auditing import audit as audit_what_is_visible
from tests.contract.store_kit import (
    SIZE,
    engine_on,
    filled,
    free_in,
    freed,
    holds,
    kill_an_engine,
    make_store,
    make_world,
    nothing_is_left,
    write,
)

pytestmark = [pytest.mark.anyio, pytest.mark.root]


def nowhere(fraction: float, text: str) -> None:
    """Nobody waits for progress."""


@pytest.fixture
def anyio_backend() -> str:
    """A store is of threads and system calls; the loops differ nowhere."""
    return "trio"


@pytest.fixture(autouse=True)
def left_behind(tmp_path: Path) -> Iterator[None]:
    """Nothing: no mount, no loop device. Taken away first, so that the next test has a clean machine."""
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
    return tmp_path / "a state"  # a blank is written otherwise in the kernel's tables


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
async def test_an_engine_lives_in_its_store_and_leaves_nothing(contract: Path, state: Path, kind: str) -> None:
    if why := fault(KINDS["btrfs" if kind == "btrfs" else "xfs"]):
        pytest.skip(why)
    place = make_store(state, kind=kind)
    assert nothing_is_left(place)
    assert place.image.stat().st_blocks * 512 >= SIZE, "its blocks are set aside"
    async with engine_on(contract, state) as engine:
        assert engine.kernel.resources["db"].strategy().name == "reflink"
        env = await engine.create("a")
        write(engine, "a", "one")
        await env.snapshot()
        found = look(state)
        assert found.mounted
        assert f"open in process {os.getpid()}, which takes no commands" in found.notes[0]
        with pytest.raises(StateLocked):
            async with engine_on(contract, state):
                pass
        assert look(state).mounted, "who came second took nothing away"
    assert nothing_is_left(place)
    assert not place.link.exists(), "nothing can be written beside it"
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["one"]
    report = audit_what_is_visible(state)
    assert report.exit_code == 2
    assert "is not mounted" in report.unreadable[0]
    assert statefork.audit(state, world=True).clean, "it is mounted for the audit"
    assert nothing_is_left(place)


async def test_two_engines_have_a_store_each(contract: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    make_store(one)
    make_store(other, sparse=True)
    async with engine_on(contract, one) as first, engine_on(contract, other) as second:
        for engine, text in ((first, "one"), (second, "other")):
            env = await engine.create("a")
            write(engine, "a", text)
            await env.snapshot()
        assert holds(first, "a") == ["one"]
        assert holds(second, "a") == ["other"]


async def test_what_a_killed_engine_left_is_taken_over(contract: Path, state: Path) -> None:
    place = make_store(state)
    kill_an_engine(contract, state)
    found = look(state)
    assert found.mounted
    assert found.devices
    assert "`statefork release`" in found.notes[0]
    assert not found.problems
    async with engine_on(contract, state) as engine:
        assert look(state).devices == found.devices, "the same mount serves on"
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["kept"]
        write(engine, "a", "more")
    assert nothing_is_left(place)


async def test_release_takes_away_what_a_killed_engine_left(contract: Path, state: Path) -> None:
    place = make_store(state)
    kill_an_engine(contract, state)
    released = await release(state)
    assert released.mounts[-1] == "store/mounted"
    assert any("/branches/" in mount for mount in released.mounts)
    assert nothing_is_left(place)
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["kept"]


async def robbed(contract: Path, state: Path, *command: str) -> None:
    """An engine publishes a generation of ``a``, and then loses its store by a command."""
    async with engine_on(contract, state) as engine:
        env = await engine.create("a")
        write(engine, "a", "kept")
        await env.snapshot()
        write(engine, "a", "lost")
        await anyio.run_process([*command, str(state / "store" / "mounted")])
        with pytest.raises(TransitionAborted):
            await env.snapshot()
        await anyio.sleep(30)  # the engine ends long before


async def test_a_store_that_was_unmounted_by_hand_ends_the_engine(contract: Path, state: Path) -> None:
    make_store(state)
    with pytest.raises(StoreLost, match="not mounted any more"):
        await robbed(contract, state, "umount", "--lazy")
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["kept"]


async def test_a_store_whose_file_system_shut_down_ends_the_engine(contract: Path, state: Path) -> None:
    make_store(state, sparse=True)  # what it publishes is on the disk
    with pytest.raises(StoreLost, match="shut down"):
        await robbed(contract, state, "xfs_io", "-x", "-c", "shutdown -f")
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["kept"]


async def test_a_full_store_aborts_and_serves_on_and_can_be_grown_meanwhile(contract: Path, state: Path) -> None:
    place = make_store(state, limit_bytes=SIZE)
    async with engine_on(contract, state) as engine:
        env = await engine.create("a")
        write(engine, "a", "kept")
        await env.snapshot()
        write(engine, "a", "tail")
        with filled(place.mounted):
            with pytest.raises(TransitionAborted) as caught:
                await env.snapshot()
            assert "is full" in str(caught.value)
            assert "statefork store resize" in str(caught.value)
            assert holds(engine, "a") == ["kept", "tail"]
            done = await anyio.to_thread.run_sync(resize, state, SIZE + 64 * MIB, None, nowhere)
            assert done.size_bytes == SIZE + 64 * MIB == done.limit_bytes
            await env.snapshot()
        await env.restore("a@2")
        assert holds(engine, "a") == ["kept"]
        await env.restore("a@3")
        assert holds(engine, "a") == ["kept", "tail"]


async def test_it_grows_by_itself_as_far_as_it_may(contract: Path, state: Path) -> None:
    limit = SIZE + 100 * MIB
    place = make_store(state, limit_bytes=limit)
    async with engine_on(contract, state) as engine:
        await engine.create("a")
        free = look(state).free_bytes
        assert free is not None
        with filled(place.mounted, leave=SIZE // 8):
            with anyio.fail_after(20):
                while look(state).size_bytes < limit:  # noqa: ASYNC110 - nobody tells when it has grown
                    await anyio.sleep(0.02)
            write(engine, "a", "one")
    assert free_in(state) > free


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A disk below the store, of 400 MB."""
    place = tmp_path / "host"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def test_a_store_does_not_notice_that_the_disk_below_is_full(contract: Path, host: Path) -> None:
    state = host / "state"
    place = make_store(state)
    async with engine_on(contract, state) as engine:
        env = await engine.create("a")
        with filled(host, leave=20 * MIB):  # the journal lies there, too
            (place.mounted / "much").write_bytes(os.urandom(MIB) * 150)
            write(engine, "a", "one")
            await env.snapshot()
            os.sync()
            with pytest.raises(StoreFull, match="has no room for"):
                await anyio.to_thread.run_sync(resize, state, SIZE * 2, None, nowhere)
            assert place.image.stat().st_size == SIZE
            assert look(state).problems == ()
    async with engine_on(contract, state) as engine:
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["one"]


async def test_a_sparse_store_publishes_only_what_the_disk_below_took(contract: Path, host: Path) -> None:
    state = host / "state"
    place = make_store(state, sparse=True, size_bytes=SIZE * 4)
    assert place.image.stat().st_blocks * 512 < SIZE // 2

    async def fill() -> None:
        async with engine_on(contract, state) as engine:
            env = await engine.create("a")
            write(engine, "a", "kept")
            await env.snapshot()
            with filled(host, leave=20 * MIB):
                (place.resources / "much").write_bytes(os.urandom(MIB) * 60)
                write(engine, "a", "lost")
                for _ in range(2):  # the kernel tells of lost bytes once, and then takes them for written
                    with pytest.raises(TransitionAborted, match="can't be kept"):
                        await env.snapshot()
                await anyio.sleep(30)

    with pytest.raises(StoreLost):
        await fill()
    async with engine_on(contract, state) as engine:
        (place.resources / "much").unlink(missing_ok=True)
        await engine.kernel.activate("a")
        assert holds(engine, "a") == ["kept"]
        write(engine, "a", "more")
        assert await engine.kernel.snapshot("a")


async def test_a_strange_image_is_refused_and_not_touched(contract: Path, state: Path, tmp_path: Path) -> None:
    place = make_store(state)
    other = make_store(tmp_path / "other")
    mine = place.image.rename(tmp_path / "mine")
    other.image.rename(place.image)
    with pytest.raises(StoreForeign, match="is not the store of"):
        async with engine_on(contract, state):
            pass
    write_record(place, type(read_record(place))(id=read_record(place).id, kind="xfs", uuid=read_record(other).uuid))
    with pytest.raises(StoreForeign, match="has store"):
        async with engine_on(contract, state):
            pass
    place.image.unlink()
    with pytest.raises(StoreForeign, match="is gone"):
        async with engine_on(contract, state):
            pass
    place.image.write_bytes(b"not a file system")
    with pytest.raises(StoreForeign, match="no file system that is known"):
        async with engine_on(contract, state):
            pass
    assert place.image.read_bytes() == b"not a file system"
    assert mine.exists()


async def test_a_store_of_another_journal_is_refused(contract: Path, state: Path, tmp_path: Path) -> None:
    place = make_store(state)
    async with engine_on(contract, state) as engine:
        await engine.create("a")
    twin = tmp_path / "twin"
    twin.mkdir()
    for name in ("store", "resources"):
        await anyio.run_process(["cp", "-a", "--sparse=always", str(state / name), str(twin / name)])
    with pytest.raises(StateForeign, match="is of journal"):
        async with engine_on(contract, twin):
            pass
    (twin / "store" / "image").unlink()
    (twin / "store" / "image").hardlink_to(place.image)
    async with engine_on(contract, state):
        with pytest.raises(StoreForeign, match="in use by another process"):
            async with engine_on(contract, twin):
                pass


async def test_something_else_in_its_place_is_left_alone(contract: Path, state: Path) -> None:
    place = make_store(state)
    await anyio.run_process(["mount", "-t", "tmpfs", "tmpfs", str(place.mounted)])
    try:
        assert "is not the store" in look(state).problems[0]
        with pytest.raises(StoreForeign, match="is not the store"):
            async with engine_on(contract, state):
                pass
        assert [mount.source for mount in mounts_at(place.mounted)] == ["tmpfs"]
    finally:
        unmount(place)


async def test_who_is_not_root_uses_what_root_mounted(
    contract: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_store(state)
    monkeypatch.setattr(mounting.os, "geteuid", lambda: 1000)
    with pytest.raises(StoreUnavailable, match="can only be mounted by root"):
        async with engine_on(contract, state):
            pass
    monkeypatch.undo()
    mount_by_hand(state)
    monkeypatch.setattr(mounting.os, "geteuid", lambda: 1000)
    async with engine_on(contract, state) as engine:
        env = await engine.create("a")
        await env.snapshot()
    assert look(state).mounted, "it is not for him to unmount it"
    monkeypatch.undo()
    await release(state)
    assert nothing_is_left(place)
    assert not (state / PARTIAL).exists()


def test_a_holder_keeps_his_files_and_nobody_else_sees_the_store(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_store(state)
    monkeypatch.setattr(mounting, "_BUSY_S_MAX", 0.0)
    mount_by_hand(state)
    with place.mark.open("rb") as held:
        assert not unmount(place)
        assert mounts_at(place.mounted) == []
        assert look(state).devices, "for him"
        assert "still has a file of it open" in look(state).notes[0]
        mount_by_hand(state)  # the same device, not the same image a second time
        assert len(look(state).devices) == 1
        assert held.read()
        assert unmount(place), "he holds the mount before this one"
    assert nothing_is_left(place)
