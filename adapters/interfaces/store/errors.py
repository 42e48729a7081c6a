"""What can be wrong with a state store."""

from __future__ import annotations

from statefork.journal.errors import StateforkError


class StoreUnavailable(StateforkError):
    """A store can't be made or mounted here; the hint says what is missing, and what to install."""

    code = "store_unavailable"


class StoreExists(StateforkError):
    """The state directory has a store already, or resources that were not asked to be moved into one."""

    code = "store_exists"


class StoreMissing(StateforkError):
    """The state directory has no store."""

    code = "store_missing"


class StoreForeign(StateforkError):
    """What lies in the store's place is not this state directory's store; it was not touched."""

    code = "store_foreign"


class StoreFull(StateforkError):
    """There is no room: in the store, or on the disk that it lies on. What was acknowledged is all there."""

    code = "store_full"


class StoreNotLarger(StateforkError):
    """A store only grows: what was asked for is not larger than it is, by at least a group of its blocks."""

    code = "store_not_larger"


class StoreLost(StateforkError):
    """The store was unmounted, or its file system gave up, while it was in use: nothing more can be published."""

    code = "store_lost"
