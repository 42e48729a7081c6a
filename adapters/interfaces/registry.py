"""Which adapters exist, and how a contract entry becomes a resource.

Adapters of third parties announce themselves by the entry-point group ``statefork.adapters``: name = module with
``Options`` (a msgspec Struct) and ``make(name, options, services)``.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import ModuleType

from statefork.engine.contract import Contract
from statefork.engine.ports import Resource, Services

ENTRY_POINT_GROUP = "statefork.adapters"

BUILT_IN = {
    "browser": "statefork.adapters.resources.browser",
    "files": "statefork.adapters.resources.files",
    "memory": "statefork.adapters.resources.memory",
    "sqlite": "statefork.adapters.resources.sqlite",
    "web": "statefork.adapters.resources.web",
}


def adapter_names() -> frozenset[str]:
    """Every adapter that a contract may name here."""
    return frozenset(BUILT_IN) | {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}


def adapter_module(name: str) -> ModuleType:
    """The module of an adapter. Raises KeyError for a name that ``adapter_names`` does not list."""
    if name in BUILT_IN:
        return importlib.import_module(BUILT_IN[name])
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name=name) or (None,)
    if point is None:
        raise KeyError(name)
    module: ModuleType = point.load()
    return module


def check_options(contract: Contract) -> None:
    """Raise ContractError, with the place, for options that an adapter does not know or can't take."""
    for name in contract.order:
        contract.convert(name, adapter_module(contract.resources[name].adapter).Options)


def make_resources(contract: Contract, services: Services) -> dict[str, Resource]:
    """A resource object for each entry of the contract. Raises ContractError with the place of a bad option."""
    made: dict[str, Resource] = {}
    for name in contract.order:
        spec = contract.resources[name]
        module = adapter_module(spec.adapter)
        made[name] = module.make(name, contract.convert(name, module.Options), services)
    return made
