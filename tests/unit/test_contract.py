"""Contracts: what parses, what each mistake is told, and where it stands."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefork.engine.contract import (
    CONTRACT_BYTES_MAX,
    RESOURCES_MAX,
    Contract,
    check_bases,
    load_contract,
    parse_contract,
)
from statefork.engine.errors import ContractError

pytestmark = pytest.mark.smoke

SHOP = """\
# A shop.
[contract]
name = "shop"
build = "worlds.shop.build"

[resources.browser]
adapter = "browser"
depends_on = ["web"]
start = "http://shop.example/"

[resources.web]
adapter = "web"
durability = "derived"
depends_on = ["db", "media"]
host = "shop.example"
stores = { database = "db", media = "media" }

[resources.db]
adapter = "sqlite"
base = "shop.sqlite3"

[resources.media]
adapter = "files"
base = "media"
"""

ADAPTERS = frozenset({"browser", "web", "sqlite", "files"})


def problems(text: str, adapters: frozenset[str] | None = ADAPTERS) -> list[str]:
    """What is wrong with a contract, a line each."""
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "shop.toml", adapters=adapters)
    assert caught.value.code == "contract_error"
    assert caught.value.facts["file"] == "shop.toml"
    return [str(problem).removeprefix("shop.toml:").strip() for problem in caught.value.problems]


def test_given_a_contract_when_parsed_then_every_part_is_there() -> None:
    contract = parse_contract(SHOP, "shop.toml", adapters=ADAPTERS)
    assert (contract.name, contract.build, contract.text) == ("shop", "worlds.shop.build", SHOP)
    web = contract.resources["web"]
    assert (web.adapter, web.durability, web.depends_on) == ("web", "derived", ("db", "media"))
    assert web.options == {"host": "shop.example", "stores": {"database": "db", "media": "media"}}
    assert contract.resources["db"].durability == "authoritative"


def test_given_dependencies_when_parsed_then_order_has_them_first_and_else_follows_the_file() -> None:
    assert parse_contract(SHOP, "shop.toml").order == ("db", "media", "web", "browser")


def test_given_another_layout_when_parsed_then_the_digest_is_the_same() -> None:
    loose = SHOP.replace(" = ", "=").replace("# A shop.", "").replace("\n\n", "\n")
    as_json = json.dumps(
        {
            "contract": {"build": "worlds.shop.build", "name": "shop"},
            "resources": {
                name: {
                    "adapter": spec.adapter,
                    "durability": spec.durability,
                    "depends_on": spec.depends_on,
                    **spec.options,
                }
                for name, spec in reversed(parse_contract(SHOP, "shop.toml").resources.items())
            },
        }
    )
    digests = {parse_contract(text, "any").digest for text in (SHOP, loose, as_json, SHOP.replace("\n", "\r\n"))}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "shop"', 'name = "shop2"'),
        ("worlds.shop.build", "worlds.shop.other"),
        ('"derived"', '"ephemeral"'),
        ('base = "media"', 'base = "pictures"'),
        ('depends_on = ["db", "media"]', 'depends_on = ["db"]'),
    ],
)
def test_given_another_content_when_parsed_then_the_digest_is_another(old: str, new: str) -> None:
    assert parse_contract(SHOP.replace(old, new), "a").digest != parse_contract(SHOP, "a").digest


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "[contract]",
            "[contract]\nowner = 1",
            "3:1: contract.owner: unknown key 'owner'; there are: name, build, snapshots, retention, determinism",
        ),
        ("[contract]", "[contract]\nbuilt = 1", "3:1: contract.built: unknown key 'built'; did you mean 'build'?"),
        (
            "[contract]",
            "policy = 1\n[contract]",
            "2:1: policy: unknown key 'policy'; there are: contract, resources, masks",
        ),
        (
            "[contract]",
            "[contract]\ndeterminism = 'some'",
            "3:1: contract.determinism: must be 'off', 'record' or 'strict', not 'some'",
        ),
        ('name = "shop"', "", "2:2: contract.name: missing: a contract has a name"),
        ('"worlds.shop.build"', '"worlds/shop.py"', "4:1: contract.build: must be the name of a Python module, "
         "such as 'shop.build', not 'worlds/shop.py'"),
        ('adapter = "sqlite"', 'adapter = "sqlit"', "19:1: resources.db.adapter: unknown adapter 'sqlit'; "
         "did you mean 'sqlite'?"),
        ('adapter = "sqlite"', "", "18:12: resources.db.adapter: missing: a resource names its adapter"),
        ('adapter = "sqlite"', "adapter = 3", "19:1: resources.db.adapter: must be a string, not 3"),
        ('"derived"', '"volatile"', "13:1: resources.web.durability: must be one of authoritative, derived, "
         "ephemeral, not 'volatile'"),
        ('["db", "media"]', '["db",\n "medai"]', "15:2: resources.web.depends_on[1]: unknown resource 'medai'; "
         "did you mean 'media'?"),
        ('["db", "media"]', '["db", "db"]', "14:21: resources.web.depends_on[1]: 'db' stands twice"),
        ('["db", "media"]', '"db"', "14:1: resources.web.depends_on: must be a list of resource names"),
        ('base = "shop.sqlite3"', "base = 2026-01-01", "20:1: resources.db.base: dates and times are written "
         "as strings"),
        ('base = "shop.sqlite3"', "size = nan", "20:1: resources.db.size: must be a finite number"),
        ("[resources.media]", "[resources.Media]", "22:12: resources.Media: 'Media' is no name: at most 63 small "
         "letters, digits, '-' and '_', beginning with a letter"),
    ],
)  # fmt: skip
def test_given_a_mistake_when_parsed_then_the_error_says_what_and_where(old: str, new: str, expected: str) -> None:
    assert expected in problems(SHOP.replace(old, new, 1))


def test_given_many_mistakes_when_parsed_then_one_error_tells_all_in_the_order_of_the_file() -> None:
    text = SHOP.replace('"derived"', '"never"').replace('"sqlite"', '"oracle"').replace('name = "shop"', 'name = "A b"')
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "shop.toml", adapters=ADAPTERS)
    assert [problem.place.line for problem in caught.value.problems] == [3, 13, 19]
    assert caught.value.message.startswith("shop.toml: 3 problems\n  shop.toml:3:1: contract.name: ")
    assert caught.value.facts == {"file": "shop.toml", "line": 3, "column": 1, "key": "contract.name"}


def test_given_a_circle_when_parsed_then_the_error_walks_it() -> None:
    text = SHOP.replace('base = "media"', 'base = "media"\ndepends_on = ["browser"]')
    circle = "browser -> web -> media -> browser"
    assert problems(text) == [
        f"8:1: resources.browser.depends_on: resources depend on each other in a circle: {circle}"
    ]


def test_given_a_resource_that_needs_itself_when_parsed_then_that_is_a_circle() -> None:
    text = '[contract]\nname="a"\n[resources.x]\nadapter="files"\ndepends_on=["x"]'
    assert problems(text) == ["5:1: resources.x.depends_on: resources depend on each other in a circle: x -> x"]


@pytest.mark.parametrize("path", ["shop.sqlite3", "./shop.sqlite3", "x/../shop.sqlite3", "shop.sqlite3/inner", "."])
def test_given_two_resources_on_one_path_when_parsed_then_both_are_named(path: str) -> None:
    (problem,) = problems(SHOP.replace('base = "media"', f'base = "{path}"'))
    assert problem.startswith("24:1: resources.media.base: two resources on one path: 'db' has 'shop.sqlite3'")


def test_given_two_resources_on_one_host_when_parsed_then_it_is_refused() -> None:
    second = '\n[resources.admin]\nadapter = "web"\nhost = "Shop.Example"\n'
    (problem,) = problems(SHOP + second)
    assert "resources.admin.host: two resources on one host: 'web' has 'shop.example'" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[contract\n", "1:10: not valid TOML: Expected ']' at the end of a table declaration"),
        ("[contract]\nname = 'a'\nname = 'b'\n", "3:11: not valid TOML: Cannot overwrite a value"),
        ("[resources.a]\n[resources.a]\n", "2:13: not valid TOML: Cannot declare ('resources', 'a') twice"),
        ('[contract]\nname = """a', "2:1: not valid TOML: Unterminated string"),
        ('{"contract": }', "1:14: not valid JSON: Expecting value"),
        ("", "contract: missing: a contract has a table [contract]"),
        ('contract = "shop"\n[resources]', "1:1: contract: must be a table"),
        ("[contract]\nname='a'\n[resources]", "3:2: resources: a contract names at least one resource"),
        ("[contract]\nname='a'\n[resources]\nx = 1", "4:1: resources.x: must be a table [resources.x]"),
    ],
)
def test_given_a_text_that_is_no_contract_when_parsed_then_the_error_has_the_place(text: str, expected: str) -> None:
    assert expected in problems(text)


