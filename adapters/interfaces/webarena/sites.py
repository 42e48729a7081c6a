"""Which site of a world stands for which of WebArena's, and the variables under which its tools look for them.

The world says it in a file ``webarena.toml``::

    [sites]
    SHOPPING = "shop.example"
    SHOPPING_ADMIN = "shop.example/dashboard"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from statefork.adapters.interfaces.webarena.errors import SiteMissing, TasksInvalid
from statefork.engine.places import Place, Problem

NAMES = ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE", "CLASSIFIEDS")
"""What the sites are called: seven of WebArena's, and one more of VisualWebArena's."""

PREFIXES = ("", "WA_", "VWA_")
"""libwebarena reads the bare names, BrowserGym's two benchmarks those with their prefix."""

PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*[A-Z])__")


def read_sites(path: Path | None = None) -> dict[str, str]:
    """The sites that a file declares: by variable the host that stands for it, with a path if the site lies below one.

    None: those of the packaged worlds. Raises TasksInvalid.
    """
    found = files("statefork.worlds.office") / "webarena.toml" if path is None else path
    try:
        declared = tomllib.loads(found.read_text(encoding="utf-8")).get("sites")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TasksInvalid([Problem(place=Place(file=str(found)), message=str(error))]) from None
    if not isinstance(declared, dict):
        raise TasksInvalid([Problem(place=Place(file=str(found)), message="has no table [sites]")])
    wrong = [
        Problem(place=Place(file=str(found), key=f"sites.{name}"), message=why)
        for name, host in declared.items()
        if (why := _wrong(name, host))
    ]
    if wrong:
        raise TasksInvalid(wrong)
    return {str(name): str(host) for name, host in declared.items()}


def _wrong(name: str, host: object) -> str:
    if name not in NAMES:
        return f"is none of {', '.join(NAMES)}"
    return "" if isinstance(host, str) and host else "must be a host, such as shop.example"


class Sites:
    """The sites of one environment: what the agent calls them, and their private base URLs."""

    def __init__(self, doors: Mapping[str, str], declared: Mapping[str, str]) -> None:
        self.doors = dict(doors)
        self._paths: dict[str, tuple[str, str]] = {}
        for name, where in declared.items():
            host, slash, path = where.partition("/")
            if host in self.doors:
                self._paths[name] = (host, slash + path if path else "")

    @property
    def named(self) -> tuple[str, ...]:
        """The variables for which something stands."""
        return tuple(self._paths)

    def variables(self) -> dict[str, str]:
        """Every name with every prefix. Where nothing stands for one, it leads to a host that there is not."""
        bare = {name: f"http://{name.lower().replace('_', '-')}.invalid" for name in NAMES}
        bare |= {name: self.doors[host] + path for name, (host, path) in self._paths.items()}
        bare["CLASSIFIEDS_RESET_TOKEN"] = "none"  # libvisualwebarena wants some at import
        return {prefix + name: value for prefix in PREFIXES for name, value in bare.items()}

    def filled(self, text: str) -> str:
        """A text with private base URLs for ``__SHOPPING__`` and its like. Raises SiteMissing."""
        return self._filled(text, self.variables())

    def for_agent(self, text: str) -> str:
        """The same with the addresses that the agent's browser knows."""
        return self._filled(text, {name: f"http://{host}{path}" for name, (host, path) in self._paths.items()})

    def _filled(self, text: str, values: Mapping[str, str]) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in self._paths:
                there = ", ".join(sorted(self._paths)) or "none"
                raise SiteMissing(
                    f"nothing in this world stands for {found[1]}; sites that it has: {there}",
                    hint="Say which of its sites does in a webarena.toml, or run a world that has one",
                    variable=found[1],
                )
            return values[found[1]]

        return PLACEHOLDER.sub(value, text)

    def private(self, url: str) -> str:
        """An address of the agent's browser, as clients of the private base URLs know it."""
        for host, door in self.doors.items():
            rest = url.removeprefix(f"http://{host}")
            if rest != url and rest[:1] in ("", "/", "?", "#"):
                return door + rest
        return url
