"""How the shop's tasks are scored: by the database and by the page, each named fact on its own.

An evaluator reads with SQL, through a connection that can't write, and judges what the page said at the same moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statefork.worlds.shop import agents, catalogue
from statefork.worlds.shop.agents import Shopper
from statefork.worlds.shop.catalogue import Article

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Evaluation


class Page(NamedTuple):
    """What the agent's browser shows: the address and the accessibility snapshot."""

    url: str
    text: str


class Fact(NamedTuple):
    """One thing that should be so."""

    name: str
    wanted: Any
    seen: Any

    @property
    def holds(self) -> bool:
        """Whether it is."""
        return bool(self.wanted == self.seen)


class Score(NamedTuple):
    """The verdict: ``value`` from 0 to 1 is the share of facts that hold."""

    value: float
    facts: tuple[Fact, ...]

    @property
    def failed(self) -> tuple[Fact, ...]:
        """The facts that do not hold."""
        return tuple(fact for fact in self.facts if not fact.holds)

    def detail(self) -> dict[str, Any]:
        """As plain JSON: each fact with what was seen, and what was wanted where it differs."""
        return {
            fact.name: {"seen": fact.seen} if fact.holds else {"seen": fact.seen, "wanted": fact.wanted}
            for fact in self.facts
        }


