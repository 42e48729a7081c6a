"""Acting in environments: what is said where nobody could."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statefork.adapters.interfaces.registry import adapter_names
from statefork.engine.acting import Acting
from statefork.engine.errors import NotReady
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
