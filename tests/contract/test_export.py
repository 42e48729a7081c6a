"""An environment is carried to another journal: whole, verified, replayable, and nothing is left of what fails."""

from __future__ import annotations

import itertools
import os
import sqlite3
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import statefork
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.memory import Call, MemoryResource
from statefork.engine.capsule import Phase
from statefork.engine.errors import EnvironmentExists, ResourceFailed
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.outside import Answer, Question
from statefork.engine.refs import parse_ref
from statefork.journal.events import EnvironmentImported, ExchangeRecorded, InputRecorded
from statefork.journal.values import Moment
from statefork.replay.export.errors import ContractDiffers, ExportUnreadable, NotPortable
from statefork.replay.export.exporting import Export, export
from statefork.replay.export.form import Exported, Imported
from statefork.replay.export.importing import import_
from statefork.replay.export.reading import reading
from statefork.replay.rollout import RolloutResult, rollout
from statefork.replay.script import LEFT_OUT
from tests.contract.engine_kit import SMALL, House, put, request
from tests.contract.test_engine_crash import Photo

pytestmark = pytest.mark.anyio


async def send(house: House, kernel: Kernel, env: str, path: Path, **more: bool) -> Exported:
    """Export the present of an environment of a house."""
    assert house.journal is not None
    moment = await kernel.snapshot(env)
    return await export(kernel, house.journal, kernel._blobs, Export(moment=moment, environment=env, **more), path)


async def take(kernel: Kernel, path: Path, name: str | None = None) -> Imported:
    return await import_(kernel, kernel._blobs, path.parent, path, name)


async def replayed(house: House, kernel: Kernel, env: str) -> RolloutResult:
    assert house.journal is not None
    return await rollout(kernel, house.journal, kernel._blobs, parse_ref(env))


async def contents(kernel: Kernel, env: str) -> dict[str, str]:
    """The digest of every component of the head."""
    head = kernel.environments[env].head.manifest
    return {name: await kernel.resources[name].digest(component.sealed) for name, component in head.items()}


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


async def live_a_little(kernel: Kernel) -> None:
    """A history with everything that a lineage may go through: its content is that of f, after six actions."""
    await kernel.create("shop")
    await put(kernel, "shop", "a", 1)
    await kernel.snapshot("shop")
    await put(kernel, "shop", "b", 2)
    await kernel.snapshot("shop")
    await put(kernel, "shop", "abandoned", 3)
    await kernel.restore("shop", Moment(env="shop", generation=2))
    await put(kernel, "shop", "c", 4)
    (child,) = await kernel.fork("shop", ["f"])
    assert child.error is None
    await put(kernel, "f", "d", 5)

    async def check(context: EvaluationContext) -> float:
        return 0.5

    await kernel.evaluate("f", "half", check)
    await kernel.act("f", {"type": "fail", "in": "db", "key": "no"})
    async with kernel.admit(request(kernel, "f", method="POST")) as lease:
        secret = {"Authorization": "Bearer xyz", "Cookie": "session=1"}
        kernel.record_input(lease, method="POST", url="http://notes.example/", headers=secret, body=b"b", status=200)
    await put(kernel, "f", "e", 6, where="media")
    async with kernel.admit(request(kernel, "f")) as lease:
        headers = (("content-type", "text/plain"), ("set-cookie", "id=secret"))

        async def ask() -> Answer:
            return Answer(status=200, headers=headers, body=b"of the host")

        await kernel.outside.exchange(lease, Question(method="GET", url="https://cdn.example/"), ask)
    await put(kernel, "shop", "later", 7)


async def test_the_past_is_carried_and_can_be_replayed_forked_and_carried_on(tmp_path: Path) -> None:
    here, there, file = House(), House(tmp_path / "journal.sqlite3"), tmp_path / "f.statefork"
    async with here.open() as kernel:
        await live_a_little(kernel)
        sent = await send(here, kernel, "f", file)
        left = await contents(kernel, "f")
        verdict = (await replayed(here, kernel, "f")).verdict
    assert (sent.size.actions, sent.size.inputs, sent.left_out) == (
        5,
        1,
        ("headers of recorded requests: authorization, set-cookie",),
    )
    async with there.open() as kernel:
        assert there.journal is not None
        await kernel.create("f")
        made = await take(kernel, file)
        assert (made.ref, made.source, made.sha256) == (f"f-i1@{made.size.generations}", sent.ref, sent.sha256)
        assert kernel.environments["f-i1"].phase is Phase.PARKED
        assert await contents(kernel, "f-i1") == left
        assert "db" in made.reused
        (given,) = [event for event in await there.events(InputRecorded) if isinstance(event, InputRecorded)]
        assert given.headers == {"Authorization": LEFT_OUT, "Cookie": "session=1"}
        (exchange,) = [event for event in await there.events(ExchangeRecorded) if isinstance(event, ExchangeRecorded)]
        assert (exchange.answer_headers, exchange.lease) == ((("content-type", "text/plain"),), 0)
        assert kernel._blobs.get(exchange.answer) == b"of the host"
        again = await replayed(there, kernel, "f-i1")
        assert (again.verdict, again.divergence, again.actions) == (verdict, None, 5)
        (origin,) = await kernel.fork(Moment(env="f-i1", generation=1), ["first"])
        assert origin.error is None
        assert there.content(kernel, "first") == {"greeting": "hello"}
        assert kernel.environments["f-i1"].actions == 5
        assert (await put(kernel, "f-i1", "on", 1)).number == 6
        assert there.content(kernel, "f-i1") == {"greeting": "hello", "a": 1, "c": 4, "d": 5, "on": 1}
        await kernel.reset("f-i1")
        assert there.content(kernel, "f-i1") == {"greeting": "hello"}
        once_more = tmp_path / "again.statefork"
        await kernel.restore("f-i1", Moment(env="f-i1", generation=made.size.generations))
        await send(there, kernel, "f-i1", once_more)
        await take(kernel, once_more, "copy")
        assert await contents(kernel, "copy") == left
        (told, _) = await there.events(EnvironmentImported)
        assert isinstance(told, EnvironmentImported)
        assert (str(told.source), told.file, [str(one) for one in told.moments]) == (
            sent.ref, sent.sha256, ["shop@1", "shop@2", "shop@5", "f@2"],
        )  # fmt: skip


