"""Whether two screenshots show the same, whichever encoder wrote them: their pixels are compared, not their bytes.

The same browser writes the same bytes for the same pixels, so reading them is for the rare case that the bytes differ.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type, of those without a palette
_OPAQUE = 255
_PIXELS_MAX = 64_000_000  # more than any screen; a file that is not one must not fill the memory


def same_pixels(one: bytes, other: bytes) -> bool:
    """Whether two PNG files show the same. Those that can't be read here are the same where their bytes are."""
    if one == other:
        return True
    try:
        return _read(one) == _read(other)
    except (ValueError, IndexError, struct.error, zlib.error):
        return False


def _read(png: bytes) -> tuple[int, int, bytes]:
    """Width, height, and the pixels row by row as RGBA. Raises ValueError for what screenshots are not."""
    chunks = list(_chunks(png))
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or interlaced or colour not in _CHANNELS or width * height > _PIXELS_MAX:
        raise ValueError("not a picture of a kind that browsers write")
    size = _CHANNELS[colour]
    limit = height * (1 + width * size)
    packed = b"".join(body for kind, body in chunks if kind == b"IDAT")
    lines = zlib.decompressobj().decompress(packed, limit)
    if len(lines) != limit:
        raise ValueError("not a whole picture")
    return width, height, _as_rgba(_unfiltered(lines, width * size, size), size)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not png.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    at = len(_SIGNATURE)
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8 : at + 8 + length]
        at += 12 + length


def _unfiltered(lines: bytes, length: int, size: int) -> bytes:
    """The rows as they are: in the file each is told by what it differs from the pixels to its left and above."""
    above = bytearray(length)
    whole = bytearray()
    for at in range(0, len(lines), length + 1):
        row = bytearray(lines[at + 1 : at + 1 + length])
        match lines[at]:
            case 0:
                pass
            case 1:
                for i in range(size, length):
                    row[i] = (row[i] + row[i - size]) & 255
            case 2:
                row = bytearray((x + y) & 255 for x, y in zip(row, above, strict=True))
            case 3:
                for i in range(length):
                    left = row[i - size] if i >= size else 0
                    row[i] = (row[i] + (left + above[i]) // 2) & 255
            case 4:
                for i in range(length):
                    left, corner = (row[i - size], above[i - size]) if i >= size else (0, 0)
                    row[i] = (row[i] + _nearest(left, above[i], corner)) & 255
            case other:
                raise ValueError(f"no filter has the number {other}")
        whole += row
        above = row
    return bytes(whole)


def _nearest(left: int, above: int, corner: int) -> int:
    """Of three neighbours the one that is nearest to left + above - corner (Paeth)."""
    to_left, to_above, to_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
    if to_left <= to_above and to_left <= to_corner:
        return left
    return above if to_above <= to_corner else corner


def _as_rgba(pixels: bytes, size: int) -> bytes:
    count = len(pixels) // size
    rgba = bytearray([_OPAQUE]) * (4 * count)
    colours = size - 1 if size in (2, 4) else size
    for channel in range(3):
        rgba[channel::4] = pixels[min(channel, colours - 1) :: size]
    if size != colours:
        rgba[3::4] = pixels[size - 1 :: size]
    return bytes(rgba)
