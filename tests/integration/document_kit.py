"""Running what a document says: its files are written, its commands are given to a shell, its output is compared.

In expected output, ``…`` stands for anything within a line, and a line of ``…`` alone for any number of lines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(r"[Ss]ave(?:d)?(?: this)? as `([^`]+)`:\s*$")
OWN_TERMINAL = "a terminal of its own"
COMMAND_SECONDS_MAX = 300


class Block(NamedTuple):
    """A fenced block, and the paragraph before it."""

    language: str
    body: str
    before: str

    @property
    def file(self) -> str:
        """The name under which the text says to save it; empty when it does not."""
        found = SAVED_AS.search(self.before)
        return found[1] if found else ""

    @property
    def background(self) -> bool:
        """Whether its command goes on while the next ones run."""
        return OWN_TERMINAL in self.before

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the lines of output that are expected."""
        command = ""
        expected: list[str] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, expected
                command, expected = line[2:], []
            else:
                expected.append(line)
        if command:
            yield command, expected


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a document, in order."""
    found = []
    end = 0
    for match in FENCE.finditer(text):
        before = text[end : match.start()].strip().rpartition("\n\n")[2]
        body = "\n".join(line.removeprefix(match["indent"]) for line in match["body"].splitlines()) + "\n"
        found.append(Block(match["language"], body, before))
        end = match.end()
    return found


def section(text: str, *headings: str) -> str:
    """The parts of a document under some headings of level 2."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    return "\n\n".join(bodies[heading] for heading in headings)


def matches(expected: list[str], lines: list[str]) -> bool:
    """Whether the output is what the document says."""
    if not expected:
        return not lines
    if expected[0].strip() == "…":
        return any(matches(expected[1:], lines[start:]) for start in range(len(lines) + 1))
    return bool(lines) and line_matches(expected[0], lines[0]) and matches(expected[1:], lines[1:])


def line_matches(expected: str, line: str) -> bool:
    """Whether one line is what the document says; the width of white space does not count."""
    pieces = [re.escape(" ".join(piece.split())) for piece in expected.split("…")]
    return re.fullmatch(r"\s*.*\s*".join(pieces).replace(r"\ ", r"\s+"), " ".join(line.split())) is not None


class Shell:
    """Where a document's commands run: a folder, and this Python's commands first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "COLUMNS": "200", "TERM": "dumb"}
        self.environment.pop("STATEFORK_STATE", None)

    def run(self, block: Block) -> None:
        """Write the block's file, or run its commands and compare what they print."""
        if block.file:
            (self.folder / block.file).write_text(block.body, encoding="utf-8")
            return
        assert block.language == "console", f"nothing says what to do with this {block.language} block: {block.body}"
        for command, expected in block.commands():
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
            lines = [line.rstrip() for line in done.stdout.splitlines()]
            assert matches(expected, lines), f"$ {command}\n{done.stdout}\nis not\n" + "\n".join(expected)
            assert done.returncode == 0 or ";" in command, f"$ {command}\n{done.stdout}\nexit status {done.returncode}"

    @contextmanager
    def background(self, block: Block) -> Iterator[None]:
        """Run the block's command until the body ends; the body begins when the last expected line is printed."""
        ((command, expected),) = block.commands()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed: list[str] = []
        ready = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line.rstrip())
                if line_matches(expected[-1], line.rstrip()):
                    ready.set()
            ready.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert ready.wait(COMMAND_SECONDS_MAX)
            assert process.poll() is None, "\n".join(printed)
            assert matches(expected, printed), "\n".join(printed)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(COMMAND_SECONDS_MAX)
            reader.join()
        assert code == 0, "\n".join(printed)
