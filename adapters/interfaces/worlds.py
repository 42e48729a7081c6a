"""Finding a contract and preparing the bases it names.

A contract is given by path, or by the name of a packaged world (``shop``). When it names a ``build`` module, it
makes the bases once per recipe; they are kept under the state directory and used again.
"""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import ModuleType

import msgspec

from statefork.adapters.interfaces.registry import adapter_names
from statefork.engine.contract import Contract, load_contract
from statefork.engine.errors import ContractError, MissingDependency, ResourceFailed

Progress = Callable[[float, str], None]
"""Called with a fraction from 0 to 1 and a sentence about what is being done."""

_WORLDS = "statefork.worlds"


def packaged_worlds() -> dict[str, Path]:
    """The worlds that come with statefork: name and contract file.

    A world may have several contracts: ``shop/shop.toml``, ``shop/shop-postgres.toml``.
    """
    root = resources.files(_WORLDS)
    found = {}
    for entry in (entry for entry in root.iterdir() if entry.is_dir()):
        for contract in entry.iterdir():
            name, dot, kind = contract.name.rpartition(".")
            if (name == entry.name or name.startswith(f"{entry.name}-")) and f"{dot}{kind}" == ".toml":
                found[name] = Path(str(contract))
    return dict(sorted(found.items()))


def find_contract(contract: str | Path) -> Path:
    """The contract file meant by a path or by a packaged world's name. Raises ContractError when there is none."""
    path = Path(contract)
    if path.is_file():
        return path.resolve()
    worlds = packaged_worlds()
    if str(contract) in worlds:
        return worlds[str(contract)]
    raise ContractError(
        f"no contract at {str(contract)!r}",
        hint=f"Give the path of a contract file, or one of the packaged worlds: {', '.join(worlds) or 'none'}",
        file=str(contract),
    )


def read_contract(contract: str | Path) -> tuple[Contract, Path]:
    """The parsed contract and the file it came from."""
    path = find_contract(contract)
    return load_contract(path, adapters=adapter_names()), path


def _build_module(contract: Contract) -> ModuleType:
    assert contract.build
    try:
        return importlib.import_module(contract.build)
    except ModuleNotFoundError as missing:
        name = missing.name or ""
        if name and contract.build.startswith(name):
            raise ContractError(
                f"contract {contract.name!r} names build = {contract.build!r}, and there is no such module",
                hint="Name an importable module that has build(directory, progress) and recipe_digest()",
                key="contract.build",
            ) from missing
        raise MissingDependency(
            f"world {contract.name!r} needs the Python package {name!r}, which is not installed",
            hint="pip install 'statefork[worlds]'",
        ) from missing


def prepare_bases(contract: Contract, file: Path, state: Path, progress: Progress) -> Path:
    """The directory that the contract's ``base`` paths are relative to; built first where the contract says how.

    Building is atomic: an interrupted build leaves a ``.partial`` directory, which the next one removes. Bases of other
    recipes stay: generations made from them may still be alive. Raises ResourceFailed when there is no room for them.
    """
    if contract.build is None:
        return file.parent
    module = _build_module(contract)
    worlds = state / "worlds"
    target = worlds / f"{contract.name}-{module.recipe_digest()[:16]}"
    if target.is_dir():
        return target
    partial = target.with_name(target.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        worlds.mkdir(parents=True, exist_ok=True)
        if hasattr(module, "cached"):  # the user's cache has it, or gets it: each further state directory costs a copy
            shutil.copytree(module.cached(progress), partial)
        else:
            module.build(partial, progress)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ResourceFailed(
            f"the bases of {contract.name!r} can't be put into {worlds}: {_why(error)}",
            hint="Make room or give write permission there, or choose another state directory; nothing was left behind",
            path=str(worlds),
        ) from error
    return target


def _why(error: OSError) -> str:
    """In one line: copying a tree collects its errors, and the first says it all."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2])
    return str(error)


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """A packaged world, as it is on this machine."""

    name: str
    file: str
    sites: tuple[str, ...]
    built: bool = False
    size_bytes: int = 0
    missing: str = ""  # what is needed to build it, and how to get it


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done for a base, and how long that took."""

    name: str
    seconds: float


class Parts:
    """What is being done, with the time until something else is told. What comes again is added up."""

    def __init__(self, progress: Progress, now: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._now = now
        self._took: dict[str, float] = {}
        self._doing = ""
        self._since = 0.0

    def tell(self, fraction: float, text: str) -> None:
        """As ``Progress``."""
        now = self._now()
        if self._doing:
            self._took[self._doing] += now - self._since
        self._took.setdefault(text, 0.0)
        self._doing, self._since = text, now
        self._progress(fraction, text)

    def ended(self) -> tuple[Part, ...]:
        """All that took a tenth of a second or more; the last ends now."""
        if not self._doing:
            return ()
        self.tell(1.0, self._doing)
        took = ((name, round(seconds, 1)) for name, seconds in self._took.items())
        return tuple(Part(name=name, seconds=seconds) for name, seconds in took if seconds)


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A world's base in the user's cache."""

    name: str
    place: str
    size_bytes: int
    seconds: float  # that building it took just now; 0: it was there
    parts: tuple[Part, ...] = ()  # what that was made of, in the order in which they began


def survey() -> list[Surveyed]:
    """The packaged worlds. Nothing is built or installed."""
    found = []
    for name, file in packaged_worlds().items():
        contract, _ = read_contract(file)
        sites = tuple(_hosts(contract))
        one = Surveyed(name=name, file=str(file), sites=sites)
        try:
            place = _build_module(contract).place()
        except MissingDependency as missing:
            one = msgspec.structs.replace(one, missing=f"{missing.message}: {missing.hint}")
        else:
            one = msgspec.structs.replace(one, built=place.is_dir(), size_bytes=_size(place))
        found.append(one)
    return found


def _hosts(contract: Contract) -> list[str]:
    return [str(spec.options["host"]) for spec in contract.resources.values() if "host" in spec.options]


def can_be_built(contract: Contract) -> bool:
    """Whether its base can be made before an engine needs it."""
    return contract.build is not None and hasattr(_build_module(contract), "cached")


def built(name: str, progress: Progress) -> Base:
    """Build a world's base into the user's cache, if it is not there. Raises ContractError where that can't be."""
    contract, _ = read_contract(name)
    if not can_be_built(contract):
        raise ContractError(
            f"contract {contract.name!r} says of no base that can be built beforehand",
            hint="`statefork up` makes what it needs; a build module with place() and cached() can do it before",
            key="contract.build",
        )
    module = _build_module(contract)
    was_there, began = module.place().is_dir(), time.monotonic()
    parts = Parts(progress)
    place: Path = module.cached(parts.tell)
    seconds, told = (0.0, ()) if was_there else (round(time.monotonic() - began, 1), parts.ended())
    return Base(name=contract.name, place=str(place), size_bytes=_size(place), seconds=seconds, parts=told)


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
