"""``statefork replay --step``: one action after the other, and who looks on says when to go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Replay, Step
from statefork.journal.errors import StateforkError

Then = Literal["on", "stop"]
See = Callable[[Mapping[str, Any]], Then]
"""Shown each step; whether to go on."""

HERE_EVERY_S = 5.0
"""How often the engine hears that somebody is still there; it waits six times as long."""
ASK_AGAIN_S = 0.05
PROMPT = "Enter: next, c: all others, s: what the page says, q: stop here > "


def step_line(step: Mapping[str, Any]) -> str:
    """A step and its verdict in a line."""
    name = f"#{step['number']}" if step["kind"] == "action" else "input"
    why = f": {step['why']}" if step["why"] else ""
    return f"  {name}  {step['done']}  {step['outcome']}{why}"


def stepped(state: Path, request: Replay, see: See) -> dict[str, Any]:
    """The engine's answer to a replay that halts after each step, which ``see`` is shown.

    However it is left, by an error or Ctrl-C too, the engine is told, and nothing goes on.
    """
    assert request.task is not None
    control = Control(state)
    seen = 0
    with _asked(control, request) as answer:
        while not answer.done():
            told = control.ask("step", Step(task=request.task, after=seen, then="on"))["step"]
            if told is None:
                with suppress(TimeoutError):
                    answer.exception(ASK_AGAIN_S)
                continue
            seen += 1
            if see(cast("dict[str, Any]", told)) == "stop":
                control.ask("step", Step(task=request.task, after=seen, then="stop"))
                break
        return answer.result()


@contextmanager
def _asked(control: Control, request: Replay) -> Iterator[Future[dict[str, Any]]]:
    """The request, under way in a thread; dropped where the body fails."""
    answer: Future[dict[str, Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(control.ask("replay", request))
        except BaseException as error:  # noqa: BLE001 -- it is raised where the answer is waited for
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        yield answer
    except BaseException:
        if not answer.done():
            with suppress(StateforkError):
                control.ask("step", Step(task=str(request.task), then="drop"))
        raise


class Eyes:
    """Somebody at a terminal, who says after each step whether to go on."""

    def __init__(self, out: Out, state: Path, task: str) -> None:
        self._out = out
        self._state = state
        self._task = task
        self._asks = True

    def __call__(self, step: Mapping[str, Any]) -> Then:
        """Show a step, and wait for an answer."""
        self._out.say(step_line(step))
        if step["url"]:
            self._out.say(f"      {step['url']}  {step['title']!r}")
        if not self._asks or step["outcome"] == "differs" or step["place"] == step["of"]:
            return "on"  # to the end, which tells what there is to tell
        with self._here():
            return self._answer(step)

    def _answer(self, step: Mapping[str, Any]) -> Then:
        while True:
            try:
                said = input(PROMPT).strip().lower()
            except (EOFError, KeyboardInterrupt):
                self._out.say()
                return "stop"
            if said.startswith("q"):
                return "stop"
            if said.startswith("s"):
                self._show(step)
                continue
            self._asks = not said.startswith("c")
            return "on"

    def _show(self, step: Mapping[str, Any]) -> None:
        if not step["snapshot"]:
            self._out.say("it has no text")
            return
        try:
            text = Control(self._state).blob(str(step["snapshot"])).decode(errors="replace")
        except StateforkError as error:
            text = f"({error.message})"
        self._out.say(text)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """The engine hears that somebody is still there, however long the body takes."""
        left = threading.Event()

        def tell() -> None:
            control = Control(self._state, patience_s=HERE_EVERY_S)
            while not left.wait(HERE_EVERY_S):
                with suppress(StateforkError):
                    control.ask("step", Step(task=self._task))

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        try:
            yield
        finally:
            left.set()


def somebody_is_there() -> bool:
    """Whether there is somebody to ask: both ends are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
