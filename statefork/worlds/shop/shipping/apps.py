"""The forked application's configuration."""

from __future__ import annotations

from oscar.apps.shipping import apps


class ShippingConfig(apps.ShippingConfig):  # type: ignore[misc]  # Oscar ships no types
    """Found by Oscar's class loader by its label, ``shipping``."""

    name = "statefork.worlds.shop.shipping"
