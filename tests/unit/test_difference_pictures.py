"""The regions in which two screenshots differ."""

from __future__ import annotations

from io import BytesIO

import pytest

from statefork.adapters.interfaces import pictures
from statefork.adapters.interfaces.pictures import FRAME_COLOUR, GAP_PX, HEADING_PX, Region, beside, drawn

image = pytest.importorskip("PIL.Image", reason="pictures need Pillow: pip install 'statefork[pictures]'")


def png(size: tuple[int, int], *spots: tuple[int, int, int, int]) -> bytes:
    """A white picture with black rectangles."""
    made = image.new("RGB", size, "white")
    for left, top, right, bottom in spots:
        made.paste("black", (left, top, right, bottom))
    out = BytesIO()
    made.save(out, "PNG")
    return out.getvalue()


def test_places_that_are_far_from_each_other_are_framed_apart() -> None:
    found = drawn(png((200, 100)), png((200, 100), (10, 10, 40, 14), (150, 80, 151, 81)))
    assert found.regions == (Region(x=10, y=10, width=30, height=4), Region(x=150, y=80, width=1, height=1))
    shown = image.open(BytesIO(found.png))
    assert shown.getpixel((7, 7)) == FRAME_COLOUR
    assert shown.getpixel((20, 12)) == (0, 0, 0)


def test_both_stand_beside_each_other_and_what_differs_is_framed_in_the_third() -> None:
    made = beside(png((40, 50)), png((60, 50), (30, 20, 33, 23)))
    shown = image.open(BytesIO(made.png))
    assert shown.size == (40 + 60 + 60 + 4 * GAP_PX, 50 + HEADING_PX + GAP_PX)
    seen, framed = 2 * GAP_PX + 40, 3 * GAP_PX + 100
    assert shown.getpixel((GAP_PX + 30, HEADING_PX + 20)) == (255, 255, 255)
    assert [shown.getpixel((left + 31, HEADING_PX + 21)) for left in (seen, framed)] == [(0, 0, 0), (0, 0, 0)]
    assert shown.getpixel((seen + 28, HEADING_PX + 17)) == (255, 255, 255)
    assert shown.getpixel((framed + 28, HEADING_PX + 17)) == FRAME_COLOUR


def test_the_same_pixels_have_no_region() -> None:
    assert drawn(png((50, 50), (3, 3, 9, 9)), png((50, 50), (3, 3, 9, 9))).regions == ()


def test_pictures_of_two_sizes_are_compared() -> None:
    (region,) = drawn(png((50, 50)), png((50, 80))).regions
    assert (region.x, region.y, region.width, region.height) == (0, 50, 50, 30)


def test_there_are_not_too_many_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "REGIONS_MAX", 2)
    spots = [(at, 5, at + 1, 6) for at in range(0, 300, 60)]
    found = drawn(png((300, 20)), png((300, 20), *spots)).regions
    assert found == (Region(x=0, y=5, width=1, height=1), Region(x=60, y=5, width=181, height=1))
