"""The contract tools: what tasks read, whether a contract keeps it, and the first contract that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.contracts.covering import database_name
from statefork.adapters.interfaces.contracts.reading import Tasks, read_tasks
from statefork.adapters.interfaces.registry import adapter_names, check_options
from statefork.engine.contract import parse_contract
from statefork.engine.errors import ContractError

TASKS: list[dict[str, Any]] = [
    {
        "task_id": 1,
        "sites": ["shopping"],
        "storage_state": "./.auth/shopping_state.json",
        "start_url": "__SHOPPING__",
        "eval": {"eval_types": ["string_match"], "reference_url": "__SHOPPING__/orders"},
    },
    {
        "task_id": 2,
        "sites": ["shopping", "wiki"],
        "start_url": "__SHOPPING__ |AND| __WIKI__/Main",
        "eval": {
            "eval_types": ["program_html", "url_match"],
            "program_html": [
                {"url": "func:shopping_get_latest_order_url()", "locator": "localStorage.getItem('cart')"},
                {"url": "last", "locator": "sessionStorage.view + document.cookie"},
                {"url": "__WIKI__/x", "locator": "localStorage['theme']; localStorage.clear(); localStorage.length"},
            ],
        },
    },
    {
        "task_id": 3,
        "sites": ["shopping"],
        "start_url": "__SHOPPING__/",
        "eval": {
            "eval_types": ["rows"],
            "checks": [
                {"database": "postgresql://u:secret@h/orders", "query": "SELECT 1 FROM orders o JOIN users u ON true"},
                {"database": "sqlite:///notes.sqlite3", "query": "select * from note"},
                {"path": "exports/report.csv"},
            ],
        },
    },
    {"task_id": 4, "start_url": "http://map.example:3000/", "eval": {"eval_types": ["telepathy"]}},
]

CONTRACT = """
[contract]
name = "shop"

[resources.orders]
adapter = "postgres"
live_variable = "ORDERS_DSN"

[resources.notes]
adapter = "sqlite"
base = "notes.sqlite3"

[resources.exports]
adapter = "files"
base = "exports"

[resources.shopping]
adapter = "process"
command = "sh serve {port} {orders.name}"
host = "shop.example"
depends_on = ["orders"]

[resources.wiki]
adapter = "mediawiki"
host = "wiki.example"
private = { command = "sh serve-wiki {port}" }

[resources.browser]
adapter = "browser"
depends_on = ["shopping", "wiki"]
external = ["http://map.example:3000"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(TASKS))
    (tmp_path / "notes.sqlite3").touch()
    (tmp_path / "exports").mkdir()
    return path


def by_name(tasks: Tasks) -> dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]]:
    return {(read.kind, read.name): (read.details, read.tasks) for read in tasks.reads}


def test_what_evaluators_read_is_found(file: Path) -> None:
    tasks = read_tasks(file)
    found = by_name(tasks)
    assert set(found) == {
        ("site", "shopping"),
        ("site", "wiki"),
        ("site", "map.example:3000"),
        ("database", "postgresql://u@h/orders"),
        ("database", "sqlite:///notes.sqlite3"),
        ("file", "exports/report.csv"),
        ("storage", "cart"),
        ("storage", "view"),
        ("storage", "theme"),
        ("cookie", "*"),
    }
    assert found["database", "postgresql://u@h/orders"] == (("orders", "users"), ("3",))
    assert found["storage", "view"] == (("sessionStorage",), ("2",))
    assert found["site", "shopping"][1] == ("1", "2", "3")
    assert found["cookie", "*"][1] == ("1", "2")
    assert tasks.unclear == ("an evaluator of type 'telepathy' (tasks 4)",)


@pytest.mark.parametrize("form", ["list", "object", "one", "lines"])
def test_a_task_file_may_have_several_forms(tmp_path: Path, form: str) -> None:
    path = tmp_path / "tasks.json"
    texts = {
        "list": json.dumps(TASKS[:1]),
        "object": json.dumps({"tasks": TASKS[:1]}),
        "one": json.dumps(TASKS[0]),
        "lines": "\n".join(json.dumps(task) for task in TASKS[:2]),
    }
    path.write_text(texts[form])
    assert ("site", "shopping") in by_name(read_tasks(path))


@pytest.mark.parametrize("text", ["", "[]", "[1]", "{", '"x"'])
def test_what_are_no_tasks_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(ContractError):
        read_tasks(path)
    assert invoke(["contract", "derive", str(path)]) == 2
    assert "error[contract" in capsys.readouterr().err


def test_an_evaluator_may_say_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({"eval": {"reads": ["resource db", "cookie sid", "nonsense"]}}))
    tasks = read_tasks(path)
    assert set(by_name(tasks)) == {("resource", "db"), ("cookie", "sid")}
    assert "nonsense" in tasks.unclear[0]


