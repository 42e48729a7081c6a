"""How the tests make terminals, and reach their trees without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.shell import Options, ShellResource
from statefork.engine.ports import Services
from statefork.journal.values import Binding


def write(binding: Binding, key: str, value: str) -> None:
    Path(str(binding.address["path"]), key).write_text(value)


def read(binding: Binding, key: str) -> str | None:
    place = Path(str(binding.address["path"]), key)
    return place.read_text() if place.exists() else None


def bench_for(state: Path, base_dir: Path, **options: Any) -> Bench:
    """A bench for one set of options."""
    (base_dir / "base").mkdir(exist_ok=True)
    (base_dir / "base" / "seeded").write_text("from the base")

    def make(services: Services) -> ShellResource:
        return ShellResource("box", Options(**{"base": "base", **options}), services)

    return Bench(make=make, write=write, read=read, state=state, base_dir=base_dir)
