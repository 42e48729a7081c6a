"""What the documents say of the code is what the code says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from statefork.adapters.interfaces.registry import BUILT_IN, adapter_module
from statefork.engine.contract import parse_contract
from statefork.engine.transitions import diagram
from tests.integration.document_kit import blocks

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(r"^\| `(?P<key>\w+)` \| (?P<type>[^|]+) \| (?P<default>[^|]+) \| [^|]+ \|$", re.MULTILINE)


def section(text: str, heading: str) -> str:
    """The part of a document under a heading of level 2."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {heading!r}"
    return found[1]


def test_the_state_diagram_is_the_transition_table() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(
        r"<!-- begin: state diagram -->\n```mermaid\n(.*?)\n```\n<!-- end: state diagram -->", text, re.DOTALL
    )
    assert drawn, "the diagram stands between two comments, as a mermaid block"
    assert drawn[1] == diagram(), "paste what `python -m statefork.engine.transitions` prints"


@pytest.mark.parametrize("adapter", sorted(BUILT_IN))
def test_the_contract_reference_has_every_option_of_every_adapter(adapter: str) -> None:
    text = section((DOCS / "reference/contract.md").read_text(encoding="utf-8"), f"Adapter `{adapter}`")
    documented = {row["key"]: row for row in ROW.finditer(text)}
    options = adapter_module(adapter).Options
    fields = {field.encode_name: field for field in msgspec.structs.fields(options)}
    assert list(documented) == list(fields)
    for name, field in fields.items():
        assert documented[name]["default"].strip() == default(field), name


def default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as the reference writes it."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def test_the_reference_has_a_section_for_each_adapter_and_no_other() -> None:
    text = (DOCS / "reference/contract.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## Adapter `(\w+)`", text, re.MULTILINE)) == sorted(BUILT_IN)


def test_every_toml_contract_in_the_documents_is_valid() -> None:
    found = 0
    for document in sorted(DOCS.rglob("*.md")):
        for block in blocks(document.read_text(encoding="utf-8")):
            if block.language == "toml" and "[contract]" in block.body and block.file != "wrong.toml":
                contract = parse_contract(block.body, document.name, adapters=BUILT_IN)
                for name, spec in contract.resources.items():
                    contract.convert(name, adapter_module(spec.adapter).Options)
                found += 1
    assert found
