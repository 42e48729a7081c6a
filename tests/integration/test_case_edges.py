"""Forks, restores and collections where something else goes on, or has just gone wrong: with real stores and a server.

The source of a fork acts while its children are still being staged, though clients write into it without a pause; what
failed half-way is given again and works; collecting takes nothing that another environment is built on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from statefork.engine.errors import TransitionAborted
from statefork.engine.kernel import BulkResult, DrainPolicy
from statefork.journal.values import Branch, Moment
from tests.integration.drain_kit import Scene, open_scene

pytestmark = pytest.mark.anyio

DRAIN = DrainPolicy(deadline_s=20)


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Source(Scene):
    """Environment ``a``, from which the others come."""

    def client(self) -> httpx.AsyncClient:
        base_url = str(self.kernel.bindings("a")["site"].address["base_url"])
        return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30)

    async def add(self, title: str) -> int:
        async with self.client() as client:
            return (await client.post("/add/", data={"title": title})).status_code


class HeldChildren:
    """No child is bound until it is let go."""

    def __init__(self, scene: Source) -> None:
        self.reached = anyio.Event()
        self.go_on = anyio.Event()
        self._site: Any = scene.kernel.resources["site"]
        self._bind = self._site.bind
        self._site.bind = self

    async def __call__(self, branch: Branch, *arguments: Any) -> Any:
        if branch.env != "a":
            self.reached.set()
            await self.go_on.wait()
        return await self._bind(branch, *arguments)


async def test_the_source_acts_while_its_children_are_still_being_staged(notes_base: Path, tmp_path: Path) -> None:
    async with open_scene(Source, notes_base, tmp_path, settings="notes.unindexed") as scene:
        held = HeldChildren(scene)
        over, written = anyio.Event(), 0
        results: list[BulkResult] = []

        async def write(writer: int) -> None:
            nonlocal written
            async with scene.client() as client:
                while not over.is_set():
                    answer = await client.post("/add/", data={"title": f"{writer}-{written:06}"})
                    assert answer.status_code in (200, 503), scene.server_log()
                    written += answer.status_code == 200

        async def fork() -> None:
            results.extend(await scene.kernel.fork("a", ["left", "right"], drain=DRAIN))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as load:
                for writer in range(3):
                    load.start_soon(write, writer)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(fork)
                    await held.reached.wait()
                    assert await scene.add("at once") == 200, "no child is there yet, and the source acts"
                    before = written
                    while written < before + 3:  # and whoever wrote goes on
                        await anyio.lowlevel.checkpoint()
                    held.go_on.set()
                over.set()
        assert [result.error for result in results] == [None, None]
        left, right = scene.titles("left"), scene.titles("right")
        assert left == right, "children of one moment"
        assert "at once" not in left
        assert set(left) < set(scene.titles())


@contextmanager
def out_of_reach(folder: Path) -> Iterator[None]:
    """A folder that is not there for a while."""
    aside = folder.with_name(f"{folder.name} aside")
    folder.rename(aside)
    try:
        yield
    finally:
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)


async def test_what_failed_is_given_again_and_the_source_was_never_paused(notes_base: Path, tmp_path: Path) -> None:
    async with open_scene(Source, notes_base, tmp_path) as scene:
        kernel = scene.kernel
        assert await scene.add("sealed") == 200
        sealed = await kernel.snapshot("a", drain=DRAIN)
        assert await scene.add("tail") == 200
        versions = tmp_path / "state" / "resources" / "db" / "layers"
        with out_of_reach(versions):
            for attempt in (1, 2):
                with pytest.raises(TransitionAborted, match=r"restore of a to a@2 was aborted: db"):
                    await kernel.restore("a", sealed, drain=DRAIN)
                (failed,) = await kernel.fork(sealed, ["child"])
                assert isinstance(failed.error, TransitionAborted)
                assert "child" not in {env for env, capsule in kernel.environments.items() if capsule.generations}
                assert await scene.add(f"attempt {attempt}") == 200
        assert scene.titles() == ["attempt 1", "attempt 2", "first", "sealed", "tail"]
        (child,) = await kernel.fork(sealed, ["child"])
        assert child.error is None
        await kernel.restore("a", sealed, drain=DRAIN)
        assert scene.titles() == scene.titles("child") == ["first", "sealed"]
        assert await scene.add("again") == 200


async def test_collecting_takes_nothing_that_another_is_built_on(either_base: Path, tmp_path: Path) -> None:
    async with open_scene(Source, either_base, tmp_path) as scene:
        kernel = scene.kernel
        moments: list[Moment] = []
        for number in range(4):
            assert await scene.add(f"note {number}") == 200
            (Path(str(kernel.bindings("a")["media"].address["path"])) / f"file {number}").write_text(str(number))
            moments.append(await kernel.snapshot("a", drain=DRAIN))
        (born,) = await kernel.fork(moments[1], ["second"])
        assert born.error is None
        await kernel.retire("a")
        held = HeldChildren(scene)
        results: list[BulkResult] = []
        done = anyio.Event()

        async def fork() -> None:
            results.extend(await kernel.fork(moments[2], ["third"]))

        async def collect() -> None:
            await held.reached.wait()
            await kernel.collect()  # waits for the child that is being staged
            done.set()

        held_second = scene.titles("second")
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fork)
                tasks.start_soon(collect)
                await held.reached.wait()
                await anyio.wait_all_tasks_blocked()
                assert not done.is_set()
                held.go_on.set()
        assert results[0].error is None
        assert held_second == scene.titles("second") == ["first", "note 0", "note 1"]
        assert scene.titles("third") == ["first", "note 0", "note 1", "note 2"]
        assert scene.media("third") == {"file 0": "0", "file 1": "1", "file 2": "2"}
        await kernel.collect()
        (late,) = await kernel.fork(moments[3], ["late"])  # the history of what has ended is history still
        assert late.error is None
        assert scene.media("late") == {f"file {number}": str(number) for number in range(4)}
