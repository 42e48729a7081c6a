"""Scripted agents of the shop: each does one task through actions as data, the same way for the same seed.

An agent sees nothing but a *face* with ``act``: an environment of statefork, or in tests a plain browser page. What it
means to reach is said by the task's evaluator in :mod:`statefork.worlds.shop.evaluators`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from statefork.adapters.resources.browser.actions import Action, Click, Fill, Goto, Scroll
from statefork.worlds.shop import catalogue
from statefork.worlds.shop.catalogue import Article

SITE = "http://shop.example"


class Face(Protocol):
    """Where an agent acts."""

    async def act(self, action: Action, /) -> Any:
        """Carry out one action and return what is then seen."""
        ...


class Shopper:
    """An agent's hands: the shop's pages and forms as verbs. Every verb is one or a few recorded actions."""

    def __init__(self, face: Face, *, seed: int = 0, site: str = SITE) -> None:
        self.face = face
        self.random = Random(seed)
        self.site = site
        self.seed = seed

    @property
    def articles(self) -> list[Article]:
        """Three articles of this seed's choice; the same for every agent of the seed."""
        return Random(self.seed).sample(list(catalogue.articles()), 3)

    @property
    def customer(self) -> str:
        """A customer of this seed's choice who has an address in the address book and has reviewed nothing."""
        return catalogue.CUSTOMERS[2 * (self.seed % (len(catalogue.CUSTOMERS) // 2))]

    async def open(self, path: str) -> Any:
        """Go to a path of the shop."""
        return await self.face.act(Goto(self.site + path))

    async def click(self, selector: str = "", **target: Any) -> Any:
        """Click what a selector or a role and name point at."""
        return await self.face.act(Click(selector=selector, **target))

    async def press(self, name: str) -> Any:
        """Click the button of this name."""
        return await self.face.act(Click(role="button", name=name, exact=True))

    async def follow(self, name: str) -> Any:
        """Click the link of this name."""
        return await self.face.act(Click(role="link", name=name, exact=True))

    async def fill(self, **fields: str) -> None:
        """Fill form fields by Django's id of each (``id_`` left out, ``-`` written as ``__``)."""
        for field, value in fields.items():
            await self.face.act(Fill(selector=f"#id_{field.replace('__', '-')}", value=value))

    async def scroll(self, dy: float) -> Any:
        """Turn the wheel."""
        return await self.face.act(Scroll(dy=dy))

    # --- what shoppers do ---------------------------------------------------------------------------------------

    async def search(self, words: str) -> Any:
        """Type into the search box of the page and submit."""
        await self.face.act(Fill(role="textbox", name="Search", value=words))
        return await self.press("Search")

    async def log_in(self, name: str) -> Any:
        """Log in as a seeded customer."""
        await self.open("/accounts/login/")
        await self.fill(login__username=catalogue.email(name), login__password=catalogue.PASSWORD)
        return await self.press("Log In")

    async def put_in_basket(self, article: Article) -> Any:
        """Open the article's page and add one."""
        await self.open(article.path)
        return await self.click("#add_to_basket_form button[type=submit]")  # recommended articles have one too

    async def set_quantity(self, quantity: int, line: int = 0) -> Any:
        """On the basket page: change a line's quantity."""
        await self.face.act(Fill(selector=f"#id_form-{line}-quantity", value=str(quantity)))
        return await self.face.act(Click(role="button", name="Update", exact=True, nth=line))

    async def choose_delivery(self, code: str) -> Any:
        """On the shipping method page: ``post``, ``courier`` or ``bicycle``."""
        return await self.click(f'form:has(input[name=method_code][value="{code}"]) button')

    async def place_order(self) -> Any:
        """From the payment page to the thank-you page."""
        await self.follow("Continue")
        return await self.press("Place order")


Agent = Callable[[Shopper], Awaitable[None]]


async def look_around(shopper: Shopper) -> None:
    """Search for a kind of article, sort by eye, open one and read to its end."""
    await shopper.open("/")
    await shopper.search(shopper.articles[0].kind.name.lower())
    await shopper.scroll(500)
    await shopper.open(shopper.articles[0].path)
    await shopper.scroll(700)


async def register(shopper: Shopper) -> None:
    """Make an account."""
    await shopper.open("/accounts/login/")
    await shopper.fill(
        registration__email=newcomer(shopper.seed),
        registration__password1=catalogue.PASSWORD,
        registration__password2=catalogue.PASSWORD,
    )
    await shopper.press("Register")


def newcomer(seed: int) -> str:
    """The address under which ``register`` makes its account."""
    return f"newcomer-{seed}@shop.example"


async def edit_profile(shopper: Shopper) -> None:
    """Log in and change the name, as after a wedding."""
    await shopper.log_in(shopper.customer)
    await shopper.open("/accounts/profile/edit/")
    await shopper.fill(last_name=MARRIED)
    await shopper.press("Save")


MARRIED = "Seaborn"


async def fill_basket(shopper: Shopper) -> None:
    """Two articles, three of the first, and the voucher; nothing is ordered."""
    for article in shopper.articles[:2]:
        await shopper.put_in_basket(article)
    await shopper.open("/basket/")
    await shopper.set_quantity(3)
    await shopper.follow("I have a voucher code...")
    await shopper.fill(code=catalogue.VOUCHER)
    await shopper.press("Add voucher")


async def write_review(shopper: Shopper) -> None:
    """Log in (unless a session is there already) and review the first article."""
    await shopper.log_in(shopper.customer)
    await review_when_logged_in(shopper)


async def review_when_logged_in(shopper: Shopper) -> None:
    """The second half of ``write_review``."""
    await shopper.open(f"{shopper.articles[0].path}reviews/add/")
    await shopper.fill(title=f"Kept it ({shopper.seed})")
    await shopper.click(".reviewrating .star-rating i", nth=3)
    await shopper.fill(body="It does what it should, quietly, every day.")
    await shopper.press("Save review")


async def order_as_guest(shopper: Shopper) -> None:
    """Buy one article without an account, to the thank-you page."""
    await shopper.put_in_basket(shopper.articles[0])
    await shopper.open("/checkout/")
    await shopper.fill(username=newcomer(shopper.seed))
    await shopper.press("Continue")
    await shopper.fill(first_name="Greta", last_name="Gale", **NEW_ADDRESS)
    await shopper.press("Continue")
    await shopper.choose_delivery("post")
    await shopper.place_order()


NEW_ADDRESS = {"line1": "1 Lighthouse Steps", "line4": "St Ives", "postcode": "TR26 1LP"}


async def begin_checkout(shopper: Shopper) -> None:
    """Log in, take one article to the checkout, and stop with the address form half filled."""
    await shopper.log_in(shopper.customer)
    await shopper.put_in_basket(shopper.articles[0])
    await shopper.open("/checkout/")
    await shopper.fill(first_name="Greta", last_name="Gale", line1=NEW_ADDRESS["line1"])


# --- four ways on from there ------------------------------------------------------------------------------------


async def finish_to_new_address(shopper: Shopper) -> None:
    """Fill in what the form still lacks and order by post."""
    await shopper.fill(line4=NEW_ADDRESS["line4"], postcode=NEW_ADDRESS["postcode"])
    await shopper.press("Continue")
    await shopper.choose_delivery("post")
    await shopper.place_order()


async def finish_to_own_address(shopper: Shopper) -> None:
    """Think better of it: the address of the address book, by bicycle."""
    await shopper.press("Ship to your default shipping address")
    await shopper.choose_delivery("bicycle")
    await shopper.place_order()


async def finish_with_three(shopper: Shopper) -> None:
    """Go back to the basket, take three, and order by courier."""
    await shopper.follow("return to basket")
    await shopper.set_quantity(3)
    await shopper.open("/checkout/")
    await shopper.press("Ship to your default shipping address")
    await shopper.choose_delivery("courier")
    await shopper.place_order()


async def abandon(shopper: Shopper) -> None:
    """Give up: empty the basket and log out."""
    await shopper.follow("return to basket")
    await shopper.follow("Remove")
    await shopper.follow("Logout")
