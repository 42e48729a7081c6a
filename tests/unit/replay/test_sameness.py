"""When two observations are of the same: pixels where they count, and what masks cover."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from statefork.engine.masks import Masks
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Moment, Observation, Rest
from statefork.replay.pixels import same_pixels
from statefork.replay.rollout import States, verdict_of
from statefork.replay.sameness import difference, equivalent, masks_of_another_time
from statefork.replay.verdict import Judge, RolloutResult

BLOBS = MemoryBlobs()
CLOCK = ("#clock",)
KINDS = {0: 1, 2: 3, 4: 2, 6: 4}  # colour types of PNG, and how many channels each has
ROWS = [[(x * 40 % 256, x * y % 256, y * 60 % 256, 255) for x in range(5)] for y in range(10)]


def png(rows: list[list[tuple[int, ...]]], *, kind: int = 6, filters: bool = False, level: int = 6) -> bytes:
    """A PNG file, in which each row bears another filter, as encoders choose them."""
    size, above, lines = KINDS[kind], [0] * len(rows[0]) * KINDS[kind], bytearray()
    for number, row in enumerate(rows):
        line = [value for pixel in row for value in pixel[:size]]
        how = number % 5 if filters else 0
        lines.append(how)
        for at, value in enumerate(line):
            a, c = (line[at - size], above[at - size]) if at >= size else (0, 0)
            b = above[at]
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            lines.append((value - [0, a, b, (a + b) // 2, paeth][how]) % 256)
        above = line
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(lines), level)), (b"IEND", b""))
    packed = (struct.pack(">I", len(body)) + name + body + b"\0\0\0\0" for name, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def other(rows: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    """With one pixel that is a little different."""
    return [*rows[:-1], [*rows[-1][:-1], (rows[-1][-1][0] ^ 1, *rows[-1][-1][1:])]]


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_compared_whatever_the_encoder(kind: int) -> None:
    rows = [[pixel[: KINDS[kind]] for pixel in row] for row in ROWS]
    written = [png(rows, kind=kind), png(rows, kind=kind, filters=True), png(rows, kind=kind, level=0)]
    assert len(set(written)) == 3
    assert all(same_pixels(written[0], one) for one in written)
    assert not any(same_pixels(png(other(rows), kind=kind, filters=True), one) for one in written)


def test_a_picture_without_transparency_is_the_opaque_one() -> None:
    assert same_pixels(png(ROWS, kind=6), png(ROWS, kind=2, filters=True))
    assert not same_pixels(png(ROWS), png(ROWS[:-1]))


@pytest.mark.parametrize("damaged", [b"", b"no picture", png(ROWS)[:40], png(ROWS)[:-30], png(ROWS)[:60] + b"\xff" * 9])
def test_what_is_no_picture_is_the_same_as_itself_alone(damaged: bytes) -> None:
    assert same_pixels(damaged, damaged)
    assert not same_pixels(damaged, png(ROWS))


def seen(snapshot: str = "page", picture: bytes = b"", rest: Any = None, **more: Any) -> Observation:
    """An observation as the browser makes it."""
    told = {"snapshot": BLOBS.put(snapshot.encode()), "screenshot": BLOBS.put(picture) if picture else ""}
    if rest is not None:
        selectors, left, *pictures = rest
        pictures = [BLOBS.put(one) for one in pictures]
        rest = Rest(selectors=selectors, snapshot=BLOBS.put(left.encode()), screenshot=(*pictures, "")[0])
    title = more.pop("title", "Shop")
    parts = {"tabs": BLOBS.put(f'[{{"title":"{title}"}}]'.encode())} | more.pop("parts", {})
    digest = f"{snapshot} {title} {parts} {told['screenshot'] if more.get('pixels') else ''}"
    return Observation(digest=digest, url="http://shop/", title=title, parts=parts, rest=rest, **told, **more)


ONE, SAME, ANOTHER = png(ROWS), png(ROWS, filters=True), png(other(ROWS))


@pytest.mark.parametrize(
    ("recorded", "now", "what"),
    [
        (seen(), seen(), ""),
        (seen(), seen("another"), "another page content"),
        (seen(), seen(title="Another"), "another title"),
        (seen(), seen(parts={"download:a": "x"}), "another download:a"),
        (seen(picture=ONE), seen(picture=ANOTHER), ""),  # evidence for people
        (seen(picture=ONE, pixels=True), seen(picture=SAME, pixels=True), ""),
        (seen(picture=ONE, pixels=True), seen(picture=ANOTHER, pixels=True), "another screenshot"),
        (seen(picture=ONE), seen(picture=ANOTHER, pixels=True), ""),  # it was not promised when it was recorded
        (seen(picture=ONE, pixels=True), seen("another", picture=ONE, pixels=True), "another page content"),
    ],
)
def test_what_differs_is_named(recorded: Observation, now: Observation, what: str) -> None:
    assert difference(recorded, now, BLOBS.get) == what


def test_another_digest_of_equal_parts_differs() -> None:
    here = Observation(digest="1", value=1)
    assert difference(here, Observation(digest="2", value=2), BLOBS.get) == "another digest of the same page"


AT_12, AT_13 = seen("at 12", rest=(CLOCK, "at")), seen("at 13", rest=(CLOCK, "at"))
P = {"pixels": True}


@pytest.mark.parametrize(
    ("recorded", "now", "masks", "same"),
    [
        (AT_12, AT_13, Masks(selectors=CLOCK), True),
        (AT_12, AT_13, Masks(), False),
        (AT_12, AT_13, Masks(selectors=("#other",)), False),
        (AT_12, seen("at 13", rest=(("#other",), "at")), Masks(selectors=CLOCK), False),
        (seen("at 12"), AT_13, Masks(selectors=CLOCK), False),
        (AT_12, seen("off", rest=(CLOCK, "off")), Masks(selectors=CLOCK), False),
        (AT_12, seen("no 7", rest=(CLOCK, "no 7")), Masks(selectors=CLOCK), False),
        (AT_12, seen("at 13", title="Another", rest=(CLOCK, "at")), Masks(selectors=CLOCK), False),
        (AT_12, seen("at 13", parts={"download:a": "x"}, rest=(CLOCK, "at")), Masks(selectors=CLOCK), False),
        (seen("12", rest=(CLOCK, "no 7")), seen("13", rest=(CLOCK, "no 8")), Masks(selectors=CLOCK), False),
        (
            seen("12", rest=(CLOCK, "no 7")),
            seen("13", rest=(CLOCK, "no 8")),
            Masks(selectors=CLOCK, text=(r"no \d",)),
            True,
        ),
        (seen(title="Order 1"), seen(title="Order 2"), Masks(text=(r"Order \d",)), True),  # the tabs tell it as well
        (seen(title="Order 1"), seen(title="Order 2"), Masks(text=(r"no \d",)), False),
        (
            seen("a", ONE, (CLOCK, "", ONE), **P),
            seen("b", ANOTHER, (CLOCK, "", SAME), **P),
            Masks(selectors=CLOCK),
            True,
        ),
        (
            seen("a", ONE, (CLOCK, "", ONE), **P),
            seen("b", ANOTHER, (CLOCK, "", ANOTHER), **P),
            Masks(selectors=CLOCK),
            False,
        ),
        (seen("no 1", ONE, **P), seen("no 2", ANOTHER, **P), Masks(text=(r"no \d",)), False),  # a text covers no pixels
        (seen("no 1", ONE, **P), seen("no 2", SAME, **P), Masks(text=(r"no \d",)), True),
    ],
)
def test_masks_cover_what_they_say_alone(recorded: Observation, now: Observation, masks: Masks, same: bool) -> None:
    assert equivalent(recorded, now, masks, BLOBS.get) is same


def test_that_masks_were_others_is_told() -> None:
    assert masks_of_another_time(AT_12, Masks(selectors=CLOCK)) == ""
    assert masks_of_another_time(seen(), Masks(text=("x",))) == ""
    for recorded, masks in ((AT_12, Masks()), (seen(), Masks(selectors=CLOCK))):
        assert "masks.selectors was changed since" in masks_of_another_time(recorded, masks)


class Found(Judge):
    """A judge that has come to a verdict."""

    verdict: Any = None

    def __init__(self, verdict: str) -> None:
        self.verdict = verdict


@pytest.mark.parametrize(
    ("held", "observed", "verdict"),
    [
        (States({}, ()), "unverified", "unverified"),
        (States({"db": True, "media": True}, ()), "equivalent", "exact-state"),
        (States({"db": False, "media": True}, ("db",)), "unverified", "equivalent"),
        (States({"db": False, "media": True}, ("db",)), "exact-observed", "equivalent"),
        (States({"db": False, "media": False}, ("db",)), "exact-observed", "exact-observed"),
        (States({"db": False}, ()), "unverified", "unverified"),
    ],
)
def test_what_is_held_says_more_than_what_was_seen(held: States, observed: str, verdict: str) -> None:
    assert verdict_of(Found(observed), held) == verdict


@pytest.mark.parametrize(
    ("masked_states", "masked", "compared", "exact"),
    [(("db",), (), 2, True), (("db",), (1,), 2, False), ((), (1,), 2, False), (("db",), (), 1, False)],
)
def test_what_was_seen_is_exact_though_what_is_held_differs_where_it_is_masked(
    masked_states: tuple[str, ...], masked: tuple[int, ...], compared: int, exact: bool
) -> None:
    result = RolloutResult(
        env="a",
        child="b",
        source=Moment(env="a", generation=1),
        verdict="equivalent",
        actions=2,
        steps=2,
        compared=compared,
        masked=masked,
        masked_states=masked_states,
    )
    assert result.exact is exact
