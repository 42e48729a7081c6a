"""Which adapters exist, and how a contract entry becomes a resource.

Adapters of third parties announce themselves by the entry-point group ``statefork.adapters``: name = module with
``Options`` (a msgspec Struct) and ``make(name, options, services)``. A module whose adapter fits some classes of
durability only names them in ``DURABILITIES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import ModuleType

import msgspec

from statefork.engine.contract import Contract
from statefork.engine.errors import ContractError
from statefork.engine.masks import Columned, Cookied
from statefork.engine.places import Problem
from statefork.engine.ports import Resource, Services

ENTRY_POINT_GROUP = "statefork.adapters"

BUILT_IN = {
    "browser": "statefork.adapters.resources.browser",
    "derived": "statefork.adapters.resources.derived",
    "files": "statefork.adapters.resources.files",
    "memory": "statefork.adapters.resources.memory",
    "postgres": "statefork.adapters.resources.postgres",
    "process": "statefork.adapters.resources.process",
    "sqlite": "statefork.adapters.resources.sqlite",
    "valkey": "statefork.adapters.resources.valkey",
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
    """Raise ContractError for options that an adapter does not know or can't take: all of them, with their places."""
    problems: list[Problem] = []
    for name, spec in contract.resources.items():
        module = adapter_module(spec.adapter)
        try:
            contract.convert(name, module.Options)
        except ContractError as error:
            problems += error.problems
        fitting = getattr(module, "DURABILITIES", (spec.durability,))
        if spec.durability not in fitting:
            message = f"adapter {spec.adapter!r} is for {' or '.join(fitting)} resources"
            problems.append(Problem(place=contract.place(name, "durability"), message=message))
    if problems:
        raise ContractError.of(problems)


def make_resources(contract: Contract, services: Services) -> dict[str, Resource]:
    """A resource object for each entry of the contract. Raises ContractError with the place of a bad option."""
    made: dict[str, Resource] = {}
    for name in contract.order:
        spec = contract.resources[name]
        module = adapter_module(spec.adapter)
        own = msgspec.structs.replace(services, durability=spec.durability)
        options = contract.convert(name, module.Options)
        try:
            made[name] = module.make(name, options, own)
        except ContractError as error:
            raise _placed(contract, name, error) from error
    return made


def check_masks(contract: Contract, resources: Mapping[str, Resource]) -> None:
    """Raise ContractError, with its place, for a mask of columns or cookies in a resource that has none."""
    kinds: dict[str, tuple[type, str]] = {"columns": (Columned, "tables"), "cookies": (Cookied, "cookies")}
    problems = [
        Problem(
            place=contract.place_of("masks", key, name),
            message=f"{name!r} has no {kinds[key][1]}: {resources[name].adapter}",
        )
        for key, name in contract.masks.resources
        if not isinstance(resources[name], kinds[key][0])
    ]
    if problems:
        raise ContractError.of(problems)


def _placed(contract: Contract, resource: str, error: ContractError) -> ContractError:
    """With the line of the option, where the adapter told only its key."""
    key, entry = str(error.facts.get("key") or ""), f"resources.{resource}."
    if error.problems or not key.startswith(entry):
        return error
    message = error.message.removeprefix(f"{key}: ")
    problem = Problem(place=contract.place(resource, key.removeprefix(entry)), message=message)
    return ContractError.of([problem], hint=error.hint)
