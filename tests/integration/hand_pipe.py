"""Named pipes by which a test decides when a view goes on.

The test holds both ends open for as long as it runs. Were they opened for each line, a view that has read one and waits
for the next could meet the writer of the first, just before that closes, and take its end for the end of all lines.
"""

from __future__ import annotations

import os
from pathlib import Path


class HandPipe:
    """A pipe that views read lines from; a line that no view waits for yet is kept."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write_line(self, line: str = "go") -> None:
        """Let one view go on."""
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """End whatever waits for a line, with an empty one, so that nobody need wait for it."""
        self.path.unlink()
        os.close(self._fd)


class HandPipes:
    """Those of one directory, by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pipes: dict[str, HandPipe] = {}

    def __getitem__(self, name: str) -> HandPipe:
        if name not in self._pipes:
            self._pipes[name] = HandPipe(self._directory / f"pipe-{name}")
        return self._pipes[name]

    def close(self) -> None:
        """All of them; what comes later gets new ones."""
        while self._pipes:
            self._pipes.popitem()[1].close()
