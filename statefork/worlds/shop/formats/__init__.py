"""How dates are written in the shop, by language."""
