"""The page scripts, as functions that Playwright evaluates. They stand in ``scripts/*.js``, each after ``codec.js``."""

from __future__ import annotations

from functools import cache
from importlib import resources

_FOLDER = "scripts"


@cache
def script(name: str) -> str:
    """``scripts/<name>.js`` as an async function of one argument ``arg``."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    codec, body = (folder.joinpath(f"{part}.js").read_text(encoding="utf-8") for part in ("codec", name))
    return f"async (arg) => {{\n{codec}\n{body}\n}}"


@cache
def plain(name: str) -> str:
    """``scripts/<name>.js``, which is a function by itself."""
    return resources.files(__package__).joinpath(_FOLDER, f"{name}.js").read_text(encoding="utf-8").strip()
