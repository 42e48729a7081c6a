"""Talking with a process behind the server: one JSON object a line, as the engine talks with the server itself."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import IO, Any

_ANSWER_S_MAX = 20.0


class Channel:
    """Operations that are answered in any order; lines with ``event`` are told unasked, to ``told``."""

    def __init__(self, reader: IO[str], writer: IO[str], told: Callable[[dict[str, Any]], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._told = told
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def ask(self, op: str, **arguments: Any) -> Any:
        """The answer to an operation. Raises RuntimeError with what went wrong there."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            self._writer.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
            self._writer.flush()
        try:
            return answer.result(_ANSWER_S_MAX)
        except NoAnswer:
            self._waiting.pop(number, None)
            raise RuntimeError(f"the process behind did not answer {op!r} within {_ANSWER_S_MAX:g} s") from None

    def _read(self) -> None:
        for line in self._reader:
            message = json.loads(line)
            if "event" in message:
                self._told(message)
                continue
            answer = self._waiting.pop(message["id"], None)
            if answer is not None and "ok" in message:
                answer.set_result(message["ok"])
            elif answer is not None:
                answer.set_exception(RuntimeError(message["error"]))
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(RuntimeError("the process behind has ended"))
