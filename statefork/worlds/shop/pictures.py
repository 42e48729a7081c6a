"""Product pictures: flat drawings, one function for each kind of article, coloured and proportioned by the article.

Drawn at twice the size and scaled down, then reduced to a small palette: about 5 KB each, the same bytes in every build
with the same Pillow.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from PIL import Image, ImageColor, ImageDraw

WIDTH, HEIGHT = 400, 400  # pixels; the product page shows up to 440 x 400
_SCALE = 2

Colour = tuple[int, int, int]


def mix(colour: Colour, other: Colour, share: float) -> Colour:
    """``colour`` moved towards ``other`` by ``share``."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(colour, other, strict=True))
    return red, green, blue


class Pen:
    """Draws in a 400 x 400 field, with the article's colour, a lighter, a darker and a wooden one."""

    def __init__(self, colour: Colour, line: int) -> None:
        self.body = colour
        self.dark = mix(colour, (20, 20, 30), 0.32)
        self.light = mix(colour, (255, 255, 255), 0.38)
        self.wood: Colour = (176, 137, 96)
        self.line = line  # 0..4: the series, which varies proportions
        self.image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), mix(colour, (250, 247, 241), 0.84))
        self._draw = ImageDraw.Draw(self.image)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Colour) -> None:
        """Around (x, y) with the radii given."""
        self._draw.ellipse([_SCALE * (x - rx), _SCALE * (y - ry), _SCALE * (x + rx), _SCALE * (y + ry)], fill=fill)

    def ring(self, x: float, y: float, rx: float, ry: float, width: float, colour: Colour) -> None:
        """An ellipse's outline, drawn inwards."""
        box = [_SCALE * (x - rx), _SCALE * (y - ry), _SCALE * (x + rx), _SCALE * (y + ry)]
        self._draw.ellipse(box, outline=colour, width=round(_SCALE * width))

    def arc(self, x: float, y: float, r: float, start: int, end: int, width: float, colour: Colour) -> None:
        """Part of a circle's outline, in degrees clockwise from three o'clock."""
        box = [_SCALE * (x - r), _SCALE * (y - r), _SCALE * (x + r), _SCALE * (y + r)]
        self._draw.arc(box, start, end, fill=colour, width=round(_SCALE * width))

    def box(self, x: float, y: float, x2: float, y2: float, fill: Colour, radius: float = 0) -> None:
        """A rectangle with round corners."""
        edges = [_SCALE * x, _SCALE * y, _SCALE * x2, _SCALE * y2]
        self._draw.rounded_rectangle(edges, radius=_SCALE * radius, fill=fill)

    def shape(self, *points: tuple[float, float], fill: Colour) -> None:
        """A polygon."""
        self._draw.polygon([(_SCALE * x, _SCALE * y) for x, y in points], fill=fill)

    def stroke(self, *points: tuple[float, float], width: float, colour: Colour) -> None:
        """A line through the points, with round joints."""
        scaled = [(_SCALE * x, _SCALE * y) for x, y in points]
        self._draw.line(scaled, fill=colour, width=round(_SCALE * width), joint="curve")

    def shadow(self, half: float, y: float = 318) -> None:
        """Where the thing stands."""
        self.ellipse(200, y, half, 11, mix(self.body, (235, 230, 222), 0.6))


def _mug(pen: Pen) -> None:
    tall = 10 * pen.line
    pen.shadow(92)
    pen.ring(272, 220, 44, 48, 16, pen.dark)
    pen.box(128, 150 - tall, 264, 318, pen.body, 20)
    pen.box(128, 232, 264, 262, pen.light)
    pen.ellipse(196, 152 - tall, 68, 17, pen.dark)


def _bowl(pen: Pen) -> None:
    wide = 96 + 8 * pen.line
    pen.shadow(70)
    pen.box(160, 288, 240, 318, pen.dark, 8)
    pen.shape((200 - wide, 196), (200 + wide, 196), (200 + wide * 0.5, 302), (200 - wide * 0.5, 302), fill=pen.body)
    pen.ellipse(200, 196, wide, 24, pen.dark)
    pen.ellipse(200, 201, wide - 14, 16, pen.light)


def _kettle(pen: Pen) -> None:
    round_ = 78 + 5 * pen.line
    pen.shadow(98)
    pen.arc(200, 168, 78, 190, 350, 15, pen.wood)
    pen.shape((262, 210), (326, 158), (340, 172), (276, 270), fill=pen.dark)
    pen.ellipse(200, 236, round_, 82, pen.body)
    pen.box(150, 146, 250, 164, pen.dark, 8)
    pen.ellipse(200, 142, 13, 13, pen.wood)
    pen.ellipse(168, 222, 14, 30, pen.light)