def test_given_json_with_a_name_twice_when_parsed_then_the_second_one_is_shown() -> None:
    text = '{"contract": {"name": "a"},\n "resources": {"db": {"adapter": "sqlite"},\n  "db": {"adapter": "files"}}}'
    assert problems(text) == ["3:3: resources.db: this name stands twice in one table"]


def test_given_a_text_past_the_limits_when_parsed_then_it_is_refused() -> None:
    with pytest.raises(ContractError, match="at most"):
        parse_contract("#" * (CONTRACT_BYTES_MAX + 1), "shop.toml")
    many = "".join(f"[resources.r{n}]\nadapter='files'\n" for n in range(RESOURCES_MAX + 1))
    assert "at most 100 resources, not 101" in problems("[contract]\nname='a'\n" + many)[0]
    with pytest.raises(ContractError, match="too deeply"):
        parse_contract('{"a":' + "[" * 200_000, "shop.toml")


class Inner(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    path: str


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    host: str
    stores: dict[str, str] = {}
    sites: list[Inner] = []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('hosts = "a"', "5:1: resources.web.hosts: unknown key 'hosts' of adapter 'web'; did you mean 'host'?"),
        ("host = 3", "5:1: resources.web.host: must be a string, not a whole number"),
        ('stores = { db = "x" }', "3:12: resources.web.host: missing: the adapter needs it"),
        ('host = "a"\nstores = { db = 1 }', "6:1: resources.web.stores: must be a string, not a whole number"),
        (
            'host = "a"\n[[resources.web.sites]]\npath = "p"\n[[resources.web.sites]]\npath = 1',
            "9:1: resources.web.sites[1].path: must be a string, not a whole number",
        ),
        (
            'host = "a"\n[[resources.web.sites]]\npath = "p"\nport = 1',
            "8:1: resources.web.sites[0].port: unknown key 'port' of adapter 'web'",
        ),
    ],
)
def test_given_an_option_that_the_adapter_refuses_when_converted_then_the_line_is_told(
    line: str, expected: str
) -> None:
    contract = parse_contract(f'[contract]\nname = "a"\n[resources.web]\nadapter = "web"\n{line}\n', "shop.toml")
    with pytest.raises(ContractError) as caught:
        contract.convert("web", Options)
    assert str(caught.value) == f"shop.toml:{expected}"


