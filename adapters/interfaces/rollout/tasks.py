"""Tasks of WebArena's form, as far as rolling them out needs them; how they are judged is left to a judge.

A task is an object with ``task_id``, ``intent``, ``start_url`` and ``eval``. ``__SHOPPING__`` and its like in addresses
stand for hosts of the world.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.rollout.errors import TasksUnreadable
from statefork.adapters.interfaces.webarena.sites import PLACEHOLDER, read_sites


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``config`` is all of it as it stands in its file."""

    id: str
    goal: str
    start_url: str = ""  # empty: begin at whatever the environment shows
    sites: tuple[str, ...] = ()
    eval: dict[str, Any] = {}
    config: dict[str, Any] = {}
    file: str = ""


def read_tasks(file: Path | str, hosts: Mapping[str, str] | None = None) -> list[Task]:
    """The tasks of a file: a list, an object with ``tasks``, one task, or a line of JSON for each.

    ``hosts``: what stands for ``__SHOPPING__`` and its like, beside the usual ones. Raises TasksUnreadable with
    everything that is wrong.
    """
    file = Path(file)
    known = {**read_sites(), **{name.upper(): host for name, host in (hosts or {}).items()}}
    problems: list[str] = []
    found: dict[str, Task] = {}
    for position, config in enumerate(_decoded(file)):
        task = _task(config, f"{file}: task {position + 1}", known, file, problems)
        if task is not None and task.id in found:
            problems.append(f"{file}: task {position + 1}: task_id {task.id!r} is there twice")
        elif task is not None:
            found[task.id] = task
    if problems or not found:
        raise TasksUnreadable("\n".join(problems) or f"{file}: there are no tasks in it", file=str(file))
    return list(found.values())


def digest_of(tasks: Sequence[Task]) -> str:
    """What tells one list of tasks from another: SHA-256 (hex)."""
    text = json.dumps([task.config for task in tasks], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _decoded(file: Path) -> list[Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TasksUnreadable(f"can't read the tasks {str(file)!r}: {error}", file=str(file)) from error
    try:
        content = json.loads(text)
    except ValueError as error:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise TasksUnreadable(f"{file}: not valid JSON: {error}", file=str(file)) from error
    if isinstance(content, dict):
        content = content.get("tasks", [content])
    return content if isinstance(content, list) else [content]


def _task(config: object, place: str, hosts: Mapping[str, str], file: Path, problems: list[str]) -> Task | None:
    if not isinstance(config, dict):
        problems.append(f"{place}: a task is an object")
        return None
    wrong = []
    name = config.get("task_id")
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        wrong.append("task_id must be a number or a text")
    if not isinstance(config.get("intent"), str) or not config["intent"]:
        wrong.append("intent must be a text, and not empty")
    start = config.get("start_url") or ""
    if not isinstance(start, str):
        wrong.append("start_url must be a text")
    judged = config.get("eval") or {}
    if not isinstance(judged, dict):
        wrong.append("eval must be an object")
    filled = _filled(config, hosts, wrong) if not wrong else {}
    problems += [f"{place}: {one}" for one in dict.fromkeys(wrong)]
    if wrong:
        return None
    sites = config.get("sites") or []
    return Task(
        id=str(name),
        goal=str(config["intent"]),
        start_url=str(filled.get("start_url") or ""),
        sites=tuple(map(str, sites)) if isinstance(sites, list) else (str(sites),),
        eval=filled.get("eval") or {},
        config=config,
        file=str(file.resolve()),
    )


def _filled(value: Any, hosts: Mapping[str, str], wrong: list[str]) -> Any:
    """With addresses that the agent's browser knows."""
    if isinstance(value, dict):
        return {key: _filled(one, hosts, wrong) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, hosts, wrong) for one in value]
    if not isinstance(value, str):
        return value

    def host(found: re.Match[str]) -> str:
        if found[1] not in hosts:
            wrong.append(f"{found[0]} stands for no host: give one (--site {found[1].lower()}=HOST)")
        return f"http://{hosts.get(found[1], '')}"

    return PLACEHOLDER.sub(host, value)
