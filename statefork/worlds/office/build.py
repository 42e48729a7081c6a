"""Makes the office's base: those of its three sites, side by side in ``shop/``, ``tracker/`` and ``wiki/``."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from statefork.worlds.making import Progress, cache_place, in_cache, whole, within
from statefork.worlds.shop import build_postgres as shop
from statefork.worlds.tracker import build as tracker
from statefork.worlds.wiki import build as wiki

SITES = {"shop": shop, "tracker": tracker, "wiki": wiki}


def recipe_digest() -> str:
    """SHA-256 (hex) over the recipes of the three. Raises MissingDependency."""
    recipes = "\n".join(f"{name} {site.recipe_digest()}" for name, site in SITES.items())
    return hashlib.sha256(recipes.encode()).hexdigest()


def build(directory: Path, progress: Progress) -> None:
    """Put the bases of the three sites into ``directory``, from the user's cache, where each is built once.

    Raises MissingDependency, or ResourceFailed with the last lines of what was said.
    """
    with whole(directory) as partial:
        for number, (name, site) in enumerate(SITES.items()):
            part = within(progress, number / len(SITES), (number + 1) / len(SITES))
            shutil.copytree(site.cached(_of(name, part)), partial / name, copy_function=_linked)
    progress(1.0, "the office's bases are there")


def _linked(source: str, target: str) -> None:
    """The cache need not hold the same file twice; whoever uses a base copies it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _of(site: str, progress: Progress) -> Progress:
    return lambda fraction, text: progress(fraction, f"{site}: {text}")


def place(root: Path | None = None) -> Path:
    """Where the base of the present recipe is, or will be: under ``root``, else in the user's cache directory."""
    return cache_place(f"office-{recipe_digest()[:16]}", root)


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe at its place, built when it is not there yet."""
    return in_cache(place(root), build, progress)
