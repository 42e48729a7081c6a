"""What an agent can do in a terminal, as data.

::

    Run(["git", "log", "--oneline"])      {"type": "run", "command": ["git", "log", "--oneline"]}
    Run("ls *.py | wc -l")                {"type": "run", "command": "ls *.py | wc -l"}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from statefork.engine.errors import InvalidAction
from statefork.journal.values import Json

KIND = "run"
TIMEOUT_MS_DEFAULT = 60_000
TIMEOUT_MS_MAX = 600_000
STDIN_CHARS_MAX = 64 << 20
WORDS_MAX = 10_000


class Run(msgspec.Struct, frozen=True, tag_field="type", tag=KIND, forbid_unknown_fields=True, omit_defaults=True):
    """Run a command in the tree and wait for its end; then everything that it has started is ended, too.

    ``command``: a program and its arguments, or one text for the shell. ``cwd`` is relative to the tree. A command
    that runs longer than ``timeout_ms`` milliseconds is killed, and the action has failed. Its exit status does not
    make it fail: that is what was seen.
    """

    command: list[str] | str
    stdin: str = ""
    stdin_encoding: Literal["utf-8", "base64"] = "utf-8"
    cwd: str = ""
    environment: dict[str, str] = {}
    timeout_ms: int = TIMEOUT_MS_DEFAULT

    def to_json(self) -> dict[str, Json]:
        """The action as plain data: its tag and every field that differs from its default."""
        plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    def words(self) -> list[str]:
        """What is executed."""
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else self.command

    def input(self) -> bytes:
        """What it reads."""
        return base64.b64decode(self.stdin, validate=True) if self.stdin_encoding == "base64" else self.stdin.encode()

    def invalid(self) -> tuple[str, str] | None:
        """The first field that does not fit, and why; None when all do."""
        if not self.command or not self.words()[0]:
            return "command", "must name a program"
        if len(self.words()) > WORDS_MAX:
            return "command", f"has more than {WORDS_MAX} words"
        texts = [*self.words(), self.cwd, *self.environment, *self.environment.values()]
        if any("\0" in text for text in texts):
            return "command", "must not hold a NUL"
        if any("=" in name or not name for name in self.environment):
            return "environment", "has a name that is empty or holds '='"
        if len(self.stdin) > STDIN_CHARS_MAX:
            return "stdin", f"is longer than {STDIN_CHARS_MAX} characters"
        if not 0 < self.timeout_ms <= TIMEOUT_MS_MAX:
            return "timeout_ms", f"must be from 1 to {TIMEOUT_MS_MAX}"
        try:
            self.input()
        except (binascii.Error, ValueError) as error:
            return "stdin", f"is no base64: {error}"
        return None


def parse_run(action: Mapping[str, Any]) -> Run:
    """The command that the plain data means. Raises InvalidAction, naming the field in ``facts['field']``."""
    kind = action.get("type")
    if kind != KIND:
        raise InvalidAction.unknown(kind, (KIND,))
    try:
        parsed = msgspec.convert(dict(action), Run)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        named = message.split("field `")[1].split("`")[0] if "field `" in message else ""
        raise InvalidAction(f"not a run: {message}", field=named or place.rstrip("`").lstrip(".") or "type") from None
    if problem := parsed.invalid():
        field, why = problem
        raise InvalidAction(f"{KIND}: {field} {why}", field=field, action=KIND)
    return parsed
