"""The shop as it is, and the scan."""

from statefork.worlds.shop.settings import *  # noqa: F403  the settings under test, unchanged

ROOT_URLCONF = "scanned.urls"