def _bottle(pen: Pen) -> None:
    half = 38 + 4 * pen.line
    pen.shadow(64)
    pen.box(178, 66, 222, 104, pen.wood, 8)
    pen.shape((176, 100), (224, 100), (200 + half, 160), (200 - half, 160), fill=pen.body)
    pen.box(200 - half, 150, 200 + half, 318, pen.body, 18)
    pen.box(200 - half, 214, 200 + half, 268, pen.light)
    pen.box(200 - half + 9, 166, 200 - half + 19, 206, pen.light, 5)


def _lamp(pen: Pen) -> None:
    half = 58 + 8 * pen.line
    pen.shadow(70)
    pen.ellipse(200, 210, 130, 60, mix(pen.light, (255, 240, 190), 0.6))
    pen.box(193, 170, 207, 308, pen.wood)
    pen.box(150, 300, 250, 318, pen.dark, 8)
    pen.shape((164, 78), (236, 78), (200 + half, 190), (200 - half, 190), fill=pen.body)
    pen.shape((164, 78), (184, 78), (200 - half * 0.5, 190), (200 - half, 190), fill=pen.light)


def _candle(pen: Pen) -> None:
    pen.shadow(80)
    for x, top in ((146, 190), (200, 140 - 5 * pen.line), (254, 214)):
        pen.stroke((x, top - 14), (x, top + 6), width=4, colour=pen.dark)
        pen.ellipse(x, top - 26, 9, 17, (240, 190, 90))
        pen.ellipse(x, top - 22, 4, 9, (255, 240, 205))
        pen.box(x - 22, top, x + 22, 316, pen.body, 6)
        pen.box(x - 22, top, x - 10, 316, pen.light, 6)


def _chair(pen: Pen) -> None:
    back = 60 + 8 * pen.line
    pen.shadow(88)
    for foot, leg in ((132, 148), (268, 252)):
        pen.stroke((leg, 220), (foot, 316), width=13, colour=pen.wood)
        pen.stroke((leg, 74), (leg, 220), width=13, colour=pen.wood)
    pen.box(138, 84, 262, 84 + back, pen.body, 14)
    pen.box(124, 208, 276, 234, pen.dark, 12)
    pen.box(124, 204, 276, 222, pen.body, 12)


def _vase(pen: Pen) -> None:
    belly = 54 + 8 * pen.line
    pen.shadow(68)
    for tip in ((150, 62), (206, 44), (252, 74)):
        pen.stroke((200, 170), tip, width=5, colour=(112, 128, 92))
        pen.ellipse(tip[0], tip[1], 15, 19, pen.light)
    pen.box(174, 150, 226, 216, pen.body)
    pen.ellipse(200, 250, belly, 68, pen.body)
    pen.ellipse(200, 150, 32, 9, pen.dark)
    pen.ellipse(200 - belly * 0.45, 240, 10, 30, pen.light)


def _clock(pen: Pen) -> None:
    pen.ellipse(200, 200, 122, 122, pen.dark)
    pen.ellipse(200, 200, 110, 110, (250, 247, 240))
    for x, y in ((200, 104), (296, 200), (200, 296), (104, 200)):
        pen.ellipse(x, y, 7, 7, pen.body)
    pen.stroke((200, 200), (200 + 10 * pen.line, 132), width=11, colour=pen.dark)
    pen.stroke((200, 200), (266, 226 - 9 * pen.line), width=8, colour=pen.body)
    pen.ellipse(200, 200, 11, 11, pen.dark)


def _cushion(pen: Pen) -> None:
    pen.shadow(104, 312)
    corners = ((96, 96), (304, 96), (304, 306), (96, 306))
    pen.shape(
        corners[0], (200, 116), corners[1], (286, 200), corners[2], (200, 290), corners[3], (114, 200), fill=pen.dark
    )
    pen.box(112, 110, 288, 294, pen.body, 40)
    for step in range(pen.line + 1):
        pen.box(134, 140 + 28 * step, 266, 150 + 28 * step, pen.light, 5)


def _notebook(pen: Pen) -> None:
    pen.shadow(92, 322)
    pen.box(122, 82, 290, 322, pen.dark, 10)
    pen.box(132, 90, 294, 316, (246, 241, 230), 6)
    pen.box(118, 78, 278, 318, pen.body, 10)
    pen.box(118, 78, 144, 318, pen.dark, 10)
    pen.box(170, 120, 254, 120 + 24 + 8 * pen.line, (246, 241, 230), 4)
    pen.box(262, 78, 270, 318, pen.light)


def _pencil(pen: Pen) -> None:
    for step, colour in enumerate((pen.body, pen.light, pen.dark)):
        x = 116 + 62 * step
        top = 80 + 12 * ((step + pen.line) % 3)
        pen.box(x, top, x + 40, top + 26, pen.wood, 8)
        pen.box(x, top + 20, x + 40, 258, colour)
        pen.shape((x, 258), (x + 40, 258), (x + 20, 318), fill=(226, 196, 156))
        pen.shape((x + 13, 297), (x + 27, 297), (x + 20, 318), fill=(50, 50, 58))


