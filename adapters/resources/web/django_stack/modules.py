"""Module-level caches of rows, which Django keeps for the life of the process: split by binding."""

from __future__ import annotations

from collections import UserDict, UserList
from typing import Any

from statefork.adapters.resources.web.bound import Bound, Stores, current


class BoundDict(UserDict[Any, Any]):
    """A module-level dict of which each environment sees its own; refused without one."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def data(self) -> dict[Any, Any]:  # type: ignore[override]  # UserDict declares an attribute
        """The running code's own dict."""
        own: dict[Any, Any] = current().slots.setdefault(self._name, {})
        return own


class BoundList(UserList[Any]):
    """The same for a list."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def data(self) -> list[Any]:  # type: ignore[override]  # UserList declares an attribute
        """The running code's own list."""
        own: list[Any] = current().slots.setdefault(self._name, [])
        return own


class BoundAttribute:
    """A dict attribute of long-lived objects (managers), split by object and binding."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: Any) -> Any:
        return self if holder is None else current().slots.setdefault((self._name, id(holder)), {})

    def __set__(self, holder: Any, value: Any) -> None:
        """Managers set an empty dict when they are made; there is nothing to keep."""
        assert value == {}


def install() -> None:
    """The outbox of the in-memory mail backend: letters of one environment must not be read in another."""
    from django.core import mail

    mail.outbox = BoundList("mail.outbox")


def _split_sites() -> None:
    from django.contrib.sites import models

    models.SITE_CACHE = cache = BoundDict("sites.SITE_CACHE")
    # the original rebinds the module's name to a plain dict, which all environments would share
    models.SiteManager.clear_cache = lambda self: cache.clear()


def verify_settings() -> None:
    """Split the caches of the applications that are installed, now that their modules exist."""
    from django.apps import apps

    if apps.is_installed("django.contrib.sites"):
        _split_sites()
    if apps.is_installed("django.contrib.contenttypes"):
        from django.contrib.contenttypes.models import ContentTypeManager

        ContentTypeManager._cache = BoundAttribute("contenttypes._cache")


def check_stores(stores: Stores) -> None:
    """Nothing of this is a store."""


def ready(bound: Bound) -> None:
    """Nothing to reach."""
