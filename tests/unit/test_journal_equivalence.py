"""Whatever is done to them, the memory journal and the SQLite journal hold the same events in the same places."""

from __future__ import annotations

import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statefork.journal.conformance import assert_sound, everything, texts, to
from statefork.journal.errors import ExpectationFailed
from statefork.journal.log import ANY, EXISTS, NO_STREAM, Append, Expected, Journal, exactly
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.sqlite import open_sqlite_journal

streams = st.sampled_from(["env/a", "env/b", "act/a"])
expectations = st.sampled_from([ANY, ANY, NO_STREAM, EXISTS]) | st.integers(0, 4).map(exactly)
words = st.lists(st.text("xyz", min_size=1, max_size=3), min_size=1, max_size=3)


def appends(expected: st.SearchStrategy[Expected]) -> st.SearchStrategy[list[Append]]:
    one = st.builds(lambda stream, said, wanted: to(stream, *said, expected=wanted), streams, words, expected)
    return st.lists(one, min_size=1, max_size=3)


steps = st.one_of(
    st.tuples(st.just("append"), appends(expectations)),
    st.tuples(st.just("ride"), appends(st.just(ANY))),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
)


async def perform(journal: Journal, what: str, parts: Any) -> object:
    if what == "append":
        try:
            return await journal.append(*parts)
        except ExpectationFailed as error:
            return error.facts
    if what == "ride":
        return await journal.append(*parts, durable=False)
    return await journal.flush()


async def run(opened: Any, script: list[tuple[str, Any]]) -> tuple[list[object], list[Any]]:
    outcomes: list[object] = []
    todo = list(script)
    while True:
        async with opened() as journal:
            while todo:
                what, parts = todo.pop(0)
                if what == "reopen":
                    break
                outcomes.append(await perform(journal, what, parts))
            else:
                await journal.flush()
                found = await everything(journal)
                assert_sound(found)
                return outcomes, [(r.position, r.stream, r.version, r.hash) for r in found[1:]]


@given(st.lists(steps, max_size=12))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_same_script_gives_the_same_journal(backend: str, script: list[tuple[str, Any]]) -> None:
    disk = MemoryDisk()
    in_memory = anyio.run(run, lambda: open_memory_journal(disk), script, backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite3"
        on_disk = anyio.run(run, lambda: open_sqlite_journal(path), script, backend=backend)
    assert on_disk == in_memory


@given(st.lists(st.lists(st.booleans(), max_size=6), min_size=2, max_size=5))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_appends_that_meet_give_the_same_contents(backend: str, plans: list[list[bool]]) -> None:
    """Each task has its plan of durable appends and riders, and all share a stream. Only the interleaving may vary."""

    async def contents(opened: AbstractAsyncContextManager[Journal]) -> tuple[list[str], dict[str, list[str]]]:
        async with opened as journal:

            async def work(name: str, plan: list[bool]) -> None:
                for number, durable in enumerate(plan):
                    text = f"{name}.{number}"
                    await journal.append(to(f"act/{name}", text), to("act/all", text), durable=durable)

            async with anyio.create_task_group() as group:
                for index, plan in enumerate(plans):
                    group.start_soon(work, str(index), plan)
            await journal.flush()
            assert_sound(await everything(journal))
            shared = await texts(journal, stream="act/all")
            own = {str(index): await texts(journal, stream=f"act/{index}") for index in range(len(plans))}
            for name, said in own.items():
                assert [text for text in shared if text.startswith(f"{name}.")] == said
            return sorted(shared), own

    in_memory = anyio.run(contents, open_memory_journal(), backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        on_disk = anyio.run(contents, open_sqlite_journal(Path(folder) / "journal.sqlite3"), backend=backend)
    assert on_disk == in_memory


@pytest.mark.anyio
async def test_a_crash_in_memory_cuts_the_tail_and_never_the_middle() -> None:
    disk = MemoryDisk()
    async with open_memory_journal(disk) as journal:
        await journal.append(to("env/a", "1"))
        for text in ("2", "3", "4"):
            journal.ride("act/a", *to("act/a", text).events)
        lost = disk.blobs.put(b"not synced")
        disk.crash(keep=4)
    assert lost not in disk.blobs
    async with open_memory_journal(disk) as journal:
        assert await texts(journal) == ["1", "2", "3"]
        disk.crash()
    assert disk.synced == 2
    async with open_memory_journal(disk) as journal:
        assert await texts(journal) == ["1"]
        assert await journal.append(to("act/a", "5", expected=NO_STREAM)) == 3
        assert_sound(await everything(journal))


@pytest.mark.anyio
async def test_a_lost_reply_in_memory_leaves_the_event_there() -> None:
    replies_lost = False

    async def lose() -> None:
        if replies_lost:
            raise OSError("the reply was lost")

    async with open_memory_journal(after_commit=lose) as journal:
        replies_lost = True
        with pytest.raises(Exception, match="reply was lost"):
            await journal.append(to("env/a", "1"))
        replies_lost = False
        assert await texts(journal) == ["1"]
