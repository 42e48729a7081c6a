"""Which adapters exist, and how a contract entry becomes a resource.

Adapters of third parties announce themselves by the entry-point group ``statefork.adapters``: name = module with
``Options`` (a msgspec Struct) and ``make(name, options, services)``. A module whose adapter fits some classes of
durability only names them in ``DURABILITIES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import msgspec

from statefork.adapters.resources.derived.options import Options as Derived
from statefork.adapters.resources.process import Options as Private
from statefork.adapters.resources.process import ProcessResource
from statefork.adapters.resources.process.programs import why_not, why_not_run
from statefork.engine.contract import PRIVATE_ADAPTER, Contract
from statefork.engine.errors import ContractError, MissingDependency
from statefork.engine.masks import Columned, Cookied
from statefork.engine.options import unknown
from statefork.engine.places import Problem
from statefork.engine.ports import Resource, Services

ENTRY_POINT_GROUP = "statefork.adapters"
DERIVED = "derived"
NONE = "none"  # the name of the strategy of an adapter that can't work here

BUILT_IN = {
    "browser": "statefork.adapters.resources.browser",
    "derived": "statefork.adapters.resources.derived",
    "files": "statefork.adapters.resources.files",
    "memory": "statefork.adapters.resources.memory",
    "postgres": "statefork.adapters.resources.postgres",
    "process": "statefork.adapters.resources.process",
    "shell": "statefork.adapters.resources.shell",
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


def unavailable(adapter: str) -> str:
    """Why an adapter can't be used here at all; empty when its module can be loaded."""
    if adapter not in adapter_names():
        return unknown("adapter", adapter, ())
    try:
        adapter_module(adapter)
    except ImportError as error:
        return f"adapter {adapter!r} can't be loaded: {error}"
    return ""


def check_options(contract: Contract) -> None:
    """Raise ContractError for options that an adapter does not know or can't take: all of them, with their places."""
    problems: list[Problem] = []
    for name, spec in contract.resources.items():
        problems += _bad_private(contract, name)
        if spec.private and unavailable(spec.adapter):
            continue
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


def _bad_private(contract: Contract, name: str) -> Iterator[Problem]:
    spec = contract.resources[name]
    if not spec.private:
        return
    if spec.adapter == PRIVATE_ADAPTER:
        message = f"adapter {PRIVATE_ADAPTER!r} is private already"
        yield Problem(place=contract.place(name, "private"), message=message)
    try:
        contract.convert(name, Private, private=True)
    except ContractError as error:
        yield from error.problems


def check_programs(contract: Contract, base_dir: Path | None) -> None:
    """Raise ContractError, with the places, for programs that a contract names and that are not there or can't be run.

    ``base_dir``: what the contract's paths are relative to; None: it is not made yet, and what lies there is not looked
    at. Of what stands in for an adapter only where that can't be loaded here.
    """
    problems: list[Problem] = []
    for name, spec in contract.resources.items():
        private = bool(spec.private and unavailable(spec.adapter))
        if private or spec.adapter == PRIVATE_ADAPTER:
            problems += _bad_program(contract, name, base_dir, private=private)
        elif spec.adapter == DERIVED:
            problems += _bad_builder(contract, name, base_dir)
    if problems:
        raise ContractError.of(problems)


def _bad_program(contract: Contract, name: str, base_dir: Path | None, *, private: bool) -> Iterator[Problem]:
    if why := why_not(contract.convert(name, Private, private=private), base_dir):
        yield Problem(place=contract.place(name, "private.command" if private else "command"), message=why)


def _bad_builder(contract: Contract, name: str, base_dir: Path | None) -> Iterator[Problem]:
    options = contract.convert(name, Derived)
    directory = base_dir / options.path if base_dir is not None else None
    if options.command and (why := why_not_run(options.command[0], options.environment, directory)):
        yield Problem(place=contract.place(name, "command"), message=why)


def make_resources(contract: Contract, services: Services) -> dict[str, Resource]:
    """A resource object for each entry of the contract: by its adapter, or, where that can't be had, by what stands in.

    Raises ContractError with the place of a bad option, MissingDependency.
    """
    made: dict[str, Resource] = {}
    for name in contract.order:
        spec = contract.resources[name]
        own = msgspec.structs.replace(services, durability=spec.durability)
        try:
            made[name] = _made(contract, name, own)
        except ContractError as error:
            raise _placed(contract, name, error) from error
    return made


def _made(contract: Contract, name: str, services: Services) -> Resource:
    spec = contract.resources[name]
    why, better = (unavailable(spec.adapter) if spec.private else ""), ""
    if not why:
        module = adapter_module(spec.adapter)
        try:
            fine: Resource = module.make(name, contract.convert(name, module.Options), services)
        except MissingDependency as missing:
            if not spec.private:
                raise
            why, better = missing.message, missing.hint
        else:
            strategy = fine.strategy() if spec.private else None
            if strategy is None or strategy.name != NONE:
                return fine
            why, better = strategy.reason, strategy.faster
    if problems := list(_bad_program(contract, name, services.base_dir, private=True)):
        raise ContractError.of(problems)
    options = contract.convert(name, Private, private=True)
    host = spec.options.get("host")
    if not options.host and isinstance(host, str):  # the site is the same, however it is served
        options = msgspec.structs.replace(options, host=host)
    instead = f"in place of {spec.adapter!r}, since {why}"
    return ProcessResource(name, options, services, instead=instead, better=f"{spec.adapter}: {better or 'install it'}")


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
