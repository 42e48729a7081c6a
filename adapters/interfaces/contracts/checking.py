"""Everything that can be said of a contract without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from statefork.adapters.interfaces.contracts.covering import MISSING, Covered, cover, hosts, to_fill_in
from statefork.adapters.interfaces.contracts.reading import Tasks, read_tasks
from statefork.adapters.interfaces.registry import check_options, check_programs, unavailable
from statefork.adapters.interfaces.worlds import read_contract
from statefork.adapters.resources.process import Options as ProcessOptions
from statefork.engine.contract import PRIVATE_ADAPTER, Contract, check_bases
from statefork.engine.errors import ContractError
from statefork.engine.places import Problem

_NAMING = ("stores", "inputs")  # options that name resources, which must then be among depends_on


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. ``problems`` keep an engine from opening the contract, or from keeping what tasks read."""

    file: str
    name: str = ""
    resources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    covered: tuple[Covered, ...] = ()
    unclear: tuple[str, ...] = ()  # what of the tasks was not understood

    @property
    def missing(self) -> tuple[Covered, ...]:
        """What tasks read and the contract does not keep."""
        return tuple(one for one in self.covered if one.state == MISSING)

    @property
    def good(self) -> bool:
        """Nothing is wrong, and nothing is missing."""
        return not self.problems and not self.missing


def check_contract(contract: str, tasks: Path | None = None, sites: Mapping[str, str] | None = None) -> Checked:
    """Look at a contract, and at whether it covers a task file. Raises ContractError where either can't be read."""
    wanted = read_tasks(tasks) if tasks is not None else None
    try:
        parsed, file = read_contract(contract)
    except ContractError as error:
        if not error.problems:
            raise
        return Checked(file=contract, problems=tuple(map(str, error.problems)))
    problems = [*_refused(parsed, file), *map(str, _dependencies(parsed)), *map(str, to_fill_in(parsed))]
    return _covered(
        Checked(
            file=str(file),
            name=parsed.name,
            resources=tuple(parsed.order),
            problems=tuple(problems),
            notes=tuple(_notes(parsed)),
        ),
        parsed,
        wanted,
        sites or {},
    )


def _covered(checked: Checked, parsed: Contract, wanted: Tasks | None, sites: Mapping[str, str]) -> Checked:
    if wanted is None:
        return checked
    return msgspec.structs.replace(checked, covered=tuple(cover(parsed, wanted, sites)), unclear=wanted.unclear)


def _refused(contract: Contract, file: Path) -> Iterator[str]:
    """What opening would refuse."""
    there = file.parent if contract.build is None else None
    filled_in = not any(to_fill_in(contract))
    try:
        check_options(contract)
    except ContractError as error:
        yield from _told(error)
        return
    if there is not None:
        try:
            check_bases(contract, there)
        except ContractError as error:
            yield from _told(error)
    if filled_in:
        try:
            check_programs(contract, there)
        except ContractError as error:
            yield from _told(error)


def _told(error: ContractError) -> tuple[str, ...]:
    return tuple(map(str, error.problems)) if error.problems else (error.message,)


def _dependencies(contract: Contract) -> Iterator[Problem]:
    """Resources that an option names and ``depends_on`` does not."""
    for name, spec in contract.resources.items():
        for key in _NAMING:
            named = spec.options.get(key)
            values = list(named.values()) if isinstance(named, dict) else named if isinstance(named, list) else []
            for value in values:
                if isinstance(value, str) and value not in spec.depends_on:
                    message = f"{value!r} is not among depends_on"
                    yield Problem(place=contract.place(name, key), message=message)
        for private in (False, True):
            for needed in sorted(_braced(contract, name, private=private) - set(spec.depends_on)):
                key = "private.command" if private else "command"
                message = f"{{{needed}.…}} is of a resource that is not among depends_on"
                yield Problem(place=contract.place(name, key), message=message)


def _braced(contract: Contract, name: str, *, private: bool) -> set[str]:
    spec = contract.resources[name]
    if not (spec.private if private else spec.adapter == PRIVATE_ADAPTER):
        return set()
    try:
        return contract.convert(name, ProcessOptions, private=private).needed()
    except ContractError:
        return set()  # told already


def _notes(contract: Contract) -> Iterator[str]:
    """What may be meant so."""
    if contract.build is not None:
        yield f"its bases are made by {contract.build}, and were not looked for"
    browsers = [spec for spec in contract.resources.values() if spec.adapter == "browser"]
    for host, name in hosts(contract).items():
        if browsers and not any(name in spec.depends_on for spec in browsers):
            yield f"{name}: no browser depends on it, so no page reaches {host}"
    for name, spec in contract.resources.items():
        if spec.private and (why := unavailable(spec.adapter)):
            yield f"{name}: a private backend stands in, since {why}"
