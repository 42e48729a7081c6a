"""Files: MEDIA_ROOT, the storages under it, and file sessions follow the binding.

Without a binding MEDIA_ROOT is a path that can't exist, so code that captured it at import reads and writes nothing.
A storage with a place of its own below MEDIA_ROOT moves along; one elsewhere can be read but not written.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.bound import CURRENT, Bound, NoEnvironment, Stores, current

UNBOUND_MEDIA_ROOT = "/dev/null/statefork-no-environment"


def media_root() -> str:
    """The media directory of the running code's environment. Raises NoEnvironment."""
    bound = current()
    bound.pass_gate()
    address = bound.stores.get("media")
    if address is None:
        raise NoEnvironment("media files are not a store of this environment: declare 'media' in the contract")
    return str(address["path"])


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - as Django does it: normalised, and no link is followed


def _declared_roots() -> list[str]:
    """Where the settings put media files: MEDIA_ROOT, and a place of its own that the default storage names."""
    from django.conf import settings

    default = settings.STORAGES.get("default", {}).get("OPTIONS", {}).get("location")
    return [_absolute(str(root)) for root in (settings._wrapped.MEDIA_ROOT, default) if root]


class _Location:
    """``base_location`` and ``location`` of a storage, found anew at each use; a class may fix them, even to None."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, storage: Any, owner: Any) -> Any:
        if storage is None:
            return self
        return storage.__dict__[self._name] if self._name in storage.__dict__ else _location(storage)

    def __set__(self, storage: Any, value: Any) -> None:
        storage.__dict__[self._name] = value


def _location(storage: Any) -> str:
    """Where a storage is now."""
    if storage._location is None:
        return media_root()
    own = _absolute(str(storage._location))
    for root in (*_declared_roots(), UNBOUND_MEDIA_ROOT):
        if own == root or own.startswith(root + os.sep):
            return _absolute(os.path.join(media_root(), os.path.relpath(own, root)))  # noqa: PTH118 - see _absolute
    return own


def _guard_writes(storage_class: Any, method: str) -> None:
    original = getattr(storage_class, method)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if method == "_open" and not set(kwargs.get("mode", args[1] if len(args) > 1 else "rb")) & set("wax+"):
            return original(self, *args, **kwargs)
        root = Path(media_root()).resolve()
        if not Path(self.location).resolve().is_relative_to(root):
            raise NoEnvironment(f"{self.location} is outside of every store of this environment: it can't be written")
        return original(self, *args, **kwargs)

    setattr(storage_class, method, guarded)


def install() -> None:
    """Patch settings, FileSystemStorage, the ``serve`` view and file sessions."""
    import django.views.static
    from django.conf import LazySettings, settings
    from django.contrib.sessions.backends.file import SessionStore
    from django.core.files.storage import FileSystemStorage

    bool(settings.INSTALLED_APPS)  # the settings must be loaded before MEDIA_ROOT is taken over

    def setting(self: Any) -> str:
        if not self._wrapped.MEDIA_ROOT:
            return ""  # some packages take that as "write no files of your own"
        bound = CURRENT.get()
        return UNBOUND_MEDIA_ROOT if bound is None or "media" not in bound.stores else media_root()

    LazySettings.MEDIA_ROOT = property(setting)
    for name in ("base_location", "location"):
        descriptor = _Location()
        descriptor.__set_name__(FileSystemStorage, name)
        setattr(FileSystemStorage, name, descriptor)
    for method in ("_open", "_save", "delete"):
        _guard_writes(FileSystemStorage, method)

    serve = django.views.static.serve

    def serve_bound(request: Any, path: str, document_root: Any = None, show_indexes: bool = False) -> Any:
        if str(document_root) == UNBOUND_MEDIA_ROOT:  # captured when the URLconf was imported
            document_root = media_root()
        return serve(request, path, document_root=document_root, show_indexes=show_indexes)

    django.views.static.serve = serve_bound

    def session_path(cls: Any) -> str:
        bound = current()
        bound.pass_gate()
        return str(bound.stores["sessions"]["path"])

    SessionStore._get_storage_path = classmethod(session_path)


def verify_settings() -> None:
    """Default storage must be one that can be bound."""
    from django.core.files.storage import FileSystemStorage, InMemoryStorage, storages

    for alias in storages.backends:
        backend = storages[alias]
        if isinstance(backend, InMemoryStorage) or (alias == "default" and not isinstance(backend, FileSystemStorage)):
            raise ValueError(f"STORAGES[{alias!r}]: {type(backend).__name__} keeps files that no environment can own")


def check_stores(stores: Stores) -> None:
    """File sessions need their store."""
    from django.conf import settings

    if settings.SESSION_ENGINE == "django.contrib.sessions.backends.file" and "path" not in stores.get("sessions", {}):
        raise ValueError("SESSION_ENGINE keeps sessions in files, and the contract declares no store 'sessions'")


def ready(bound: Bound) -> None:
    """The declared directories are there."""
    for name in ("media", "sessions"):
        if name in bound.stores and not Path(str(bound.stores[name]["path"])).is_dir():
            raise FileNotFoundError(f"store {name!r} has no directory")
