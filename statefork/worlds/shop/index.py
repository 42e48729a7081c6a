"""Makes the shop's search index from its database, for contracts in which the index is a derived resource.

``python -m statefork.worlds.shop.build`` makes the same one with the rest of the base; here it is made anew for
whatever a database holds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def build(output: Path, inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Index every product of the database ``inputs["db"]`` into ``output``."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "statefork.worlds.shop.settings"
    from statefork.worlds.shop import settings

    settings.DATABASES["default"]["NAME"] = str(inputs["db"]["path"])
    settings.HAYSTACK_CONNECTIONS["default"]["PATH"] = str(output)

    import django
    from django.core.management import call_command

    django.setup()
    call_command("rebuild_index", verbosity=0, interactive=False, batch_size=1000)
