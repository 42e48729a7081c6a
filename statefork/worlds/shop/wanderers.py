"""Agents that do many different things: each wanders through the shop in its own order, the same for the same seed.

They are for what must hold after *every* action: forms are left half filled in, tabs come and go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from statefork.adapters.resources.browser.actions import Back, CloseTab, Forward, NewTab, SwitchTab
from statefork.worlds.shop.agents import NEW_ADDRESS, Shopper, review_when_logged_in


class Wanderer:
    """A shopper, and what it has done so far."""

    def __init__(self, shopper: Shopper) -> None:
        self.shopper = shopper
        self.random = Random(f"wanderer {shopper.seed}")
        self.done: set[str] = set()

    async def wander(self, errands: int) -> None:
        """Do so many errands, each of which is possible when it is begun."""
        await self.shopper.open("/")
        for _ in range(errands):
            possible = [name for name, needs in NEEDS.items() if needs <= self.done and not self._is_over(name)]
            name = self.random.choice(possible)
            await ERRANDS[name](self)
            self.done.add(name)

    def _is_over(self, name: str) -> bool:
        return (name in ONCE and name in self.done) or (name == "half a form" and "log in" in self.done)

    async def look(self) -> None:
        """Search, and read what is found."""
        article = self.random.choice(self.shopper.articles)
        await self.shopper.search(article.kind.name.lower())
        await self.shopper.scroll(self.random.randrange(100, 900))
        await self.shopper.open(article.path)

    async def leaf(self) -> None:
        """Pages of the catalogue, back and forth."""
        await self.shopper.open("/catalogue/")
        await self.shopper.open(f"/catalogue/?page={self.random.randrange(2, 4)}")
        await self.shopper.face.act(Back())
        await self.shopper.face.act(Forward())

    async def take(self) -> None:
        """Something for the basket."""
        await self.shopper.put_in_basket(self.random.choice(self.shopper.articles))

    async def count(self) -> None:
        """More of it."""
        await self.shopper.open("/basket/")
        await self.shopper.set_quantity(self.random.randrange(2, 6))

    async def two_tabs(self) -> None:
        """An article beside the page, which stays as it is."""
        article = self.random.choice(self.shopper.articles)
        await self.shopper.face.act(NewTab(url=f"{self.shopper.site}{article.path}"))
        await self.shopper.scroll(300)
        await self.shopper.face.act(SwitchTab(tab=0))
        await self.shopper.face.act(CloseTab(tab=1))

    async def half_a_form(self) -> None:
        """Begin to register, and be called away."""
        await self.shopper.open("/accounts/login/")
        await self.shopper.fill(registration__email=f"half-{self.random.randrange(1000)}@shop.example")
        await self.shopper.scroll(200)

    async def log_in(self) -> None:
        """As a customer."""
        await self.shopper.log_in(self.shopper.customer)

    async def account(self) -> None:
        """Another name."""
        await self.shopper.open("/accounts/profile/edit/")
        await self.shopper.fill(last_name=f"Seaborn-{self.random.randrange(1000)}")
        await self.shopper.press("Save")

    async def review(self) -> None:
        """An opinion."""
        await review_when_logged_in(self.shopper)

    async def checkout(self) -> None:
        """To the address, of which only a part is typed."""
        await self.shopper.open("/checkout/")
        await self.shopper.fill(first_name="Greta", last_name="Gale", line1=NEW_ADDRESS["line1"])

    async def order(self) -> None:
        """To the thank-you page."""
        await self.shopper.open("/checkout/")
        await self.shopper.press("Ship to your default shipping address")
        await self.shopper.choose_delivery("post")
        await self.shopper.place_order()
        self.done -= {"take", "order"}  # the basket is empty


ERRANDS: dict[str, Callable[[Wanderer], Awaitable[None]]] = {
    "look": Wanderer.look,
    "leaf": Wanderer.leaf,
    "take": Wanderer.take,
    "count": Wanderer.count,
    "two tabs": Wanderer.two_tabs,
    "half a form": Wanderer.half_a_form,
    "log in": Wanderer.log_in,
    "account": Wanderer.account,
    "review": Wanderer.review,
    "checkout": Wanderer.checkout,
    "order": Wanderer.order,
}
NEEDS: dict[str, frozenset[str]] = {
    "look": frozenset(),
    "leaf": frozenset(),
    "take": frozenset(),
    "count": frozenset({"take"}),
    "two tabs": frozenset(),
    "half a form": frozenset(),
    "log in": frozenset(),
    "account": frozenset({"log in"}),
    "review": frozenset({"log in"}),
    "checkout": frozenset({"log in", "take"}),
    "order": frozenset({"log in", "take"}),
}
ONCE = frozenset({"log in", "half a form", "review"})
"""What can't be done twice, or looks otherwise when one is logged in."""
