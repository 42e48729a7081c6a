"""Checkpoints of the fold: what an engine keeps so that opening reads only the end of its journal.

A checkpoint is the fold at a position, as bytes, with the digest of the heads of all streams there. It is believed only
if the journal still has these heads, and if it was made by the same rules; then the events behind its position are
read, each linked by its hash to the heads, and folded. Everything else about it is the journal's to check: that it is
whole, and stands behind an event that is there. One that can't be used is worth a warning, and costs the time of a fold
from the beginning. What lies before the position is not read: the audit does that.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from functools import cache
from importlib.metadata import version

import anyio.to_thread
import msgspec

from statefork.engine.capsule import Capsule
from statefork.engine.capsules import WARM
from statefork.engine.errors import StateforkError
from statefork.engine.world import Answered, Image, World
from statefork.journal.checkpoint import Checkpoint
from statefork.journal.errors import JournalError
from statefork.journal.log import Journal, Reader

FOLD = "world"
"""What the fold is called in the journal's checkpoints; that of a place has the place's name behind it."""

RULES = 4
"""Raise it whenever ``evolve`` or ``World.apply`` give something else for the same events."""

_WARM_WHILE_FOLDING = 20_000  # a history of so many environments is folded without packing any of them twice
_IN_THREAD_MIN = 2_000  # environments; fewer are encoded in less time than another thread takes to begin

_logger = logging.getLogger(__name__)


class Folded(msgspec.Struct, frozen=True):
    """A world after the event at ``position``, folded from a checkpoint at ``begun`` (0: from the first event)."""

    world: World
    position: int
    begun: int


class _Header(msgspec.Struct, frozen=True):
    """What the bytes of a checkpoint begin with."""

    rules: str
    heads: str


class _Kept(_Header, frozen=True):
    image: Image


@cache
def rules() -> str:
    """What a checkpoint must have been made by to be believed: this release, with values of this shape."""
    shape = msgspec.json.encode(msgspec.json.schema_components([Image, Capsule, Answered]), order="sorted")
    return f"{version('statefork')}/{RULES}/{hashlib.sha256(shape).hexdigest()[:16]}"


def name_of_fold(place: str | None) -> str:
    """What the fold of a place is called in the journal's checkpoints."""
    return f"{FOLD}-{place}" if place else FOLD


async def fold(journal: Reader, *, place: str | None = None) -> Folded:
    """The present world of an engine, most of it packed. ``place``: its own, where several share the journal.

    None: the whole journal, whoever wrote it. Raises JournalCorrupt, IllegalTransition.
    """
    kept = await journal.checkpoint(name_of_fold(place))
    if kept is not None:
        try:
            return await _go_on(journal, await _restored(journal, kept, place), kept.position)
        except JournalError:
            raise
        except (StateforkError, ValueError, LookupError, msgspec.MsgspecError, zlib.error) as error:
            _logger.warning(
                "the checkpoint at position %d is not used, and the journal is read from its beginning: %s",
                kept.position,
                error,
            )
    folded = await _go_on(journal, World(place=place, warm=_WARM_WHILE_FOLDING), 0)
    folded.world.environments.resize(WARM)
    return folded


async def _go_on(journal: Reader, world: World, position: int) -> Folded:
    begun = position
    async for recorded in journal.read(after=position):
        world.apply(recorded.event, recorded)
        position = recorded.position
    return Folded(world, position, begun)


async def _restored(journal: Reader, kept: Checkpoint, place: str | None) -> World:
    made_by = msgspec.msgpack.decode(kept.data, type=_Header)  # first of all: the rest may have another shape
    if made_by.rules != rules():
        raise ValueError(f"it was made by other rules ({made_by.rules}) than this statefork's ({rules()})")
    heads = await journal.heads_digest(at=kept.position)
    if made_by.heads != heads:
        raise ValueError("the journal does not hold what it was made from: the heads of its streams differ")
    image = msgspec.msgpack.decode(kept.data, type=_Kept).image
    if image.place != (place or ""):
        raise ValueError(f"it is of another place ({image.place})")
    return World.of(image, place=place, warm=WARM)


async def save(journal: Journal, image: Image, position: int) -> None:
    """Keep the image of a world that stands at this position. Raises JournalUnavailable, LimitExceeded."""
    kept = _Kept(rules=rules(), heads=await journal.heads_digest(at=position), image=image)
    if len(image.names) < _IN_THREAD_MIN:
        data = msgspec.msgpack.encode(kept)
    else:
        data = await anyio.to_thread.run_sync(msgspec.msgpack.encode, kept)
    await journal.save_checkpoint(Checkpoint(fold=name_of_fold(image.place), position=position, data=data))