Query = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""Rows of a read-only query."""


class Books:
    """The shop's database, read only."""

    def __init__(self, query: Query) -> None:
        self._query = query

    @classmethod
    def at(cls, path: Path) -> Books:
        """The books in a database file."""

        def query(sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as database:
                return database.execute(sql, values).fetchall()

        return cls(query)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self._query(sql, values)

    def value(self, sql: str, *values: object) -> Any:
        """The first column of the first row; None when there is no row."""
        rows = self.rows(sql, *values)
        return rows[0][0] if rows else None

    def orders(self) -> int:
        """Number of orders."""
        return int(self.value("SELECT count(*) FROM order_order"))

    def order(self) -> dict[str, Any]:
        """The one order with its delivery, town, lines and stock taken; empty when there is not exactly one."""
        found = self.rows(
            "SELECT o.shipping_method, a.line4, o.total_incl_tax - o.shipping_incl_tax AS goods,"
            " coalesce(u.email, o.guest_email) AS who"
            " FROM order_order o JOIN order_shippingaddress a ON a.id = o.shipping_address_id"
            " LEFT JOIN auth_user u ON u.id = o.user_id"
        )
        if len(found) != 1:
            return {"orders": len(found)}
        delivery, town, goods, who = found[0]
        lines = self.rows("SELECT upc, quantity FROM order_line ORDER BY id")
        return {"delivery": delivery, "town": town, "goods": f"{Decimal(str(goods)):.2f}", "who": who, "lines": lines}

    def basket(self) -> list[tuple[str, int]]:
        """Article and quantity of every line in an open or frozen basket."""
        found = self.rows(
            "SELECT p.upc, l.quantity FROM basket_line l JOIN basket_basket b ON b.id = l.basket_id"
            " JOIN catalogue_product p ON p.id = l.product_id WHERE b.status IN ('Open', 'Frozen') ORDER BY l.id"
        )
        return [(upc, quantity) for upc, quantity in found]

    def reviews_by(self, email: str, article: Article) -> list[tuple[str, int]]:
        """Title and score of a customer's reviews of an article that the seed did not write."""
        found = self.rows(
            "SELECT r.title, r.score FROM reviews_productreview r JOIN auth_user u ON u.id = r.user_id"
            " WHERE u.email = ? AND r.product_id = ? AND r.id > ?",
            email,
            article.number,
            catalogue.REVIEWS,
        )
        return [(title, score) for title, score in found]


Judge = Callable[[Books, Page, Shopper], list[Fact]]


def score(judge: Judge, books: Books, page: Page, shopper: Shopper) -> Score:
    """Apply an evaluator to an environment's database and page; ``shopper`` tells the seed's choices."""
    facts = tuple(judge(books, page, shopper))
    return Score(sum(fact.holds for fact in facts) / len(facts), facts)


class Evaluate:
    """An evaluator in the form that ``Environment.evaluate`` takes; keeps what it found, fact by fact."""

    def __init__(self, judge: Judge, shopper: Shopper) -> None:
        self.judge = judge
        self.shopper = shopper
        self.generation = 0
        self.score: Score | None = None

    async def __call__(self, evaluation: Evaluation) -> tuple[float, Any]:
        """Read the books and the page of one generation."""

        def query(sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for row in evaluation.query("db", sql, values)]

        seen = await evaluation.look()
        self.generation = evaluation.generation
        self.score = score(self.judge, Books(query), Page(seen.url, seen.text), self.shopper)
        return self.score.value, self.score.detail()


def untouched(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """As the seed left it, and nobody logged in."""
    return [
        Fact("orders", 0, books.orders()),
        Fact("basket lines", [], books.basket()),
        Fact("accounts", len(catalogue.CUSTOMERS) + 1, books.value("SELECT count(*) FROM auth_user")),
        Fact("reviews", catalogue.REVIEWS, books.value("SELECT count(*) FROM reviews_productreview")),
        Fact("sessions", 0, books.value("SELECT count(*) FROM django_session")),
        Fact("page offers log-in", True, "Login or register" in page.text),
    ]


def looked_around(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """The article's page is open; nothing was bought."""
    article = shopper.articles[0]
    views = "SELECT num_views FROM analytics_productrecord WHERE product_id = ?"
    return [
        Fact("address", True, page.url.endswith(article.path)),
        Fact("page names the article", True, article.title in page.text),
        Fact("views of the article", 1, books.value(views, article.number)),
        Fact("orders", 0, books.orders()),
        Fact("basket lines", [], books.basket()),
    ]


def registered(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """One account more, logged in."""
    email = agents.newcomer(shopper.seed)
    return [
        Fact("accounts of that name", 1, books.value("SELECT count(*) FROM auth_user WHERE email = ?", email)),
        Fact("accounts", len(catalogue.CUSTOMERS) + 2, books.value("SELECT count(*) FROM auth_user")),
        Fact("page offers log-out", True, "Logout" in page.text),
    ]


def renamed(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """The customer has the new name, and no other has."""
    email = catalogue.email(shopper.customer)
    return [
        Fact("last name", agents.MARRIED, books.value("SELECT last_name FROM auth_user WHERE email = ?", email)),
        Fact("of that name", 1, books.value("SELECT count(*) FROM auth_user WHERE last_name = ?", agents.MARRIED)),
        Fact("page shows it", True, agents.MARRIED in page.text),
    ]


def basket_filled(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """Three of one, one of the other, ten per cent off, nothing ordered."""
    first, second = shopper.articles[:2]
    return [
        Fact("basket lines", [(first.upc, 3), (second.upc, 1)], books.basket()),
        Fact("voucher in the basket", 1, books.value("SELECT count(*) FROM basket_basket_vouchers")),
        Fact("page shows the discount", True, "Ten per cent off" in page.text or "Welcome to the harbour" in page.text),
        Fact("orders", 0, books.orders()),
    ]


def reviewed(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """One review, once, with the rating brought up to date."""
    article, email = shopper.articles[0], catalogue.email(shopper.customer)
    mean = "SELECT round(avg(score), 2) FROM reviews_productreview WHERE product_id = ?"
    rating = "SELECT round(CAST(rating AS numeric), 2) FROM catalogue_product WHERE id = ?"
    return [
        Fact("the review", [(f"Kept it ({shopper.seed})", 4)], books.reviews_by(email, article)),
        Fact("rating is the mean", books.value(mean, article.number), books.value(rating, article.number)),
        Fact("page says thanks", True, "Thank you for reviewing" in page.text),
    ]


def not_reviewed(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """Before the review was written: no review, but the customer is logged in."""
    email = catalogue.email(shopper.customer)
    return [
        Fact("the review", [], books.reviews_by(email, shopper.articles[0])),
        Fact("reviews", catalogue.REVIEWS, books.value("SELECT count(*) FROM reviews_productreview")),
        Fact("page offers log-out", True, "Logout" in page.text),
    ]


def in_mid_checkout(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """One line in the basket, the address form half filled."""
    return [
        Fact("basket lines", [(shopper.articles[0].upc, 1)], books.basket()),
        Fact("orders", 0, books.orders()),
        Fact("address", True, page.url.endswith("/checkout/shipping-address/")),
        Fact("form keeps the name", True, "Greta" in page.text and "Gale" in page.text),
        Fact("form keeps the street", True, agents.NEW_ADDRESS["line1"] in page.text),
    ]


def ordered(*, delivery: str, quantity: int, town: str | None = None, guest: bool = False) -> Judge:
    """An evaluator: exactly this order, its stock taken, the basket gone, the thank-you page shown."""

    def judge(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
        article = shopper.articles[0]
        own = books.value(
            "SELECT a.line4 FROM address_useraddress a JOIN auth_user u ON u.id = a.user_id WHERE u.email = ?",
            catalogue.email(shopper.customer),
        )
        wanted = {
            "delivery": delivery,
            "town": town or own,
            "goods": f"{article.price * quantity:.2f}",
            "who": agents.newcomer(shopper.seed) if guest else catalogue.email(shopper.customer),
            "lines": [(article.upc, quantity)],
        }
        taken = "SELECT num_allocated FROM partner_stockrecord WHERE product_id = ?"
        return [
            Fact("the order", wanted, books.order()),
            Fact("stock allocated", quantity, books.value(taken, article.number)),
            Fact("basket lines", [], books.basket()),
            Fact("address", True, page.url.endswith("/checkout/thank-you/")),
            Fact("page names the article", True, article.title in page.text),
        ]

    return judge


def abandoned(books: Books, page: Page, shopper: Shopper) -> list[Fact]:
    """Nothing ordered, nothing in the basket, nobody logged in."""
    return [
        Fact("orders", 0, books.orders()),
        Fact("basket lines", [], books.basket()),
        Fact("page offers log-in", True, "Login or register" in page.text),
    ]