def test_given_several_wrong_options_when_converted_then_all_are_told() -> None:
    text = '[contract]\nname = "a"\n[resources.web]\nadapter = "web"\nstores = 1\nport = 2\n'
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "shop.toml").convert("web", Options)
    assert [(problem.place.line, problem.place.key) for problem in caught.value.problems] == [
        (3, "resources.web.host"),
        (5, "resources.web.stores"),
        (6, "resources.web.port"),
    ]


def test_given_good_options_when_converted_then_the_struct_has_them() -> None:
    text = '[contract]\nname = "a"\n[resources.web]\nadapter = "web"\nhost = "h"\n'
    assert parse_contract(text, "a").convert("web", Options) == Options(host="h")


def test_given_an_adapters_own_complaint_when_raised_then_it_bears_the_place() -> None:
    error = parse_contract(SHOP, "shop.toml").problem("web", "stores.media", "no such folder")
    assert str(error) == "shop.toml:16:29: resources.web.stores.media: no such folder"


def test_given_a_file_when_loaded_then_it_is_the_same_as_parsing(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(SHOP, encoding="utf-8")
    assert load_contract(file) == parse_contract(SHOP, "x")
    with pytest.raises(ContractError, match="No such file"):
        load_contract(tmp_path / "missing.toml")
    file.write_bytes(b"\xff")
    with pytest.raises(ContractError, match="can't read the contract"):
        load_contract(file)


def test_given_bases_that_are_missing_when_checked_then_each_is_named(tmp_path: Path) -> None:
    contract = parse_contract(SHOP, "shop.toml")
    with pytest.raises(ContractError) as caught:
        check_bases(contract, tmp_path)
    assert [(p.place.line, p.place.key) for p in caught.value.problems] == [
        (20, "resources.db.base"),
        (24, "resources.media.base"),
    ]
    (tmp_path / "shop.sqlite3").touch()
    (tmp_path / "media").mkdir()
    check_bases(contract, tmp_path)


names = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)


@st.composite
def contracts(draw: st.DrawFn) -> dict[str, object]:
    """A valid contract: each resource depends only on earlier ones."""
    resources: dict[str, object] = {}
    for name in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        needed = draw(st.lists(st.sampled_from(sorted(resources)), unique=True)) if resources else []
        resources[name] = {"adapter": draw(names), "depends_on": needed}
    return {"contract": {"name": draw(names)}, "resources": resources}


@given(contracts(), st.randoms())
def test_given_any_acyclic_contract_when_parsed_then_order_is_complete_and_dependencies_come_first(
    document: dict[str, dict[str, object]], random: Random
) -> None:
    shuffled = list(document["resources"].items())
    random.shuffle(shuffled)
    contract = parse_contract(json.dumps({**document, "resources": dict(shuffled)}), "x.json")
    assert sorted(contract.order) == sorted(document["resources"])
    place = {name: index for index, name in enumerate(contract.order)}
    assert all(place[n] < place[spec.name] for spec in contract.resources.values() for n in spec.depends_on)
    assert contract == parse_contract(json.dumps(document), "y.json")
    assert isinstance(contract, Contract)


@given(st.text(max_size=200))
def test_given_any_text_when_parsed_then_nothing_but_a_contract_error_is_raised(text: str) -> None:
    with contextlib.suppress(ContractError):
        parse_contract(text, "x")
