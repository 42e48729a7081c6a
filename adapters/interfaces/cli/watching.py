"""Asking for what takes long, and showing meanwhile how far it is."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statefork.adapters.interfaces.cli.options import ask
from statefork.adapters.interfaces.cli.output import Bar, Out
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Request, Watched
from statefork.journal.errors import StateforkError

ASK_EVERY_S = 0.2
PATIENCE_S = 5.0


def a_task() -> str:
    """A name for what is asked for, which nobody else chooses."""
    return secrets.token_hex(8)


def watched(
    state: Path, out: Out, verb: str, request: Request, task: str | None, *, in_pipe: bool = False
) -> dict[str, object]:
    """The engine's answer, which ``--json`` prints; in a terminal with a bar until it comes.

    ``in_pipe``: without a terminal there is a line on standard error for each thing that is done.
    """
    with watching(state, out, verb, task, in_pipe=in_pipe):
        return ask(state, out, verb, request)


@contextmanager
def watching(state: Path, out: Out, what: str, task: str | None, *, in_pipe: bool = False) -> Iterator[None]:
    """The same around a request that the body makes."""
    if task is None or out.as_json or not (in_pipe or out.errors.is_terminal):
        yield
        return
    done = threading.Event()
    with out.progress(what) as bar:
        watcher = threading.Thread(target=_watch, args=(state, task, bar, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(state: Path, task: str, bar: Bar, done: threading.Event) -> None:
    control = Control(state, patience_s=PATIENCE_S)
    while not done.wait(ASK_EVERY_S):
        try:
            told = control.ask("progress", Watched(task=task))
        except StateforkError:
            return  # whoever waits for the answer hears why
        if told["doing"]:
            bar.tell(told["fraction"], told["doing"], told["detail"])