def _radio(pen: Pen) -> None:
    pen.shadow(128, 300)
    pen.stroke((270, 140), (322, 56 + 6 * pen.line), width=5, colour=pen.dark)
    pen.box(74, 136, 326, 300, pen.body, 22)
    pen.ellipse(152, 218, 58, 58, pen.dark)
    for radius in (46, 32, 18):
        pen.ring(152, 218, radius, radius, 4, pen.light)
    pen.box(232, 162, 306, 192, (246, 241, 230), 6)
    pen.stroke((246 + 9 * pen.line, 164), (246 + 9 * pen.line, 190), width=4, colour=(190, 70, 55))
    for x in (250, 290):
        pen.ellipse(x, 242, 16, 16, pen.wood)


def _headphones(pen: Pen) -> None:
    pen.arc(200, 200, 112, 180, 360, 20, pen.dark)
    pen.arc(200, 200, 104, 200, 340, 7, pen.light)
    for x, side in ((96, 1), (304, -1)):
        pen.box(x - 26, 186, x + 26, 296 + 4 * pen.line, pen.body, 22)
        pen.box(x + side * 22 - 9, 196, x + side * 22 + 9, 286, pen.dark, 9)


def _backpack(pen: Pen) -> None:
    pen.shadow(94, 324)
    pen.arc(200, 92, 36, 180, 360, 11, pen.dark)
    pen.box(106, 84, 294, 324, pen.body, 52)
    pen.box(126, 206, 274, 310, pen.dark, 20)
    pen.box(138, 218, 262, 300, pen.body, 14)
    pen.box(106, 150, 294, 160, pen.light)
    pen.box(182, 140, 218, 168 + 4 * pen.line, pen.wood, 6)


def _tent(pen: Pen) -> None:
    peak = 84 + 8 * pen.line
    pen.shadow(150, 306)
    pen.shape((200, peak), (60, 306), (340, 306), fill=pen.body)
    pen.shape((200, peak), (60, 306), (132, 306), fill=pen.light)
    pen.shape((206, peak + 40), (164, 306), (252, 306), fill=pen.dark)
    pen.stroke((200, peak), (200, peak - 22), width=5, colour=pen.wood)
    pen.stroke((60, 306), (36, 320), width=4, colour=pen.wood)
    pen.stroke((340, 306), (364, 320), width=4, colour=pen.wood)


def _shirt(pen: Pen) -> None:
    sleeve = 176 + 16 * pen.line
    pen.shape((140, 84), (60, 140), (86, sleeve), (136, 156), fill=pen.dark)
    pen.shape((260, 84), (340, 140), (314, sleeve), (264, 156), fill=pen.dark)
    pen.shape((138, 84), (262, 84), (274, 322), (126, 322), fill=pen.body)
    pen.ellipse(200, 84, 34, 22, pen.dark)
    pen.box(218, 150, 252, 188, pen.light, 4)


def _cap(pen: Pen) -> None:
    droop = 4 * pen.line
    pen.ellipse(190, 240, 110, 116, pen.body)
    pen.box(70, 240, 320, 360, mix(pen.body, (250, 247, 241), 0.84))
    pen.arc(190, 240, 62, 180, 270, 5, pen.light)
    pen.shape((226, 226), (296, 226), (362, 252 + droop), (356, 266 + droop), (300, 250), (226, 250), fill=pen.dark)
    pen.box(80, 226, 300, 250, pen.dark, 8)
    pen.ellipse(190, 124, 13, 9, pen.dark)


_DRAWINGS: dict[str, Callable[[Pen], None]] = {
    "Mug": _mug,
    "Bowl": _bowl,
    "Kettle": _kettle,
    "Bottle": _bottle,
    "Lamp": _lamp,
    "Candle": _candle,
    "Chair": _chair,
    "Vase": _vase,
    "Clock": _clock,
    "Cushion": _cushion,
    "Notebook": _notebook,
    "Pencil": _pencil,
    "Radio": _radio,
    "Headphones": _headphones,
    "Backpack": _backpack,
    "Tent": _tent,
    "Shirt": _shirt,
    "Cap": _cap,
}


def png(kind: str, colour: str, line: int) -> bytes:
    """The picture of an article of this kind, colour (``#rrggbb``) and series (0 to 4), as PNG."""
    red, green, blue = ImageColor.getrgb(colour)[:3]
    pen = Pen((red, green, blue), line)
    _DRAWINGS[kind](pen)
    small = pen.image.reduce(_SCALE).quantize(24, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    out = io.BytesIO()
    small.save(out, "PNG", optimize=True)
    return out.getvalue()
