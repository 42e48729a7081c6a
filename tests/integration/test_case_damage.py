"""What an agent may do to its own environment: siblings go on, and a reset brings it back whole.

It empties its tree, puts garbage into its database, drops its tables, replaces its files by links to nowhere, fills its
disk. The stores are real, the application is Django on the shared server, and every look is raw.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import httpx
import pytest

from statefork.engine.errors import TransitionAborted
from statefork.engine.kernel import DrainPolicy
from tests.integration.drain_kit import Scene, open_scene

pytestmark = pytest.mark.anyio

QUICK = DrainPolicy(deadline_s=0.5)
REVOKE = DrainPolicy(deadline_s=0.5, then="revoke")


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Pair(Scene):
    """Environments ``a``, which is damaged, and ``b``; each has a note and a file of its own."""

    def path(self, name: str) -> Path:
        return Path(str(self.kernel.bindings("a")[name].address["path"]))

    async def ask(self, env: str, path: str, *, timeout_s: float = 30, **data: str) -> httpx.Response:
        base_url = str(self.kernel.bindings(env)["site"].address["base_url"])
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=timeout_s) as client:
            return await client.post(path, data=data) if data else await client.get(path)

    async def use(self, env: str, title: str) -> None:
        """The application writes a row and a file."""
        assert (await self.ask(env, "/add/", title=title)).status_code == 200
        assert (await self.ask(env, "/upload/", name=f"{title}.txt", body=env)).status_code == 200


@asynccontextmanager
async def open_pair(base: Path, tmp: Path) -> AsyncIterator[Pair]:
    async with open_scene(Pair, base, tmp) as scene:
        await scene.kernel.create("b")
        for env in ("a", "b"):
            await scene.use(env, "own")
        yield scene


# --- damage ---------------------------------------------------------------------------------------------------------


def empty_the_trees(scene: Pair) -> None:
    """``rm -rf`` of everything that it can reach."""
    for name in ("media", "search"):
        for entry in scene.path(name).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def truncate_the_database(scene: Pair) -> None:
    scene.path("db").write_bytes(b"")


def garbage_in_the_database(scene: Pair) -> None:
    for path in scene.path("db").parent.glob(f"{scene.path('db').name}*"):
        path.write_bytes(b"no database" * 5_000)


def drop_all_tables(scene: Pair) -> None:
    with closing(sqlite3.connect(scene.path("db"), isolation_level=None)) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (table,) in raw.execute(named).fetchall():
            raw.execute(f'DROP TABLE "{table}"')


def remove_the_database(scene: Pair) -> None:
    for path in scene.path("db").parent.glob(f"{scene.path('db').name}*"):
        path.unlink()


def links_to_elsewhere(scene: Pair) -> None:
    """Links in the place of its files: to its sibling's tree, to the machine's, and to themselves."""
    media = scene.path("media")
    (media / "sibling").symlink_to(str(scene.kernel.bindings("b")["media"].address["path"]))
    (media / "passwords").symlink_to("/etc/passwd")
    (media / "loop").symlink_to("loop")


def deep_and_odd(scene: Pair) -> None:
    """Names that few expect, and more levels than a path may have characters for."""
    folder = scene.path("media")
    for name in ("-rf", "new\nline", "quote'\"", "\udcff"):
        (folder / name).write_text(name, errors="surrogateescape")
    for _ in range(200):
        folder /= "deep"
        folder.mkdir()


def sealed_against_itself(scene: Pair) -> None:
    """Everything unreadable."""
    for name in ("media", "search"):
        for path in scene.path(name).rglob("*"):
            path.chmod(0)
    scene.path("media").chmod(0)
    scene.path("db").chmod(0)


DAMAGE: list[Callable[[Pair], None]] = [
    empty_the_trees,
    truncate_the_database,
    garbage_in_the_database,
    drop_all_tables,
    remove_the_database,
    links_to_elsewhere,
    deep_and_odd,
    sealed_against_itself,
]


async def sibling_is_as_it_was(scene: Pair) -> None:
    assert scene.titles("b") == ["first", "own"]
    assert scene.media("b") == {"own.txt": "b"}
    assert (await scene.ask("b", "/notes/")).json() == {"titles": ["first", "own"]}
    await scene.kernel.snapshot("b")


async def whole_again(scene: Pair) -> None:
    assert scene.titles() == ["first"]
    assert scene.media() == {}
    await scene.use("a", "again")
    moment = await scene.kernel.snapshot("a")
    (child,) = await scene.kernel.fork(moment, ["child"])
    assert child.error is None
    assert (await scene.ask("child", "/notes/")).json() == {"titles": ["again", "first"]}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
async def test_no_sibling_notices_and_a_reset_brings_it_back(
    notes_base: Path, tmp_path: Path, damage: Callable[[Pair], None]
) -> None:
    async with open_pair(notes_base, tmp_path) as scene:
        with anyio.fail_after(60):
            damage(scene)
            with contextlib.suppress(httpx.TimeoutException):  # the application meets it, in the server that all share
                await scene.ask("a", "/notes/", timeout_s=2)
            await sibling_is_as_it_was(scene)
            with contextlib.suppress(TransitionAborted):  # what can't be sealed is told, and published by nobody
                await scene.kernel.snapshot("a", drain=QUICK)
            await scene.kernel.reset("a", drain=REVOKE)
            await whole_again(scene)
            await sibling_is_as_it_was(scene)


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.fixture
def media_disk(tmp_path: Path) -> Iterator[Path]:
    """A state directory whose media lie on a disk of their own: 8 MB in memory."""
    place = tmp_path / "state" / "resources" / "media"
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
async def test_a_disk_that_an_agent_filled(notes_base: Path, tmp_path: Path, media_disk: Path) -> None:
    async with open_pair(notes_base, tmp_path) as scene:
        with anyio.fail_after(60):
            fill(scene.path("media") / "all")
            assert (await scene.ask("b", "/notes/")).json() == {"titles": ["first", "own"]}
            assert (await scene.ask("b", "/add/", title="more")).status_code == 200
            assert scene.media("b") == {"own.txt": "b"}
            with pytest.raises(TransitionAborted, match="No space left") as caught:
                await scene.kernel.reset("a", drain=REVOKE)  # it would stand beside what it replaces
            assert (caught.value.facts["component"], caught.value.facts["generation"]) == ("media", 1)
            await scene.kernel.recover("a")  # what fills the disk is given up first, and then there is room
            await scene.kernel.reset("a")
            await scene.kernel.activate("a")
            await whole_again(scene)
            await scene.use("b", "and more")
