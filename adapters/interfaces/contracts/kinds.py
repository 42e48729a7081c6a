"""Which kind of file somebody gave, where a contract and a task file may have been given for each other."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from statefork.engine.errors import ContractError

Kind = Literal["contract", "tasks", ""]


def check_kinds(contract: Path | None, tasks: Path | None) -> None:
    """Raise ContractError for a task file that is given as a contract, or a contract as a task file."""
    tasks_first = contract is not None and kind_of(contract) == "tasks"
    contract_last = tasks is not None and kind_of(tasks) == "contract"
    if tasks_first and contract_last:
        raise ContractError(
            f"{contract} is a task file, and {tasks} a contract: they are the wrong way round",
            hint=f"Did you mean: statefork contract check {tasks} --tasks {contract}",
            file=str(contract),
        )
    if tasks_first:
        raise ContractError(
            f"{contract} is a task file, and no contract",
            hint=f"Did you mean: statefork contract derive {contract}, or statefork contract check CONTRACT --tasks "
            f"{contract}",
            file=str(contract),
        )
    if contract_last:
        raise ContractError(
            f"{tasks} is a contract, and no task file",
            hint=f"Did you mean: statefork contract check {tasks}",
            file=str(tasks),
        )


def kind_of(file: Path) -> Kind:
    """What a file looks like; empty where it looks like neither, or can't be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    document = _decoded(text)
    if isinstance(document, dict):
        if "contract" in document or "resources" in document:
            return "contract"
        document = document.get("tasks", [document])
    tasks = isinstance(document, list) and document and all(isinstance(one, dict) and "eval" in one for one in document)
    return "tasks" if tasks else ""


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        pass
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
