"""``statefork gc``: remove what nothing reaches."""

from __future__ import annotations

from typing import Any

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.watching import a_task, watched
from statefork.adapters.interfaces.control.protocol import Collect

EXAMPLES = """
    statefork gc
"""


def gc(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Remove what no environment and no generation reaches: left-over branches, bindings, sealed versions."""
    out = Out(as_json=as_json)
    request = Collect(task=a_task())
    answer: Any = watched(state, out, "gc", request, request.task)
    collected, failed = answer["collected"], answer["failed"]
    out.say(f"{len(collected)} removed, {answer['kept']} kept, {answer['foreign']} of other journals left alone")
    rows = [(one["resource"], one["kind"], one["name"], one["error"] or "removed") for one in [*collected, *failed]]
    if rows:
        out.table(("resource", "kind", "name", "what"), rows)
