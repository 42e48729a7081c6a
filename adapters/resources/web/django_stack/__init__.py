"""Django as a stack: an unmodified WSGI project whose stores follow the environment of the running request.

``load`` patches Django *before* the project is imported, and the project's packages stay untouched. What it reaches:
database connections, caches, file storage and MEDIA_ROOT, Haystack's search engines, sessions, and the module-level
caches of Django itself. Settings that keep state where no store of the contract is are refused at the start.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from statefork.adapters.resources.web.bound import Bound, Stores
from statefork.adapters.resources.web.django_stack import caches, databases, files, modules, search
from statefork.adapters.resources.web.stack import Application, Setup

_PARTS = (databases, caches, files, search, modules)


class DjangoStack:
    """What the host asks of a stack. One per process."""

    name = "django"

    def load(self, setup: Setup) -> Application:
        """Patch Django, import the project and return its application. Raises whatever the project raises."""
        os.environ["DJANGO_SETTINGS_MODULE"] = setup.settings
        importlib.import_module(setup.settings)
        for part in _PARTS:
            part.install()
        from django.core.wsgi import get_wsgi_application

        application: Application = get_wsgi_application()
        from django.urls import get_resolver

        # else the first request would import the views, and what they make at import would be its environment's
        bool(get_resolver().url_patterns)
        for part in _PARTS:
            part.verify_settings()
        return application

    def check_stores(self, stores: Stores) -> None:
        """Raise ValueError, naming the store, where the project needs one that the contract does not declare."""
        for part in _PARTS:
            part.check_stores(stores)

    def ready(self, bound: Bound) -> None:
        """Reach every declared store once, in the bound context; raises what reaching it raises."""
        for part in _PARTS:
            part.ready(bound)

    def released(self, bound: Bound) -> None:
        """The binding is gone: drop what is kept of it outside of the binding itself."""
        caches.drop(bound)

    def stats(self) -> dict[str, Any]:
        """Everything is kept on the bindings."""
        return {}

    def holders(self, first: str, second: str) -> list[str]:
        """Nothing runs outside of this process."""
        return []

    def stop(self) -> None:
        """Nothing runs outside of this process."""
