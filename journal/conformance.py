"""What every journal must do, as tests that anybody can run on their own backend.

Subclass a suite in a pytest module, say how a journal is opened, and mark the class for anyio's pytest plugin::

    @pytest.mark.anyio
    class TestMyJournal(JournalConformance):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.path = tmp_path / "journal"

        def opened(self, *, limits=None):
            return open_my_journal(self.path, limits=limits)

Within one test every call of ``opened`` must open the same journal. The tests for which the backend's disk must be made
slow or full are in :mod:`statefork.journal.conformance_faults`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import anyio

from statefork.journal.codec import GENESIS, Codec, link
from statefork.journal.errors import (
    EventInvalid,
    ExpectationFailed,
    JournalError,
    JournalUnavailable,
    StateLocked,
)
from statefork.journal.events import EnvironmentForked, EvaluationRecorded, JournalCreated, RequestRefused
from statefork.journal.limits import Limits
from statefork.journal.log import ANY, EXISTS, NO_STREAM, Append, Expected, Journal, Reader, Recorded, exactly
from statefork.journal.values import Json

DEADLINE_S = 60.0
"""A test that waits longer than this hangs: it fails."""


def note(text: str) -> RequestRefused:
    """An event that says ``text``."""
    return RequestRefused(
        at=1.5, env="e", epoch=1, activation=1, status=409, code="stale_generation", method="POST", url=text
    )


def to(stream: str, *texts: str, expected: Expected = ANY) -> Append:
    """An append of notes to a stream."""
    return Append(stream, tuple(note(text) for text in texts), expected)


async def everything(journal: Reader, *, after: int = 0, stream: str | None = None) -> list[Recorded]:
    """All that is committed."""
    return [recorded async for recorded in journal.read(after=after, stream=stream)]


async def texts(journal: Reader, *, stream: str | None = None) -> list[str]:
    """What the notes say, in order."""
    found = await everything(journal, stream=stream)
    return [recorded.event.url for recorded in found if isinstance(recorded.event, RequestRefused)]


async def take(count: int, events: AsyncIterator[Recorded]) -> list[Recorded]:
    """The next ``count`` events of a subscription."""
    with anyio.fail_after(DEADLINE_S):
        return [await anext(events) for _ in range(count)]


@contextmanager
def refused(kind: type[Exception], **facts: object) -> Iterator[None]:
    """What is inside must raise this error, with these facts; and a hint, if it is one of ours."""
    caught: Exception | None = None
    try:
        yield
    except kind as error:
        caught = error
    assert caught is not None, f"{kind.__name__} was not raised"
    if isinstance(caught, JournalError):
        assert caught.hint
        assert facts.items() <= caught.facts.items(), f"{caught!r} does not tell {facts}"


def assert_sound(events: Sequence[Recorded]) -> None:
    """Positions and versions have no hole, and every hash is the one that the chain asks for."""
    codec = Codec()
    tails: dict[str, tuple[int, str]] = {}
    for position, recorded in enumerate(events, start=1):
        assert recorded.position == position
        version, previous = tails.get(recorded.stream, (0, GENESIS))
        assert recorded.version == version + 1
        assert recorded.hash == link(previous, recorded.stream, recorded.version, codec.encode(recorded.event))
        tails[recorded.stream] = (recorded.version, recorded.hash)


class JournalConformance:
    """The rules of :mod:`statefork.journal.log`."""

    def opened(self, *, limits: Limits | None = None) -> AbstractAsyncContextManager[Journal]:
        """Open the test's journal for writing."""
        raise NotImplementedError

    async def test_a_new_journal_begins_with_its_identity(self) -> None:
        async with self.opened() as journal:
            (first,) = await everything(journal)
            assert isinstance(first.event, JournalCreated)
            assert (first.event.journal, first.stream, first.position) == (journal.id, "engine", 1)

    async def test_the_identity_and_the_events_outlive_closing(self) -> None:
        async with self.opened() as journal:
            identity = journal.id
            await journal.append(to("env/a", "1", "2"))
            journal.ride("act/a", note("3"))
            before = await everything(journal)
        async with self.opened() as journal:
            assert journal.id == identity
            after = await everything(journal)
            assert after[: len(before)] == before
            assert await texts(journal) == ["1", "2", "3"]
            assert await journal.append(to("env/a", "4", expected=exactly(2))) == 5
            assert_sound(await everything(journal))

    async def test_only_one_may_write(self) -> None:
        async with self.opened():
            with refused(StateLocked):
                async with self.opened():
                    pass

    async def test_events_come_back_in_order_with_places_and_chain(self) -> None:
        async with self.opened() as journal:
            assert await journal.append(to("env/a", "1")) == 2
            assert await journal.append(to("env/b", "2", "3")) == 4
            assert await journal.append(to("env/a", "4")) == 5
            found = await everything(journal)
            assert_sound(found)
            assert [(r.stream, r.version) for r in found[1:]] == [
                ("env/a", 1),
                ("env/b", 1),
                ("env/b", 2),
                ("env/a", 2),
            ]
            assert await journal.head() == 5
            assert await journal.stream_version("env/a") == 2
            assert await journal.stream_version("env/none") == 0
            assert list(await journal.streams()) == ["engine", "env/a", "env/b"]

    async def test_reading_by_position_stream_and_limit(self) -> None:
        async with self.opened() as journal:
            for number in range(6):
                await journal.append(to(f"env/{number % 2}", str(number)))
            found = await everything(journal)
            for after in range(9):
                assert await everything(journal, after=after) == found[after:]
                even = [r for r in found[after:] if r.stream == "env/0"]
                assert await everything(journal, after=after, stream="env/0") == even
            assert [r async for r in journal.read(after=2, limit=3)] == found[2:5]
            assert [r async for r in journal.read(limit=0)] == []
            assert [r.version async for r in journal.read(stream="env/1", limit=2)] == [1, 2]
            assert await everything(journal, stream="env/none") == []

    async def test_reading_much_more_than_one_chunk(self) -> None:
        async with self.opened() as journal:
            for start in range(0, 1500, 500):
                await journal.append(to("env/a", *map(str, range(start, start + 500))))
            assert_sound(await everything(journal))
            assert await texts(journal, stream="env/a") == [str(number) for number in range(1500)]
            async for recorded in journal.read(after=700):  # and leaving it in the middle
                assert recorded.position == 701
                break

    async def test_expectations(self) -> None:
        async with self.opened() as journal:
            with refused(ExpectationFailed, stream="env/a", actual=0):
                await journal.append(to("env/a", "x", expected=EXISTS))
            await journal.append(to("env/a", "1", expected=NO_STREAM))
            with refused(ExpectationFailed, stream="env/a", expected=0, actual=1):
                await journal.append(to("env/a", "x", expected=NO_STREAM))
            await journal.append(to("env/a", "2", expected=exactly(1)))
            await journal.append(to("env/a", "3", expected=EXISTS))
            await journal.append(to("env/a", "4", expected=ANY))
            for wrong in (0, 3, 5):
                with refused(ExpectationFailed, expected=wrong, actual=4):
                    await journal.append(to("env/a", "x", expected=exactly(wrong)))
            assert await texts(journal) == ["1", "2", "3", "4"]

    async def test_several_streams_in_one_append_are_all_or_nothing(self) -> None:
        async with self.opened() as journal:
            forked = EnvironmentForked(at=2.0, env="a", generation=1, child="b")
            await journal.append(to("env/a", "1"))
            both = (Append("env/a", (forked,), exactly(1)), to("env/b", "2", "3", expected=NO_STREAM))
            assert await journal.append(*both) == 5
            with refused(ExpectationFailed, stream="env/a"):
                await journal.append(*both)
            with refused(ExpectationFailed, stream="env/b", actual=2):
                await journal.append(to("env/c", "x"), to("env/b", "x", expected=exactly(1)))
            assert await journal.stream_version("env/c") == 0
            found = await everything(journal)
            assert [r.stream for r in found[1:]] == ["env/a", "env/a", "env/b", "env/b"]
            assert_sound(found)

    async def test_one_append_may_name_a_stream_twice_or_only_expect(self) -> None:
        async with self.opened() as journal:
            await journal.append(to("env/a", "1", expected=NO_STREAM), to("env/a", "2", expected=exactly(1)))
            await journal.append(to("env/b", "3"), Append("env/a", (), exactly(2)))
            with refused(ExpectationFailed):
                await journal.append(to("env/b", "x"), Append("env/a", (), exactly(1)))
            assert await texts(journal) == ["1", "2", "3"]
            for nothing in ((), (Append("env/a", ()),)):
                with refused(ValueError):
                    await journal.append(*nothing)

    async def test_riders_keep_their_place_in_the_queue(self) -> None:
        async with self.opened() as journal:
            journal.ride("act/a", note("1"))
            assert await journal.append(to("act/a", "2"), to("act/b", "3"), durable=False) == 0
            journal.ride("act/b", note("4"), note("5"))
            assert await journal.append(to("env/a", "6", expected=NO_STREAM)) == 7
            journal.ride("act/a", note("7"))
            assert await journal.flush() == 8
            assert await texts(journal) == ["1", "2", "3", "4", "5", "6", "7"]
            assert await journal.flush() == 8 == await journal.head()
            with refused(ValueError):
                await journal.append(to("act/a", "x", expected=NO_STREAM), durable=False)

    async def test_of_many_who_expect_the_same_version_one_wins(self) -> None:
        async with self.opened() as journal:
            lost = 0

            async def writer(name: int) -> None:
                nonlocal lost
                for number in range(5):
                    while True:
                        version = await journal.stream_version("env/a")
                        try:
                            await journal.append(to("env/a", f"{name}.{number}", expected=exactly(version)))
                            break
                        except ExpectationFailed:
                            lost += 1

            async with anyio.create_task_group() as group:
                for name in range(6):
                    group.start_soon(writer, name)
            found = await texts(journal)
            assert sorted(found) == sorted(f"{name}.{number}" for name in range(6) for number in range(5))
            assert_sound(await everything(journal))
            assert lost > 0

    async def test_a_subscription_misses_nothing_and_repeats_nothing(self) -> None:
        async with self.opened() as journal:
            await journal.append(to("env/a", *map(str, range(300))))
            head = 1 + 300 + 4 * 40 * 2

            async def writer(name: int) -> None:
                for number in range(40):
                    journal.ride(f"act/{name}", note(f"{name}.{number}"))
                    await journal.append(to(f"env/{name}", f"{name}.{number}"))

            async def follower(after: int) -> None:
                async with journal.subscribe(after=after) as events:
                    found = await take(head - after, events)
                    assert [recorded.position for recorded in found] == list(range(after + 1, head + 1))

            async with anyio.create_task_group() as group:
                for after in (0, 17, 301, 400):
                    group.start_soon(follower, after)
                for name in range(4):
                    group.start_soon(writer, name)
            assert len(await everything(journal)) == head

    async def test_a_subscription_waits_and_ends_when_the_journal_closes(self) -> None:
        seen: list[str] = []

        async def follow(journal: Journal, started: anyio.Event) -> None:
            async with journal.subscribe(after=1) as events:
                started.set()
                async for recorded in events:
                    assert isinstance(recorded.event, RequestRefused)
                    seen.append(recorded.event.url)

        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as group:
                async with self.opened() as journal:
                    started = anyio.Event()
                    group.start_soon(follow, journal, started)
                    await started.wait()
                    async with journal.subscribe() as probe:
                        await journal.append(to("env/a", "1"))
                        await journal.append(to("env/a", "2"))
                        await take(3, probe)
                    while len(seen) < 2:
                        await anyio.lowlevel.checkpoint()
        assert seen == ["1", "2"]

    async def test_a_streams_name_is_a_word(self) -> None:
        async with self.opened() as journal:
            for name in ("", "a b", "a\nb", "a\x7f", "\ud800"):
                with refused(ValueError):
                    await journal.append(to(name, "x"))
            await journal.append(to("env/ü-1.2_x~", "1"))
            assert list(await journal.streams()) == ["engine", "env/ü-1.2_x~"]
            assert await texts(journal, stream="env/ü-1.2_x~") == ["1"]

    async def test_what_cannot_be_read_back_is_not_written(self) -> None:
        async with self.opened() as journal:
            bad = EvaluationRecorded(
                at=1, env="a", generation=1, epoch=1, lease=1, name="n", score=float("nan"), after_action=0
            )
            for event in (note("\ud800"), bad):
                with refused(EventInvalid):
                    await journal.append(Append("env/a", (event,)))
                with refused(EventInvalid):
                    journal.ride("env/a", event)
            assert await journal.flush() == 1

    async def test_values_come_back_as_they_were(self) -> None:
        detail: Json = {"ü": ["\x00\u2028🙂", None, True, -1, 2**60, 1.5, 1e300, {"z": {}, "a": []}], "": "'\";--"}
        event = EvaluationRecorded(
            at=1.25, env="a", generation=1, epoch=1, lease=1, name="n", score=-0.5, after_action=3, detail=detail
        )
        async with self.opened() as journal:
            await journal.append(Append("act/a", (event,)))
        async with self.opened() as journal:
            assert [r.event for r in await everything(journal, stream="act/a")] == [event]

    async def test_a_cancelled_append_that_did_not_begin_writes_nothing(self) -> None:
        async with self.opened() as journal:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await journal.append(to("env/a", "x"))
            assert scope.cancelled_caught
            assert await journal.flush() == 1

    async def test_a_closed_journal_says_so(self) -> None:
        async with self.opened() as journal:
            await journal.append(to("env/a", "1"))
        with refused(JournalUnavailable):
            await journal.append(to("env/a", "x"))
        with refused(JournalUnavailable):
            journal.ride("env/a", note("x"))
        with refused(JournalUnavailable):
            await everything(journal)
