"""What the shop sells and who comes to it: plain data, from which the seed makes rows and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import NamedTuple

SEED = 20250301

OPENED = datetime(2025, 3, 1, 9, tzinfo=UTC)
"""The moment at which the seeded shop stands."""

REVIEWS = 540
"""How many reviews the seed writes; their primary keys are 1 to this."""

PASSWORD = "correct-horse-battery"
"""The password of every seeded customer."""

ADMIN_EMAIL = "admin@shop.example"
ADMIN_PASSWORD = "harbour-master-1"

VOUCHER = "WELCOME10"
"""A code that takes ten per cent off."""

COLOURS = {
    "Moss": "#6b7f59",
    "Clay": "#c4795a",
    "Ink": "#2f3e55",
    "Oat": "#d9c7a3",
    "Brick": "#a34a3d",
    "Sky": "#7fa9c4",
    "Plum": "#6f4a68",
    "Mustard": "#d2a03c",
    "Slate": "#6c757d",
    "Rose": "#cf8d94",
}

LINES = ("Skerry", "Fold", "Harbour", "Dune", "Lowland")
COLOURS_PER_LINE = 4

CUSTOMERS = (
    "Ada Marsh", "Ben Okoro", "Cleo Winter", "Dev Patel", "Elin Berg", "Finn Walsh", "Grace Lindt", "Hugo Ferreira",
    "Iris Novak", "Jonas Aalto", "Kaya Demir", "Liam Byrne", "Mira Sato", "Nils Holm", "Orla Quinn", "Pavel Kral",
    "Quentin Roy", "Rosa Vidal", "Samir Haddad", "Tove Lund", "Uma Reddy", "Viktor Sand", "Wanda Kruk", "Yusuf Kaya",
)  # fmt: skip

COUNTRIES = {
    "GB": "United Kingdom",
    "IE": "Ireland",
    "NO": "Norway",
    "DE": "Germany",
    "US": "United States",
}

STREETS = ("Harbour Street", "Pine Road", "Mill Lane", "Station Road", "Church Walk", "Quay Side")
TOWNS = (("Leith", "EH6 6NB"), ("Whitby", "YO21 3PR"), ("Falmouth", "TR11 3XN"), ("Tenby", "SA70 7BP"))


class Kind(NamedTuple):
    """A kind of article: its category, and the range that its prices come from, in whole pounds."""

    name: str
    category: str
    lowest: int
    highest: int
    about: str


KINDS = (
    Kind("Mug", "Kitchen > Mugs and bowls", 8, 22, "Holds a third of a litre and stays warm for a whole chapter."),
    Kind("Bowl", "Kitchen > Mugs and bowls", 9, 28, "Deep enough for soup, wide enough for salad."),
    Kind("Kettle", "Kitchen > Kettles and bottles", 32, 89, "Pours without dripping and whistles in a low key."),
    Kind("Bottle", "Kitchen > Kettles and bottles", 14, 38, "Keeps tea hot until noon and water cold until evening."),
    Kind("Lamp", "Home > Light", 39, 140, "A warm, even light that does not dazzle."),
    Kind("Candle", "Home > Light", 7, 24, "Burns for forty hours; smells of very little, on purpose."),
    Kind("Chair", "Home > Furniture", 79, 260, "Solid joints, no screws in sight, stacks four high."),
    Kind("Vase", "Home > Decoration", 18, 64, "Stands firmly, even with a single long branch."),
    Kind("Clock", "Home > Decoration", 29, 95, "A silent movement and a face that is read at a glance."),
    Kind("Cushion", "Home > Decoration", 19, 48, "Filled with wool; the cover comes off and can be washed."),
    Kind("Notebook", "Study > Paper and pens", 5, 19, "Lies flat, takes ink well, numbered pages."),
    Kind("Pencil", "Study > Paper and pens", 3, 12, "Cedar, soft enough to draw with and hard enough to write."),
    Kind("Radio", "Study > Sound", 49, 180, "Two knobs, one loudspeaker, every station."),
    Kind("Headphones", "Study > Sound", 45, 210, "Light on the head and closed to the office."),
    Kind("Backpack", "Outdoors > Bags", 49, 150, "Rainproof, with a pocket where the hand looks for it."),
    Kind("Tent", "Outdoors > Shelter", 119, 390, "Up in six minutes, also in wind."),
    Kind("Shirt", "Clothing > Tops", 24, 72, "Organic cotton, washed before it is sewn."),
    Kind("Cap", "Clothing > Hats", 16, 42, "Keeps its shape in a coat pocket."),
)

OPENINGS = (
    "Made in small batches by people who sign their work.",
    "Designed to be mended, not replaced.",
    "A plain thing, done with care.",
    "The one that stays when the others are given away.",
    "Drawn in the north, made for every day.",
)

PRAISE = (
    ("Just right", "Exactly what I was looking for, and it feels as if it will last."),
    ("Good value", "Costs a little more than the usual ones and is worth the difference."),
    ("A present that was kept", "Bought it for my sister. She has not given it back."),
    ("Every day since", "In daily use for two months now, no complaint."),
    ("Lovely colour", "The colour is deeper than in the picture, which I like."),
)
DOUBTS = (
    ("Fine, not more", "Does what it says. I had hoped for a little more."),
    ("Smaller than I thought", "Well made, but do read the measurements."),
    ("Slow to arrive", "The thing itself is good. The parcel took its time."),
)


class Article(NamedTuple):
    """One product of the shop."""

    upc: str
    title: str
    kind: Kind
    line: int
    colour: str
    description: str
    price: Decimal
    stock: int

    @property
    def number(self) -> int:
        """Its primary key: products are made in this order."""
        return int(self.upc.removeprefix("HP"))

    @property
    def path(self) -> str:
        """Path of its page."""
        slug = self.title.lower().replace(",", "").replace(" ", "-")
        return f"/catalogue/{slug}_{self.number}/"

    @property
    def image(self) -> str:
        """Name of its picture, relative to the media root."""
        return f"images/products/{self.upc.lower()}.png"


def articles() -> Iterator[Article]:
    """All products, the same in every build, with the kinds mixed as a front page has them."""
    random = Random(SEED)
    models = [
        (kind, line, colour)
        for kind in KINDS
        for line in range(len(LINES))
        for colour in random.sample(list(COLOURS), COLOURS_PER_LINE)
    ]
    random.shuffle(models)
    for number, (kind, line, colour) in enumerate(models, start=1):
        price = Decimal(random.randint(kind.lowest, kind.highest)) - Decimal(random.choice(("0.05", "0.50", "0")))
        title = f"{LINES[line]} {kind.name}, {colour}"
        text = f"{random.choice(OPENINGS)} {kind.about} The {LINES[line]} series, in {colour.lower()}."
        yield Article(f"HP{number:04d}", title, kind, line, colour, text, price, random.randint(12, 240))


def email(name: str) -> str:
    """A customer's e-mail address, by which they log in: ``ada@shop.example``."""
    return f"{name.split()[0].lower()}@shop.example"
