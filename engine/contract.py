"""Resource contracts: which state decides what a task observes and what it is worth, and how each part is kept.

A contract is TOML or JSON::

    [contract]
    name = "notes"

    [resources.db]
    adapter = "sqlite"
    base = "notes.sqlite3"

This module knows the keys that every resource has (``adapter``, ``durability``, ``depends_on``); all others are options
of the adapter, which gives a Struct for them (see :meth:`Contract.convert`). Every problem is told with its place, all
problems at once. Parsing does no I/O; :func:`load_contract` and :func:`check_bases` read the file system.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from statefork.engine.alone import shared
from statefork.engine.errors import ContractError
from statefork.engine.masks import NO_MASKS, Masks, Selector, parse_masks
from statefork.engine.options import faults, unknown
from statefork.engine.ordering import dependencies_first, find_cycle
from statefork.engine.places import KeyPath, Place, Places, Problem, json_places, toml_places
from statefork.engine.policy import FORMS, ON_DEMAND, SnapshotPolicy, parse_policy
from statefork.engine.retention import FORMS as RETENTIONS
from statefork.engine.retention import KEEP_ALL, Retention, parse_retention
from statefork.journal.values import Json

DURABILITIES = ("authoritative", "derived", "ephemeral")
PRIVATE_ADAPTER = "process"
DETERMINISMS = ("off", "record", "strict")
NAME_LENGTH_MAX = 63
CONTRACT_BYTES_MAX = 1_000_000
RESOURCES_MAX = 100

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_CONTRACT_KEYS = ("name", "build", "snapshots", "retention", "determinism")
_RESOURCE_KEYS = ("adapter", "durability", "depends_on", "private")
_TOML_ERROR = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

DECLARE_PRIVATE = 'or give it a private backend: private = { command = "…" }'

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class ResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a contract. ``options`` are the adapter's own keys, as they stand in the file.

    ``private``: the options of the private backend that stands in where the adapter can't be had here.
    """

    name: str
    adapter: str
    durability: str = "authoritative"
    depends_on: tuple[str, ...] = ()
    options: dict[str, Json] = {}
    private: dict[str, Json] = {}


class Contract:
    """A valid contract. ``order`` names every resource after those that it depends on.

    ``digest`` ignores layout, and ``snapshots``, ``retention``, ``determinism`` and ``masks``: when snapshots are taken
    and how long they stay, under what chance and time actions are carried out, and how observations are compared,
    changes nothing of what is in a generation, so that all may be restored under another.
    """

    def __init__(
        self,
        *,
        name: str,
        text: str,
        build: str | None,
        resources: Mapping[str, ResourceSpec],
        places: Places,
        snapshots: SnapshotPolicy = ON_DEMAND,
        retention: Retention = KEEP_ALL,
        determinism: str = "record",
        masks: Masks = NO_MASKS,
    ) -> None:
        self.name = name
        self.snapshots = snapshots
        self.retention = retention
        self.determinism = determinism
        self.masks = masks
        self.text = text
        self.build = build
        self.resources = dict(resources)
        self.order = dependencies_first(self.resources)
        self.digest = _digest(name, build, self.resources)
        self._places = places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Contract {self.name!r} {self.digest[:12]} {', '.join(self.order)}>"

    def place(self, resource: str, key: str = "") -> Place:
        """Where a resource's option stands in the file (``stores.database``), or the nearest key around it."""
        steps: KeyPath = tuple(part for part in key.split(".") if part)
        return self._places.of(("resources", resource, *steps))

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """The masks' selectors, each with its place."""
        listed = enumerate(self.masks.selectors)
        return tuple(Selector(text=text, place=self.place_of("masks", "selectors", at)) for at, text in listed)

    def place_of(self, *path: str | int) -> Place:
        """Where a key stands in the file, or the nearest key around it."""
        return self._places.of(path)

    def problem(self, resource: str, key: str, message: str) -> ContractError:
        """The error that an adapter raises about one of its options; it names the line."""
        return ContractError.of([Problem(place=self.place(resource, key), message=message)])

    def convert(self, resource: str, options: type[S], *, private: bool = False) -> S:
        """A resource's options as the adapter's Struct; with ``private`` those of what stands in for it.

        Raises ContractError with all that is unknown, missing, of a wrong type or refused by the Struct, each with its
        place.
        """
        spec = self.resources[resource]
        values, adapter = (spec.private, PRIVATE_ADAPTER) if private else (spec.options, spec.adapter)
        try:
            return msgspec.convert(values, options)
        except msgspec.ValidationError as error:
            above: KeyPath = ("resources", spec.name, "private") if private else ("resources", spec.name)
            problems = [
                Problem(place=self._places.of((*above, *path)), message=message)
                for path, message in faults(values, options, adapter, error)
            ]
            raise ContractError.of(sorted(problems, key=_in_order)) from error