def checked(contract: Path, *words: str, capsys: pytest.CaptureFixture[str], status: int) -> dict[str, Any]:
    assert invoke(["contract", "check", str(contract), *words, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_contract_that_keeps_all_is_good(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = file.with_name("shop.toml")
    contract.write_text(CONTRACT)
    found = checked(contract, "--tasks", str(file), "--site", "shopping=shop.example", capsys=capsys, status=0)
    assert found["ok"]
    assert found["missing"] == []
    states = {one["read"]["name"]: (one["state"], one["by"]) for one in found["covered"]}
    assert states["map.example:3000"] == ("outside", "browser")
    assert states["wiki"] == ("kept", "wiki")
    assert states["postgresql://u@h/orders"] == ("kept", "orders")
    assert states["exports/report.csv"] == ("kept", "exports")
    assert any("a private backend stands in" in note for note in found["notes"])
    assert invoke(["contract", "check", str(contract), "--tasks", str(file)]) == 0
    assert "nothing is wrong, and keeps all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('adapter = "browser"', 'adapter = "memory"', "unknown key 'external'"),
        ('depends_on = ["orders"]', "", "{orders.…} is of a resource that is not among depends_on"),
        ("sh serve {port} {orders.name}", "FILL IN", "is still to be filled in"),
        ('base = "exports"', 'base = "nowhere"', "there is nothing at"),
        ("sh serve {port}", "no-such-program {port}", "there is no program 'no-such-program' in"),
        ("sh serve-wiki {port}", "/bin {port}", "'/bin' is a directory, and no program"),
        ('depends_on = ["shopping", "wiki"]', 'depends_on = ["shoping"]', "did you mean 'shopping'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    contract = file.with_name("shop.toml")
    contract.write_text(CONTRACT.replace(old, new))
    found = checked(contract, capsys=capsys, status=1)
    assert any(says in problem and "shop.toml:" in problem for problem in found["problems"]), found["problems"]


@pytest.mark.parametrize(
    ("old", "new", "name", "why"),
    [
        ('[resources.notes]\nadapter = "sqlite"\nbase = "notes.sqlite3"', "", "sqlite:///notes.sqlite3", "no sqlite"),
        ('[resources.exports]\nadapter = "files"\nbase = "exports"', "", "exports/report.csv", "no resource of files"),
        ('host = "wiki.example"', "", "wiki", "--site wiki=HOST"),
        ('["shopping", "wiki"]', '["shopping"]', "wiki", "no page reaches it"),
        ('external = ["http://map.example:3000"]', "", "map.example:3000", "no resource has the host"),
    ],
)
def test_what_tasks_read_and_no_resource_keeps_is_missing(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, name: str, why: str
) -> None:
    contract = file.with_name("shop.toml")
    assert old in CONTRACT
    contract.write_text(
        CONTRACT.replace(old, new).replace("[resources.wiki]", "[resources.encyclopaedia]", name == "wiki")
    )
    if name == "wiki":
        contract.write_text(contract.read_text().replace(', "wiki"]', ', "encyclopaedia"]'))
    found = checked(contract, "--tasks", str(file), capsys=capsys, status=1)
    assert name in {one["read"]["name"] for one in found["missing"]}
    assert any(why in one["why"] for one in found["missing"])


def test_the_first_contract_is_valid_and_says_what_is_to_be_filled_in(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["contract", "derive", str(file), "--name", "First Try"]) == 0
    text = capsys.readouterr().out
    contract = parse_contract(text, "first.toml", adapters=adapter_names())
    check_options(contract)
    assert contract.name == "first-try"
    assert contract.resources["shopping"].depends_on == ("orders", "notes", "exports")
    assert contract.resources["browser"].depends_on == ("map", "shopping", "wiki")
    assert contract.resources["browser"].options["start"] == "http://shopping.example/"
    assert "secret" not in text
    path = file.with_name("first.toml")
    path.write_text(text)
    found = checked(path, "--tasks", str(file), capsys=capsys, status=1)
    assert found["missing"] == []
    assert all("is still to be filled in" in problem for problem in found["problems"])
    assert invoke(["contract", "derive", str(file), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"contract", "reads", "unclear"}


def test_a_contract_that_is_not_there_can_not_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["contract", "check", str(tmp_path / "none.toml")]) == 2
    assert "no contract at" in capsys.readouterr().err
    assert invoke(["contract", "check", "shop", "--site", "nonsense"]) == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("postgresql://u@h:5432/shop?sslmode=off", "shop"),
        ("host=h dbname=shop user=u", "shop"),
        ("sqlite:////var/lib/app/notes.db", "notes"),
        ("data/notes.sqlite3", "notes"),
        ("shop", "shop"),
    ],
)
def test_a_databases_name_is_found_in_how_it_is_reached(text: str, name: str) -> None:
    assert database_name(text) == name


def test_files_the_wrong_way_round_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract, as_json = file.with_name("shop.toml"), file.with_name("shop.json")
    contract.write_text(CONTRACT)
    as_json.write_text(json.dumps({"contract": {"name": "shop"}, "resources": {"page": {"adapter": "memory"}}}))
    told = {
        ("check", str(file), "--tasks", str(contract)): f"check {contract} --tasks {file}",
        ("check", str(file)): f"derive {file}, or statefork contract check CONTRACT --tasks {file}",
        ("check", str(contract), "--tasks", str(as_json)): f"Did you mean: statefork contract check {as_json}",
        ("derive", str(contract)): f"{contract} is a contract, and no task file",
        ("derive", str(as_json)): f"{as_json} is a contract, and no task file",
        ("discover", str(file), "--run", "true"): f"{file} is a task file, and no contract",
    }
    for words, said in told.items():
        assert invoke(["contract", *words]) == 2
        assert said in capsys.readouterr().err, words
