"""Programs that are interrupted: each prints ``now`` where the test presses Ctrl-C, and at its end what it saw.

::

    python sync_interrupted.py SCENARIO FOLDER

``FOLDER`` has ``notes.toml``; the state directory is made in it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import statefork
from statefork.adapters.resources.memory import Call, MemoryResource

NEVER = threading.Event()
WAIT = {"type": "wait", "key": "never"}


def say(word: str) -> None:
    """A line for the test to read."""
    print(word, flush=True)


def steer(engine: statefork.sync.Engine, method: str, act: Callable[[], Any]) -> None:
    """Call ``act`` before every call of one method of the memory resource, on the engine's thread."""
    resource = engine._engine.kernel.resources["page"]
    assert isinstance(resource, MemoryResource)

    async def hook(call: Call) -> None:
        if (call.method, call.when) == (method, "before"):
            act()

    resource.world.hook = hook


@contextmanager
def opened(folder: Path) -> Iterator[statefork.sync.Engine]:
    """An engine whose environment ``a`` has something in it."""
    with statefork.sync.open_engine(folder / "notes.toml", state=folder / "state") as engine:
        engine.create("a").act({"type": "put", "key": "kept", "value": "tea"})
        yield engine


def in_a_call(folder: Path) -> dict[str, Any]:
    """Interrupted in an action that would never end; the program goes on."""
    with opened(folder) as engine:
        env = engine.environment("a")
        steer(engine, "act", lambda: say("now"))
        try:
            env.act(WAIT)
        except KeyboardInterrupt:
            engine._engine.kernel.resources["page"].world.hook = None  # type: ignore[attr-defined]  # as in steer
            return {
                "interrupted": True,
                "kept": env.act({"type": "get", "key": "kept"}).value,
                "ref": str(env.snapshot()),
            }
    return {}


def out_of_the_block(folder: Path) -> dict[str, Any]:
    """Interrupted in an action, and nobody catches it within the block."""
    with opened(folder) as engine:
        steer(engine, "act", lambda: say("now"))
        engine.environment("a").act(WAIT)
    return {}


def in_a_check(folder: Path) -> dict[str, Any]:
    """Interrupted in an evaluator."""
    with opened(folder) as engine:
        env = engine.environment("a")

        def check(seen: statefork.sync.Evaluation) -> float:
            say("now")
            NEVER.wait()
            return 1.0

        try:
            env.evaluate(check)
        except KeyboardInterrupt:
            return {
                "interrupted": True,
                "score": env.evaluate(lambda seen: float(seen.generation)),
                "ref": str(env.ref),
            }
    return {}


def in_a_page(folder: Path) -> dict[str, Any]:
    """Interrupted while a page is lent."""
    with opened(folder) as engine:
        env = engine.environment("a")
        try:
            with env.page():
                say("now")
                NEVER.wait()
        except KeyboardInterrupt:
            return {"interrupted": True, "kept": env.observe().value, "ref": str(env.snapshot())}
    return {}


def twice(folder: Path) -> dict[str, Any]:
    """Interrupted in an action, and again while the environment is being parked."""
    with opened(folder) as engine:

        def sealing() -> None:
            say("now")
            sys.stdin.readline()  # the engine's own thread stands still until the test has interrupted

        engine.environment("a").act({"type": "put", "key": "more", "value": "cake"})
        steer(engine, "seal", sealing)
        say("now")
        NEVER.wait()
    return {}


def while_building(folder: Path) -> dict[str, Any]:
    """Interrupted while a base is being built, which never ends by itself."""
    sys.path.insert(0, str(folder))
    with statefork.sync.open_engine(folder / "built.toml", state=folder / "state"):
        say("opened")
    return {}


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (in_a_call, out_of_the_block, in_a_check, in_a_page, twice, while_building)
}

if __name__ == "__main__":
    told: dict[str, Any] = {"out": True}
    with suppress(KeyboardInterrupt):
        told = SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
    threads = sorted(thread.name for thread in threading.enumerate() if "statefork" in thread.name)
    say(json.dumps({**told, "threads": threads}))