def load_contract(path: Path, *, adapters: Collection[str] | None = None) -> Contract:
    """Read and parse a contract file. Raises ContractError, also where the file can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ContractError(f"can't read the contract {str(path)!r}: {reason}", file=str(path)) from error
    return parse_contract(text, str(path), adapters=adapters)


def parse_contract(text: str, file: str, *, adapters: Collection[str] | None = None) -> Contract:
    """The contract that a text holds; ``file`` is only named in errors.

    ``adapters``: the adapters there are; None accepts every name. Raises ContractError with all problems found.
    """
    document, places = _decode(text, file)
    reading = _Reading(places, adapters)
    contract = reading.contract(document, text)
    if contract is None or reading.problems:
        raise ContractError.of(sorted(reading.problems, key=_in_order))
    return contract


def check_bases(contract: Contract, directory: Path) -> None:
    """Raise ContractError for every ``base`` that does not exist; relative ones are relative to the directory."""
    problems = [
        Problem(place=contract.place(spec.name, key), message=f"there is nothing at {str(directory / base)!r}")
        for spec in contract.resources.values()
        for key, options in (("base", spec.options), ("private.base", spec.private))
        if isinstance(base := options.get("base"), str) and not (directory / base).exists()
    ]
    if problems:
        raise ContractError.of(problems, hint="Make the base first, or name a build module that makes it")


def _decode(text: str, file: str) -> tuple[Any, Places]:
    if len(text) > CONTRACT_BYTES_MAX:
        raise ContractError(f"{file}: a contract has at most {CONTRACT_BYTES_MAX} characters", file=file)
    try:
        if text.lstrip().startswith("{"):  # no TOML document begins like this
            return json.loads(text), json_places(text, file)
        return tomllib.loads(text), toml_places(text, file)
    except json.JSONDecodeError as error:
        _syntax(file, "JSON", error.msg, error.lineno, error.colno, error)
    except tomllib.TOMLDecodeError as error:
        at = _TOML_ERROR.search(str(error))
        message = _TOML_ERROR.sub("", str(error))
        line, column = (int(at["line"]), int(at["column"])) if at and at["line"] else (text.rstrip().count("\n") + 1, 1)
        _syntax(file, "TOML", message, line, column, error)
    except RecursionError as error:
        raise ContractError(f"{file}: nested too deeply", file=file) from error


def _syntax(file: str, language: str, message: str, line: int, column: int, cause: Exception) -> NoReturn:
    place = Place(file=file, line=line, column=column)
    raise ContractError.of([Problem(place=place, message=f"not valid {language}: {message}")]) from cause


class _Reading:
    """One pass over a decoded document, which collects what is wrong instead of stopping at the first."""

    def __init__(self, places: Places, adapters: Collection[str] | None) -> None:
        self.places = places
        self.adapters = adapters
        self.problems: list[Problem] = []

    def contract(self, document: Any, text: str) -> Contract | None:
        for path in self.places.repeated:
            self._wrong(path, "this name stands twice in one table")
        if not isinstance(document, dict):
            self._wrong((), "a contract is a table with [contract] and [resources.NAME]")
            return None
        self._known_keys((), document, ("contract", "resources", "masks"))
        head = self._table((), document, "contract")
        name = self._name(head)
        build = self._build(head)
        snapshots = self._manner(head, "snapshots", parse_policy, ON_DEMAND, FORMS)
        retention = self._manner(head, "retention", parse_retention, KEEP_ALL, RETENTIONS)
        determinism = self._manner(head, "determinism", _determinism, "record", "'off', 'record' or 'strict'")
        masks = self._masks(document)
        entries = self._table((), document, "resources")
        if entries is not None and not entries:
            self._wrong(("resources",), "a contract names at least one resource")
        if entries and len(entries) > RESOURCES_MAX:
            self._wrong(("resources",), f"a contract has at most {RESOURCES_MAX} resources, not {len(entries)}")
            return None
        specs = {key: spec for key, value in (entries or {}).items() if (spec := self._resource(key, value))}
        self._graph(specs, entries or {})
        self._alone(specs)
        for key, masked in [one for one in masks.resources if one[1] not in (entries or {})]:
            self._wrong(("masks", key, masked), unknown("resource", masked, entries or {}))
        if self.problems or name is None:
            return None
        return Contract(
            name=name,
            text=text,
            build=build,
            resources=specs,
            places=self.places,
            snapshots=snapshots,
            retention=retention,
            determinism=determinism,
            masks=masks,
        )

    def _wrong(self, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(place=self.places.of(path), message=message))

    def _known_keys(self, path: KeyPath, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                self._wrong((*path, key), unknown("key", key, known))

    def _table(self, path: KeyPath, within: Mapping[str, Any], key: str) -> dict[str, Any] | None:
        value = within.get(key)
        if isinstance(value, dict):
            return value
        self._wrong((*path, key), f"missing: a contract has a table [{key}]" if value is None else "must be a table")
        return None

    def _name(self, head: Mapping[str, Any] | None) -> str | None:
        if head is None:
            return None
        self._known_keys(("contract",), head, _CONTRACT_KEYS)
        name = head.get("name")
        if name is None:
            self._wrong(("contract", "name"), "missing: a contract has a name")
        elif (fault := _bad_name(name)) is not None:
            self._wrong(("contract", "name"), fault)
        else:
            return str(name)
        return None

    def _build(self, head: Mapping[str, Any] | None) -> str | None:
        build = (head or {}).get("build")
        if build is None or (isinstance(build, str) and _MODULE.fullmatch(build)):
            return build
        self._wrong(("contract", "build"), f"must be the name of a Python module, such as 'shop.build', not {build!r}")
        return None

    def _masks(self, document: Mapping[str, Any]) -> Masks:
        masks, problems = parse_masks(document.get("masks", {}))
        for path, message in problems:
            self._wrong(("masks", *path), message)
        return masks

    def _manner(
        self, head: Mapping[str, Any] | None, key: str, parse: Callable[[object], T | None], standard: T, forms: str
    ) -> T:
        """One of the keys that say in a few words how something is done."""
        if head is None or key not in head:
            return standard
        found = parse(head[key])
        if found is None:
            self._wrong(("contract", key), f"must be {forms}, not {head[key]!r}")
        return found or standard

    def _resource(self, name: str, value: Any) -> ResourceSpec | None:
        path: KeyPath = ("resources", name)
        if (fault := _bad_name(name)) is not None:
            self._wrong(path, fault)
        if not isinstance(value, dict):
            self._wrong(path, f"must be a table [resources.{name}]")
            return None
        adapter = value.get("adapter")
        if adapter is None:
            self._wrong((*path, "adapter"), "missing: a resource names its adapter")
        elif not isinstance(adapter, str):
            self._wrong((*path, "adapter"), f"must be a string, not {adapter!r}")
        elif self.adapters is not None and adapter not in self.adapters and "private" not in value:
            told = unknown("adapter", adapter, sorted(self.adapters))
            self._wrong((*path, "adapter"), told if told.endswith("?") else f"{told}; {DECLARE_PRIVATE}")
        durability = value.get("durability", DURABILITIES[0])
        if durability not in DURABILITIES:
            self._wrong((*path, "durability"), f"must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        depends_on = self._depends_on(path, value.get("depends_on", []))
        private = value.get("private", {})
        if not isinstance(private, dict) or ("private" in value and not private):
            self._wrong((*path, "private"), 'must be a table such as { command = "…" }')
            private = {}
        options = {key: option for key, option in value.items() if key not in _RESOURCE_KEYS}
        for key, option in (*options.items(), *(("private", each) for each in private.values())):
            self._plain((*path, key), option)
        return ResourceSpec(  # also of a wrong one: what else is wrong with it is told at the same time
            name=name,
            adapter=str(adapter),
            durability=durability,
            depends_on=depends_on,
            options=options,
            private=private,
        )

    def _depends_on(self, path: KeyPath, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self._wrong((*path, "depends_on"), "must be a list of resource names")
            return ()
        for index, name in enumerate(value):
            if name in value[:index]:
                self._wrong((*path, "depends_on", index), f"{name!r} stands twice")
        return tuple(value)

    def _plain(self, path: KeyPath, value: Any) -> None:
        """Options must be what JSON can say too, so that a contract has one meaning and one digest in both."""
        if isinstance(value, dict):
            for key, member in value.items():
                self._plain((*path, key), member)
        elif isinstance(value, list):
            for index, member in enumerate(value):
                self._plain((*path, index), member)
        elif isinstance(value, float) and not math.isfinite(value):
            self._wrong(path, "must be a finite number")
        elif value is not None and not isinstance(value, bool | int | float | str):
            self._wrong(path, "dates and times are written as strings")

    def _graph(self, specs: Mapping[str, ResourceSpec], entries: Mapping[str, Any]) -> None:
        for spec in specs.values():
            for index, needed in enumerate(spec.depends_on):
                if needed not in entries:
                    message = unknown("resource", needed, entries)
                    self._wrong(("resources", spec.name, "depends_on", index), message)
        cycle = find_cycle(specs)
        if cycle:
            path: KeyPath = ("resources", cycle[0], "depends_on")
            self._wrong(path, f"resources depend on each other in a circle: {' -> '.join(cycle)}")

    def _alone(self, specs: Mapping[str, ResourceSpec]) -> None:
        for name, option, message in shared({name: spec.options for name, spec in specs.items()}):
            self._wrong(("resources", name, option), message)


def _in_order(problem: Problem) -> tuple[int, int]:
    return problem.place.line, problem.place.column


def _determinism(mode: object) -> str | None:
    return mode if isinstance(mode, str) and mode in DETERMINISMS else None


def _bad_name(name: Any) -> str | None:
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= NAME_LENGTH_MAX:
        return None
    rule = "small letters, digits, '-' and '_', beginning with a letter"
    return f"{name!r} is no name: at most {NAME_LENGTH_MAX} {rule}"


def _digest(name: str, build: str | None, resources: Mapping[str, ResourceSpec]) -> str:
    entries = msgspec.to_builtins(dict(resources))
    for entry in entries.values():  # what there is none of must not change the digest of contracts that are older
        if not entry["private"]:
            del entry["private"]
    content = {"name": name, "build": build, "resources": entries}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
