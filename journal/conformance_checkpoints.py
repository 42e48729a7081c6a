"""What every journal must do with checkpoints of folds. See :mod:`statefork.journal.conformance`."""

from __future__ import annotations

from statefork.journal.checkpoint import Checkpoint
from statefork.journal.conformance import everything, note, refused, texts, to
from statefork.journal.conformance_limits import JournalLimitConformance
from statefork.journal.errors import JournalUnavailable, LimitExceeded
from statefork.journal.limits import Limits


def kept(position: int, data: bytes = b"what the fold gave", fold: str = "notes-1") -> Checkpoint:
    """A checkpoint of the notes."""
    return Checkpoint(fold=fold, position=position, data=data)


class JournalCheckpointConformance(JournalLimitConformance):
    """A checkpoint is kept beside the journal, outlives it, and is given back only to the history it belongs to."""

    async def test_a_checkpoint_outlives_closing_and_is_replaced_whole(self) -> None:
        async with self.opened() as journal:
            assert await journal.checkpoint("notes-1") is None
            await journal.append(to("env/a", "1", "2"))
            await journal.save_checkpoint(kept(2, b"older and longer"))
            await journal.save_checkpoint(kept(3, bytes(range(256))))
            await journal.save_checkpoint(kept(1, b"", fold="others-2"))
            assert await journal.checkpoint("notes-1") == kept(3, bytes(range(256)))
        async with self.opened() as journal:
            assert await journal.checkpoint("notes-1") == kept(3, bytes(range(256)))
            assert await journal.checkpoint("others-2") == kept(1, b"", fold="others-2")
            assert await journal.checkpoint("notes-2") is None
            assert await texts(journal) == ["1", "2"]  # it is nothing that happened

    async def test_from_a_checkpoint_reading_goes_on_where_the_fold_stood(self) -> None:
        async with self.opened() as journal:
            await journal.append(to("env/a", "1", "2"), to("env/b", "3"))
            await journal.save_checkpoint(kept(await journal.head()))
            await journal.append(to("env/b", "4"), to("env/c", "5"))
            checkpoint = await journal.checkpoint("notes-1")
            assert checkpoint is not None
            tail = await everything(journal, after=checkpoint.position)
            assert [(r.position, r.stream, r.version) for r in tail] == [(5, "env/b", 2), (6, "env/c", 1)]

    async def test_a_checkpoint_waits_for_the_disk(self) -> None:
        async with self.opened() as journal:
            journal.ride("act/a", note("1"), note("2"))
            await journal.save_checkpoint(kept(3))
            assert await journal.head() == 3
            assert await journal.checkpoint("notes-1") == kept(3)

    async def test_a_checkpoint_stands_behind_an_event(self) -> None:
        async with self.opened() as journal:
            for position in (-1, 0, 2):
                with refused(ValueError):
                    await journal.save_checkpoint(kept(position))
            for name in ("", "../x", "A", "x" * 65):
                with refused(ValueError):
                    await journal.save_checkpoint(kept(1, fold=name))
                with refused(ValueError):
                    await journal.checkpoint(name)
            assert await journal.checkpoint("notes-1") is None

    async def test_the_size_of_a_checkpoint_has_a_limit(self) -> None:
        async with self.opened(limits=Limits(checkpoint_bytes_max=10)) as journal:
            await journal.save_checkpoint(kept(1, b"x" * 10))
            with refused(LimitExceeded, limit="checkpoint_bytes_max", value=11, maximum=10):
                await journal.save_checkpoint(kept(1, b"y" * 11))
            assert await journal.checkpoint("notes-1") == kept(1, b"x" * 10)

    async def test_what_was_queued_is_where_flush_says(self) -> None:
        async with self.opened() as journal:
            journal.ride("act/a", note("1"))
            assert await journal.flush() == 2
            journal.ride("act/a", note("2"), note("3"))
            assert await journal.flush() == 4 == await journal.flush()

    async def test_a_closed_journal_has_no_checkpoints(self) -> None:
        async with self.opened() as journal:
            await journal.save_checkpoint(kept(1))
        with refused(JournalUnavailable):
            await journal.checkpoint("notes-1")
        with refused(JournalUnavailable):
            await journal.save_checkpoint(kept(1))
