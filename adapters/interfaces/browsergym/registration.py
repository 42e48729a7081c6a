"""BrowserGym's ``register_task`` for environments of statefork: the same name, so agents' code finds the same id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from browsergym.core.registration import frozen_partial  # type: ignore[import-not-found]  # installed beside

from statefork.adapters.interfaces.browsergym.env import StateforkBrowserEnv


def register_task(
    id: str,  # noqa: A002 -- as BrowserGym names it
    task_class: Any,
    task_kwargs: Mapping[str, Any] | None = None,
    default_task_kwargs: Mapping[str, Any] | None = None,
    nondeterministic: bool = True,
    *,
    contract: str | Path,
    **arguments: Any,
) -> None:
    """Register a task as ``browsergym/<id>``, on a contract: a packaged world's name, or a path.

    The first five arguments are those of BrowserGym's own. ``arguments`` are those of every environment of the
    task (``state``, ``slots``, ``engine``, …), which ``gymnasium.make`` may override. Raises ValueError where a task
    argument is both frozen and a default.
    """
    frozen, defaults = dict(task_kwargs or {}), dict(default_task_kwargs or {})
    if clashing := sorted(frozen.keys() & defaults.keys()):
        raise ValueError(f"the task arguments {', '.join(clashing)} are both frozen and defaults")
    entrypoint = partial(frozen_partial(task_class, **frozen), **defaults)
    gymnasium.register(
        id=f"browsergym/{id}",
        entry_point=lambda **given: StateforkBrowserEnv(entrypoint, **{"contract": contract, **arguments, **given}),
        nondeterministic=nondeterministic,
    )