async def test_only_the_ends_and_without_the_base(tmp_path: Path) -> None:
    here, there, other = House(), House(), House(contract=SMALL)
    file, small = tmp_path / "whole.statefork", tmp_path / "small.statefork"
    async with here.open() as kernel:
        await live_a_little(kernel)
        await send(here, kernel, "f", file)
        sent = await send(here, kernel, "f", small, ends=True, base=False, secrets=True)
        assert sent.size.generations == 2
        assert sent.left_out[0].startswith("3 generations between")
        assert small.stat().st_size < file.stat().st_size
        assert small.stat().st_mode & 0o077 == 0
        await kernel.retire("f")
    async with there.open() as kernel:
        await take(kernel, small, "f")
        await put(kernel, "f", "on", 1)
        with pytest.raises(EnvironmentExists):
            await take(kernel, file, "f")
    async with other.open() as kernel:
        with pytest.raises(ContractDiffers):
            await take(kernel, small)


async def test_a_failed_import_leaves_nothing(tmp_path: Path) -> None:
    here, file = House(), tmp_path / "f.statefork"
    async with here.open() as kernel:
        await live_a_little(kernel)
        await send(here, kernel, "f", file)
    numbers = itertools.count()

    async def fail_at_the_third(call: Call) -> None:
        if (call.method, call.when) == ("unpack", "before") and next(numbers) == 2:
            raise ResourceFailed("the disk is full", resource=call.resource)

    there = House()
    async with there.open() as kernel:
        there.world.hook = fail_at_the_third
        with pytest.raises(ResourceFailed, match="the disk is full"):
            await take(kernel, file, "f")
        there.world.hook = None
        await kernel.create("bystander")
        assert "f" not in kernel.environments
        assert names(tmp_path / "importing") == []
        await take(kernel, file, "f")
        assert kernel.environments["f"].actions == 5


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_crash_at_any_moment_of_an_import_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    here, file = House(contract=SMALL), tmp_path / "shop.statefork"
    async with here.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        await kernel.snapshot("shop")
        await put(kernel, "shop", "b", 2)
        await send(here, kernel, "shop", file)
    there, photos = House(contract=SMALL), list[Photo]()

    async def call(call: Call) -> None:
        photos.append(Photo(there, f"{call.when} {call.method} of {call.resource}", []))

    async def commit() -> None:
        photos.append(Photo(there, "around a commit", []))

    async with there.open(before_commit=commit, after_commit=commit) as kernel:
        there.world.hook = call
        await take(kernel, file)
        there.world.hook = None
    seen = set()
    for photo in {photo.state: photo for photo in photos}.values():
        house = photo.house(keep_riders=True)
        house.contract = there.contract
        async with house.open() as kernel:
            assert house.unreached(kernel) == [], photo.taken
            seen.add("shop" in kernel.environments)
            if "shop" not in kernel.environments:
                await take(kernel, file)
            result = await replayed(house, kernel, "shop")
            assert (result.divergence, result.actions) == (None, 2), photo.taken
    assert seen == {True, False}


class Rooted:
    """A resource whose versions can't be carried."""

    def __init__(self, resource: MemoryResource) -> None:
        self._resource = resource

    def __getattr__(self, name: str) -> Any:
        if name in ("pack", "unpack"):
            raise AttributeError(name)
        return getattr(self._resource, name)


class RootedHouse(House):
    def resource(self, name: str, journal: str) -> Any:
        resource = super().resource(name, journal)
        return Rooted(resource) if name == "media" else resource


async def test_what_can_not_be_carried_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    for house, kind, words in ((RootedHouse(), NotPortable, "media"), (House(), ResourceFailed, "can't be written")):
        async with house.open() as kernel:
            await kernel.create("shop")
            await put(kernel, "shop", "a", 1)
            with pytest.raises(kind, match=words):
                await send(house, kernel, "shop", tmp_path / "nowhere" / "shop.statefork")
    assert names(tmp_path) == []


CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.media]
adapter = "files"
base = "media"
[resources.page]
adapter = "memory"
initial = { greeting = "hello" }
"""


def make_notes(folder: Path) -> None:
    """A database, and a tree with a link."""
    if not folder.exists():
        (folder / "media" / "deep").mkdir(parents=True)
        (folder / "media" / "deep" / "a.txt").write_text("a")
        (folder / "media" / "link").symlink_to("deep/a.txt")
        with sqlite3.connect(folder / "notes.sqlite3") as connection:
            connection.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)")
        connection.close()
        (folder / "notes.toml").write_text(CONTRACT)


@asynccontextmanager
async def notes(folder: Path) -> AsyncIterator[Engine]:
    """An engine over a database, a tree and something to act on, in a folder of its own."""
    make_notes(folder)
    async with statefork.open_engine(folder / "notes.toml", state=folder / "state") as engine:
        yield engine


def write(engine: Engine, env: str, text: str) -> None:
    """What an application does."""
    bindings = engine.environment(env).bindings
    with sqlite3.connect(str(bindings["db"].address["path"])) as connection:
        connection.execute("INSERT INTO note (text) VALUES (?)", (text,))
    connection.close()
    tree = Path(str(bindings["media"].address["path"]))
    (tree / f"{text}.txt").write_text(text)
    (tree / "deep" / "a.txt").write_text(f"a, {text}")


async def test_databases_and_trees_are_carried_to_another_state_directory(tmp_path: Path) -> None:
    file, at_two = tmp_path / "one.statefork", tmp_path / "two.statefork"
    put_it = {"type": "put", "key": "k", "value": 1}
    told: list[float] = []
    async with notes(tmp_path / "here") as engine:
        env = await engine.create("one")
        write(engine, "one", "before")
        await env.act(put_it)
        await env.snapshot()
        await env.act({**put_it, "value": 2})
        await env.act({**put_it, "value": 3})
        write(engine, "one", "after")
        sent = await engine.export("one", file, lambda fraction, _: told.append(fraction))
        await engine.export("one#2", at_two)
        left = await contents(engine.kernel, "one")
        here = await engine.replay("one", states=False)
        assert [one.name for one in engine.environments()] == ["one"]
    assert told == sorted(told)
    assert told[-1] == 1.0
    async with notes(tmp_path / "there") as engine:
        made = await engine.import_(file, "two")
        assert made.reused == ("db", "media", "page")
        assert await contents(engine.kernel, "two") == left
        again = await engine.replay("two", states=False)
        assert again.exact
        assert (again.verdict, again.actions) == (here.verdict, here.actions)
        two = engine.environment("two")
        await two.activate()
        write(engine, "two", "here")
        await two.act(put_it)
        tree = Path(str(two.bindings["media"].address["path"]))
        assert (tree / "link").read_text() == "a, here"
        assert names(tree) == ["after.txt", "before.txt", "deep", "here.txt", "link"]
        (child,) = await engine.fork("two#1")
        assert (await child.act({"type": "get", "key": "k"})).observation.value == 1
        earlier = await engine.import_(at_two)
        assert (earlier.env, earlier.size.actions) == ("one", 2)
        await engine.environment("one").retire()
        assert (await engine.export("one", at_two)).size.actions == 2
        sent_on = tmp_path / "on.statefork"
        (tree / "escape").symlink_to("deep/../../escape")
        with pytest.raises(ResourceFailed, match="leads out of the tree"):
            await engine.export("two", sent_on)
    assert sent.sha256 == made.sha256
    report = statefork.audit(tmp_path / "there" / "state", world=True)
    assert report.clean, report
    assert names(tmp_path) == ["here", "one.statefork", "there", "two.statefork"]
    async with notes(tmp_path / "there") as engine:
        assert engine.recovered.clean


async def test_who_is_cancelled_leaves_no_file(tmp_path: Path) -> None:
    house, file = House(), tmp_path / "shop.statefork"
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        with anyio.CancelScope() as scope:

            async def give_up(call: Call) -> None:
                if call.method == "pack":
                    scope.cancel()

            house.world.hook = give_up
            await send(house, kernel, "shop", file)
        house.world.hook = None
        assert scope.cancelled_caught
    assert names(tmp_path) == []


async def test_another_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    house, file = House(), tmp_path / "notes.txt"
    file.write_text("nothing of ours")
    async with house.open() as kernel:
        before = len(await house.recorded())
        for path in (file, tmp_path / "missing", tmp_path):
            with pytest.raises(ExportUnreadable):
                await take(kernel, path)
        assert len(await house.recorded()) == before
    with pytest.raises(ExportUnreadable), reading(file, tmp_path):
        pass


async def test_a_file_is_written_behind_links_and_never_in_the_place_of_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "fifo")
    house = House()
    async with house.open() as kernel:
        await kernel.create("a")
        await send(house, kernel, "a", tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert zipfile.is_zipfile(tmp_path / "target")
        with pytest.raises(ResourceFailed, match="is no regular file"):
            await send(house, kernel, "a", tmp_path / "fifo")
        assert (tmp_path / "fifo").is_fifo()
