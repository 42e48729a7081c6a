"""The tools: what each asks the engine for. Their arguments are the requests of the control door, less what is fixed.

An agent has a world to act in, and no history: its tools name no environment, and none of them leads to another moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.auditing import audit
from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.cli.options import journal_of
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Act, Diff, Drained, Fork, Named, Replay, Request, Restore
from statefork.adapters.interfaces.control.protocol import Create as CreateAsked
from statefork.adapters.interfaces.control.protocol import Retire as RetireAsked
from statefork.adapters.interfaces.control.protocol import Status as StatusAsked

Plain = dict[str, Any]


class Tool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One tool. ``run`` gets its arguments, by name, and may block; ``looks``: its answer is what an agent sees."""

    name: str
    about: str
    request: type[msgspec.Struct]
    run: Callable[[Plain], Plain]
    without: frozenset[str] = frozenset()
    changes: bool = True
    looks: bool = False

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        """The type of its arguments."""
        fields = [
            (one.name, one.type) if one.required else (one.name, one.type, one.default)
            for one in msgspec.structs.fields(self.request)
            if one.name not in self.without and (one.required or one.default is not msgspec.NODEFAULT)
        ]
        name = self.name.capitalize()
        return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)

    @cached_property
    def schema(self) -> Plain:
        """Their JSON schema: an object at its top, as the protocol wants it."""
        whole = msgspec.json.schema(self.arguments)
        definitions = whole["$defs"]
        own: Plain = definitions.pop(self.arguments.__name__)
        return {**own, "$defs": definitions} if definitions else own

    def call(self, arguments: Mapping[str, Any] | None) -> Plain:
        """Do it. Raises UsageError for arguments that do not fit, and the engine's errors."""
        try:
            given = msgspec.convert(dict(arguments or {}), self.arguments)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.name}: {error}") from None
        return self.run({name: getattr(given, name) for name in given.__struct_fields__})


class Observe(msgspec.Struct, frozen=True, kw_only=True):
    """``screenshot``: the picture too."""

    screenshot: bool = False


class Acting(Observe, frozen=True, kw_only=True):
    """``action``: an object with its ``type``, such as {"type": "goto", "url": …}. ``timeout_s``: for how long."""

    action: dict[str, Any]
    timeout_s: float | None = None


class Auditing(msgspec.Struct, frozen=True, kw_only=True):
    """``world``: look at all that lies in the state directory, too."""

    world: bool = False


def _ask(state: Path, verb: str, kind: type[Request], fields: Plain) -> Plain:
    return Control(state).ask(verb, msgspec.convert(fields, kind))


def agent_tools(state: Path, env: str) -> list[Tool]:
    """What an agent may do in an environment: look, and act."""

    def see(given: Plain) -> Plain:
        action = given.get("action")
        asked = {"env": env, "action": action, "timeout_s": given.get("timeout_s")}
        seen = _ask(state, "act", Act, asked)
        wanted = given["screenshot"] and seen["screenshot"]
        return {**seen, "png": Control(state).blob(seen["screenshot"]) if wanted else b""}

    look = "What is there now: the page as a screen reader tells it."
    act = "Do one thing, and see what comes of it. What kinds there are is told when one is unknown."
    return [
        Tool(name="observe", about=look, request=Observe, run=see, changes=False, looks=True),
        Tool(name="act", about=act, request=Acting, run=see, looks=True),
    ]


def operator_tools(state: Path) -> list[Tool]:
    """What who runs agents may do with environments and their histories."""

    def verb(name: str, about: str, asked: str, kind: type[Request], **more: Any) -> Tool:
        return Tool(name=name, about=about, request=kind, run=partial(_ask, state, asked, kind), **more)

    def ls(given: Plain) -> Plain:
        return {"environments": Control(state).ask("status", StatusAsked())["environments"]}

    def check(given: Plain) -> Plain:
        return audit(state, world=given["world"], journal=journal_of(state)).as_json()

    waits = frozenset({"then", "deadline_s"})
    return [
        Tool(
            name="ls",
            about="Every environment that is not retired.",
            request=StatusAsked,
            run=ls,
            without=frozenset({"cost"}),
            changes=False,
        ),
        verb("show", "One environment.", "describe", Named, changes=False),
        verb("create", "A new environment over the base.", "create", CreateAsked),
        verb("snapshot", "Publish the present as a generation; the agent goes on.", "snapshot", Drained, without=waits),
        verb("restore", "Back to a moment, as a new generation.", "restore", Restore, without=waits),
        verb("reset", "Back to the origin, as a new generation.", "reset", Drained, without=waits),
        verb(
            *("fork", "Children that go on from a moment: shop, shop@7, shop#42.", "fork", Fork),
            without=frozenset({"lent", "task"}),
        ),
        verb("retire", "The end of an environment; its history stays.", "retire", RetireAsked),
        verb("diff", "What differs between two moments: rows, files, cookies, the page.", "diff", Diff, changes=False),
        verb(
            *("replay", "Do what led to a moment again, elsewhere, and compare.", "replay", Replay),
            without=frozenset({"task", "steps"}),
            changes=False,
        ),
        Tool(
            name="audit",
            about="Is the history what it claims to be?",
            request=Auditing,
            run=check,
            changes=False,
        ),
    ]


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools by their names."""
    return {tool.name: tool for tool in tools}
