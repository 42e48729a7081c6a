"""``statefork release``: end what a killed engine left, so that its directory can be moved or deleted."""

from __future__ import annotations

import msgspec

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.cli.reading import run
from statefork.adapters.interfaces.cli.sentences import counted

EXAMPLES = """
    statefork release                     after a kill -9, when no engine is to be started again
    statefork release --state ./state && rm -rf ./state
"""


def release(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Detach the mounts and end the processes that a killed engine left in a state directory. Needs no engine.

    No file is changed: the next `statefork up` finds all that was kept (and does this by itself, too).
    """
    from statefork.adapters.interfaces.leftovers import release as released

    out = Out(as_json=as_json)
    done = run(lambda: released(state))
    out.data(msgspec.to_builtins(done))
    for place in done.mounts:
        out.say(f"detached {place}")
    for name in done.runtimes:
        out.say(f"ended {name}")
    if not (done.mounts or done.runtimes):
        out.say(f"nothing of an engine is left in {state} but files: it can be moved or deleted")
    else:
        mounts, processes = counted(len(done.mounts), "mount"), counted(len(done.runtimes), "runtime")
        out.say(f"{mounts} detached, {processes} ended: {state} can be moved or deleted")
