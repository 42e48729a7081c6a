"""Values: what they show of themselves."""

from __future__ import annotations

from statefork.journal.values import Binding, Identity


def test_a_binding_that_is_printed_shows_no_secret() -> None:
    binding = Binding(
        journal="j",
        resource="db",
        adapter="postgres",
        branch="b",
        identity=Identity(env="a", epoch=1, activation=1),
        address={"name": "shop", "password": "hush", "ticket_key_hex": "beef"},
    )
    assert binding.address["password"] == "hush"
    for text in (f"{binding}", repr({"db": binding}), str(list(binding.__rich_repr__()))):
        assert "hush" not in text
        assert "beef" not in text
        assert "'name': 'shop'" in text
