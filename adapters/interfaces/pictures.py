"""What differs between two screenshots, drawn: the later one, with a frame around each region that is not as it was."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import msgspec

from statefork.engine.errors import MissingDependency

if TYPE_CHECKING:
    from PIL import Image

TILE_PX = 16
"""Changed places nearer to each other than this make one region."""
FRAME_PX = 2
MARGIN_PX = 3
FRAME_COLOUR = (220, 20, 60)
REGIONS_MAX = 200
GAP_PX = 8
HEADING_PX = 24
SHEET_COLOUR = (64, 64, 64)
TEXT_COLOUR = (255, 255, 255)


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle of a picture, in pixels from its upper left corner."""

    x: int
    y: int
    width: int
    height: int


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The picture, as PNG, and what is framed in it. No region: the pixels are the same."""

    png: bytes
    regions: tuple[Region, ...]


def drawn(before: bytes, after: bytes) -> Drawn:
    """Compare two PNG files. Raises MissingDependency without Pillow."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingDependency(
            "pictures of differences need Pillow", hint="pip install 'statefork[pictures]'"
        ) from error
    old, new = (Image.open(BytesIO(data)).convert("RGB") for data in (before, after))
    size = max(old.width, new.width), max(old.height, new.height)
    old, new = _padded(old, size), _padded(new, size)
    regions = _regions(_mask(old, new))
    pen = ImageDraw.Draw(new)
    for region in regions:
        left, top = max(region.x - MARGIN_PX, 0), max(region.y - MARGIN_PX, 0)
        right = min(region.x + region.width + MARGIN_PX, size[0]) - 1
        bottom = min(region.y + region.height + MARGIN_PX, size[1]) - 1
        pen.rectangle((left, top, right, bottom), outline=FRAME_COLOUR, width=FRAME_PX)
    out = BytesIO()
    new.save(out, "PNG")
    return Drawn(png=out.getvalue(), regions=regions)


def beside(recorded: bytes, seen: bytes) -> Drawn:
    """Two PNG files beside each other, and a third time the later one with a frame around what differs.

    Raises MissingDependency without Pillow.
    """
    made = drawn(recorded, seen)
    from PIL import Image, ImageDraw

    parts = [Image.open(BytesIO(data)).convert("RGB") for data in (recorded, seen, made.png)]
    width = sum(part.width for part in parts) + GAP_PX * (len(parts) + 1)
    sheet = Image.new("RGB", (width, max(part.height for part in parts) + HEADING_PX + GAP_PX), SHEET_COLOUR)
    pen = ImageDraw.Draw(sheet)
    left = GAP_PX
    for part, heading in zip(parts, ("recorded", "seen", "what differs"), strict=True):
        pen.text((left, HEADING_PX // 3), heading, fill=TEXT_COLOUR)
        sheet.paste(part, (left, HEADING_PX))
        left += part.width + GAP_PX
    out = BytesIO()
    sheet.save(out, "PNG")
    return Drawn(png=out.getvalue(), regions=made.regions)


def _padded(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The picture on a sheet of that size: what one of two is larger by counts as changed unless it is black."""
    if picture.size == size:
        return picture
    from PIL import Image

    sheet = Image.new("RGB", size)
    sheet.paste(picture)
    return sheet


def _mask(old: Image.Image, new: Image.Image) -> Image.Image:
    """White where any colour differs."""
    from PIL import ImageChops

    red, green, blue = ImageChops.difference(old, new).split()
    most = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return most.point(lambda value: 255 if value else 0)


def _regions(mask: Image.Image) -> tuple[Region, ...]:
    """The white parts of a mask, as rectangles in reading order; at most ``REGIONS_MAX``, the last holds the rest."""
    boxes = {}
    for y in range(0, mask.height, TILE_PX):
        for x in range(0, mask.width, TILE_PX):
            found = mask.crop((x, y, min(x + TILE_PX, mask.width), min(y + TILE_PX, mask.height))).getbbox()
            if found is not None:
                left, top, right, bottom = found
                boxes[x // TILE_PX, y // TILE_PX] = (x + left, y + top, x + right, y + bottom)
    whole = sorted((_around(group) for group in _groups(boxes)), key=lambda box: (box[1], box[0]))
    if len(whole) > REGIONS_MAX:
        whole = [*whole[: REGIONS_MAX - 1], _around(whole[REGIONS_MAX - 1 :])]
    return tuple(Region(x=x, y=y, width=right - x, height=bottom - y) for x, y, right, bottom in whole)


_Box = tuple[int, int, int, int]


def _groups(boxes: dict[tuple[int, int], _Box]) -> list[list[_Box]]:
    """Tiles that touch each other, corners included."""
    left, groups = dict(boxes), []
    while left:
        at, box = left.popitem()
        group, edge = [box], [at]
        while edge:
            x, y = edge.pop()
            for near in [(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]:
                if near in left:
                    group.append(left.pop(near))
                    edge.append(near)
        groups.append(group)
    return groups


def _around(group: list[_Box]) -> _Box:
    lefts, tops, rights, bottoms = zip(*group, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)
