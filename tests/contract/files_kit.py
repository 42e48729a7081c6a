"""How the tests make and touch file trees: plain file operations, no code of the adapter."""

from __future__ import annotations

import threading
from pathlib import Path

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.files import FilesResource, Options
from statefork.adapters.resources.files.probe import Choice
from statefork.engine.ports import Services
from statefork.journal.values import Binding


def make_base(directory: Path) -> None:
    """A small tree with nested directories, a link, an empty directory and several modes."""
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "empty").mkdir()
    (directory / "a" / "b" / "deep.txt").write_text("deep")
    (directory / "a" / "script").write_text("#!/bin/sh\n")
    (directory / "a" / "script").chmod(0o755)
    (directory / "top.txt").write_text("top")
    (directory / "link").symlink_to("a/b/deep.txt")


def write(binding: Binding, key: str, value: str) -> None:
    (Path(str(binding.address["path"])) / key).write_text(value)


def read(binding: Binding, key: str) -> str | None:
    path = Path(str(binding.address["path"])) / key
    return path.read_text() if path.exists() else None


def settled(resource: FilesResource) -> None:
    """Every sealed layer has its sums."""
    resource._sums.stop(threading.TIMEOUT_MAX)


def bench_for(strategy: Choice, state: Path, base_dir: Path) -> Bench:
    """A bench for one strategy."""
    make_base(base_dir / "base")

    def make(services: Services) -> FilesResource:
        return FilesResource("media", Options(base="base", strategy=strategy), services)

    return Bench(make=make, write=write, read=read, state=state, base_dir=base_dir, settle=settled)
