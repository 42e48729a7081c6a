"""Which address asks for which verb of the control door. What a verb needs, and what it does, is said there alone.

A route's path names some fields of the verb's request. The others stand in the query where the method has no body, and
in a JSON object otherwise: its type is the verb's request without what the path says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from statefork.adapters.interfaces.control.verbs import VERBS, Verb

_LENT = "lent"  # a child that ends with the connection: HTTP's connections are shared, and mean nothing
_IN_QUERY = frozenset({"GET", "DELETE"})


class Route(msgspec.Struct, frozen=True, dict=True):
    """One method of one address. ``leaves_out``: fields of the request that keep their defaults."""

    method: str
    path: str
    verb_name: str
    about: str
    status: int = 200
    leaves_out: tuple[str, ...] = (_LENT,)

    @property
    def verb(self) -> Verb:
        """What is asked for."""
        return VERBS[self.verb_name]

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """Fields that the path says."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def has_body(self) -> bool:
        """Whether the other fields stand in a JSON object."""
        return self.method not in _IN_QUERY

    @cached_property
    def others(self) -> type[msgspec.Struct]:
        """The type of the fields that the path does not say, from the body or the query."""
        left = [field for field in msgspec.structs.fields(self.verb.request) if field.name not in self._said]
        fields = [(field.name, field.type, *_default(field)) for field in left]
        name = "".join(part.capitalize() for part in re.split(r"\W+", f"{self.method} {self._words}"))
        return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)

    @cached_property
    def keyed(self) -> bool:
        """Whether it may be given again with a key."""
        return "key" in self.verb.request.__struct_fields__

    @property
    def _said(self) -> frozenset[str]:
        return frozenset(self.in_path) | frozenset(self.leaves_out)

    @property
    def _words(self) -> str:
        return re.sub(r"{\w+}|^/v1", "", self.path)

    def request(self, path: Mapping[str, str], others: msgspec.Struct) -> Any:
        """The verb's request. Raises msgspec.ValidationError."""
        said = {name: getattr(others, name) for name in others.__struct_fields__}
        return msgspec.convert({**said, **path}, self.verb.request)


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=field.default_factory),)
    return () if field.default is msgspec.NODEFAULT else (field.default,)


_ENV = "/v1/environments/{env}"

ROUTES = (
    Route("GET", "/v1/status", "status", "What is served"),
    Route("POST", "/v1/environments", "create", "A new environment", 201),
    Route("GET", _ENV, "describe", "An environment"),
    Route("DELETE", _ENV, "retire", "The end of an environment"),
    Route("POST", f"{_ENV}/actions", "act", "One action, or without one a look"),
    Route("GET", f"{_ENV}/observation", "act", "Look without acting", leaves_out=("action", "timeout_s")),
    Route("POST", f"{_ENV}/snapshots", "snapshot", "Publish the present", 201),
    Route("POST", f"{_ENV}/reset", "reset", "Back to the origin"),
    Route("POST", f"{_ENV}/restore", "restore", "Back to a moment"),
    Route("POST", f"{_ENV}/park", "park", "Give the slot back"),
    Route("POST", f"{_ENV}/activate", "activate", "Take a slot"),
    Route("POST", f"{_ENV}/recover", "recover", "Give up what came after the last generation"),
    Route("PATCH", f"{_ENV}/policies", "keep", "Choose which snapshots are taken, and which generations stay"),
    Route(
        *("GET", f"{_ENV}/policies", "keep", "Which snapshots are taken, and which generations stay"),
        leaves_out=("snapshots", "retention", "key"),
    ),
    Route("POST", f"{_ENV}/prune", "prune", "Let generations go"),
    Route("POST", "/v1/bulk/environments", "create-many", "Several new environments", 201),
    Route("POST", "/v1/bulk/resets", "reset-many", "Several back to their origins"),
    Route("POST", "/v1/forks", "fork", "Children of a moment", 201),
    Route("POST", "/v1/clones", "clone", "A new environment whose origin is a moment", 201),
    Route("POST", "/v1/replays", "replay", "Do what led to a moment again, and compare"),
    Route("POST", "/v1/replays/{task}/steps", "step", "The next step of a replay that halts after each"),
    Route("GET", "/v1/tasks/{task}", "progress", "How far something is"),
    Route("POST", "/v1/diffs", "diff", "What differs between two moments"),
    Route("POST", "/v1/blames", "blame", "Which action last changed one thing"),
    Route("POST", "/v1/spans", "between", "The moments of one history between two ends"),
    Route("PUT", "/v1/marks/{ref}", "mark", "Call a generation something"),
    Route("POST", "/v1/gc", "gc", "Remove what nothing reaches"),
)
EXPORT = Route("POST", "/v1/exports", "export", "A moment as a file", leaves_out=("path",))
IMPORT = Route("POST", "/v1/imports", "import", "An environment of a file", 201, leaves_out=("path",))
"""Files are sent, and not named by where they lie on the engine's machine."""
