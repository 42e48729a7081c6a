"""Acting in environments: what is said where nobody could."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statefork.adapters.interfaces.registry import adapter_names
from statefork.adapters.resources import memory, shell
from statefork.engine.acting import Acting
from statefork.engine.contract import parse_contract
from statefork.engine.errors import InvalidAction, NotReady
from statefork.journal.values import Identity


def test_who_adds_an_actor_is_told_an_adapter_that_there_is() -> None:
    conductor: Any = SimpleNamespace(ledger=None, contract=SimpleNamespace(order=()), resources={})
    nobody: Any = None
    context: Any = SimpleNamespace(identity=Identity(env="a", epoch=1, activation=1))
    with pytest.raises(NotReady) as caught:
        Acting(conductor, nobody).actor_of(context)
    assert caught.value.hint == "Add one with the adapter browser."
    assert "browser" in adapter_names()
    assert "desktop" not in adapter_names()


def test_what_nobody_knows_is_told_with_what_all_know_and_a_fault_by_whoever_knows_the_type() -> None:
    contract = parse_contract(
        '[contract]\nname = "both"\n[resources.box]\nadapter = "shell"\n[resources.page]\nadapter = "memory"\n',
        "c.toml",
    )
    services: Any = SimpleNamespace(state=Path("/nowhere"), journal="j", base_dir=Path("/nowhere"), durability="")
    box = shell.make("box", shell.Options(), services)
    page = memory.MemoryResource("page", memory.Options(), memory.MemoryWorld(), "j")
    conductor: Any = SimpleNamespace(ledger=None, contract=contract, resources={"box": box, "page": page})
    nobody: Any = None
    acting = Acting(conductor, nobody)
    with pytest.raises(InvalidAction, match="there is no action 'fly'") as fly:
        acting.check({"type": "fly"})
    assert set(fly.value.hint.removeprefix("There are: ").split(", ")) >= {"run", "put", "get"}
    with pytest.raises(InvalidAction, match="put takes key, value"):
        acting.check({"type": "put", "key": "a"})
    with pytest.raises(InvalidAction, match=r"not a run|run: "):
        acting.check({"type": "run"})
    acting.check({"type": "run", "command": "ls"})
