"""What every journal must do at its limits. See :mod:`statefork.journal.conformance`."""

from __future__ import annotations

from contextlib import AsyncExitStack

from statefork.journal.codec import Codec
from statefork.journal.conformance import JournalConformance, note, refused, take, texts, to
from statefork.journal.errors import LimitExceeded
from statefork.journal.limits import Limits
from statefork.journal.log import Append, exactly

NOTE_BYTES = len(Codec().encode(note("")))
"""A note's text of plain letters adds one byte for each."""


class JournalLimitConformance(JournalConformance):
    """Every limit lets its value pass and refuses one more by name, and what was refused left nothing behind."""

    async def test_a_streams_name(self) -> None:
        async with self.opened(limits=Limits(stream_chars_max=10)) as journal:
            await journal.append(to("e" * 10, "1"))
            with refused(LimitExceeded, limit="stream_chars_max", value=11, maximum=10):
                await journal.append(to("e" * 11, "x"))
            with refused(LimitExceeded, limit="stream_chars_max"):
                journal.ride("e" * 11, note("x"))
            assert await journal.flush() == 2

    async def test_the_bytes_of_an_event(self) -> None:
        async with self.opened(limits=Limits(event_bytes_max=NOTE_BYTES + 5)) as journal:
            await journal.append(to("env/a", "x" * 5))
            with refused(LimitExceeded, limit="event_bytes_max", value=NOTE_BYTES + 6, maximum=NOTE_BYTES + 5):
                await journal.append(to("env/a", "x" * 6))
            with refused(LimitExceeded, limit="event_bytes_max", value=NOTE_BYTES + 6):
                await journal.append(to("env/a", "fine", "ü" * 3))  # two bytes each; and the first is not kept either
            assert await texts(journal) == ["x" * 5]

    async def test_the_events_of_an_append(self) -> None:
        async with self.opened(limits=Limits(append_events_max=3)) as journal:
            await journal.append(to("env/a", "1", "2"), to("env/b", "3"))
            with refused(LimitExceeded, limit="append_events_max", value=4, maximum=3):
                await journal.append(to("env/a", "x", "x"), to("env/b", "x", "x"))
            assert await texts(journal) == ["1", "2", "3"]

    async def test_the_streams_of_an_append(self) -> None:
        async with self.opened(limits=Limits(append_streams_max=2)) as journal:
            await journal.append(to("env/a", "1"), Append("env/b", (), exactly(0)))
            with refused(LimitExceeded, limit="append_streams_max", value=3, maximum=2):
                await journal.append(to("env/a", "x"), *(Append(f"env/{name}", (), exactly(0)) for name in "bc"))
            assert await texts(journal) == ["1"]

    async def test_the_bytes_of_an_append(self) -> None:
        size = 2 * (NOTE_BYTES + 1)
        async with self.opened(limits=Limits(append_bytes_max=size)) as journal:
            await journal.append(to("env/a", "1"), to("env/b", "2"))
            with refused(LimitExceeded, limit="append_bytes_max", value=size + 1, maximum=size):
                await journal.append(to("env/a", "x"), to("env/b", "xx"))
            assert await texts(journal) == ["1", "2"]

    async def test_subscribers(self) -> None:
        async with self.opened(limits=Limits(subscribers_max=2)) as journal, AsyncExitStack() as first:
            await first.enter_async_context(journal.subscribe())
            async with journal.subscribe() as second:
                with refused(LimitExceeded, limit="subscribers_max", value=3, maximum=2):
                    async with journal.subscribe():
                        pass
                await take(1, second)
            async with journal.subscribe() as third:  # whoever ends makes room
                await take(1, third)
            await first.aclose()
            async with journal.subscribe(), journal.subscribe():
                pass
