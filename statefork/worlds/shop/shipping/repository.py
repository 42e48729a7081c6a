"""The shipping methods are rows: the dashboard can edit them, and an environment has its own."""

from __future__ import annotations

from typing import Any

from oscar.apps.shipping import repository
from oscar.core.loading import get_model


class Repository(repository.Repository):  # type: ignore[misc]  # Oscar ships no types
    """Charges per order and item, from the database, cheapest first."""

    def get_available_shipping_methods(self, basket: Any, shipping_addr: Any = None, **_: Any) -> list[Any]:
        """Those that deliver to the address's country; all while no address is known."""
        methods = get_model("shipping", "OrderAndItemCharges").objects.order_by("price_per_order", "id")
        if shipping_addr is not None:
            methods = methods.filter(countries=shipping_addr.country)
        return list(methods)
