"""Options of the resource ``postgres``: what excludes what, told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.interfaces.registry import check_options, make_resources
from statefork.adapters.resources.postgres.binaries import server_programs
from statefork.engine.contract import parse_contract
from statefork.engine.errors import ContractError, MissingDependency
from statefork.engine.ports import Services

HEAD = """
[contract]
name = "one"

[resources.db]
adapter = "postgres"
"""


@pytest.mark.parametrize(
    "lines",
    [
        'base = "a.sql"',
        'live = "dbname=a"\ndsn = "host=b"',
        'live_variable = "A"\npool = 0',
        'base = "a.sql"\nstrategy = "private"',
    ],
)
def test_good_options(lines: str) -> None:
    check_options(parse_contract(HEAD + lines, "one.toml"))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "exactly one of base, live and live_variable"),
        ('base = "a.sql"\nlive = "dbname=a"', "exactly one of base, live and live_variable"),
        ('base = "a.sql"\ndsn = "host=b"\ndsn_variable = "B"', "exclude each other"),
        ('base = "a.sql"\npool = 100', "between 0 and 64"),
        ('base = "a.sql"\ndsn = "host=b"\nstrategy = "private"', "own server"),
        ('base = "a.sql"\ndsn = "host=b"\nprograms = "/usr/lib/postgresql/15/bin"', "own server"),
        (
            'base = "a.sql"\nstrategy = "privat"',
            "one of 'auto', 'shared', 'private', not 'privat'; did you mean 'private'",
        ),
        ('base = "a.sql"\naccelerate = "yes"', "accelerate: must be true or false, not a string"),
        ('base = "a.sql"\nmax_connections = 5', "max_connections is between 24 and"),
        ('base = "a.sql"\ndsn = "host"', "8:1: resources.db.dsn: the connection string can't be read"),
        ('base = "a.sql"\npol = 1', "did you mean 'pool'"),
    ],
)
def test_bad_options(lines: str, said: str) -> None:
    with pytest.raises(ContractError, match=said) as caught:
        check_options(parse_contract(HEAD + lines, "one.toml"))
    assert str(caught.value.facts["key"]).startswith("resources.db")


def test_all_problems_of_all_resources_are_told_with_their_lines() -> None:
    lines = 'base = "a.sql"\nlive = "dbname=a"\npool = 100\n[resources.two]\nadapter = "postgres"\nstratgy = "shared"\n'
    with pytest.raises(ContractError) as caught:
        check_options(parse_contract(HEAD + lines, "one.toml"))
    assert [(problem.place.line, problem.place.key) for problem in caught.value.problems] == [
        (8, "resources.db.live"),
        (9, "resources.db.pool"),
        (12, "resources.two.stratgy"),
    ]


@pytest.mark.parametrize("option", ["live", "dsn"])
@pytest.mark.parametrize(
    "form", ["postgresql://me:hush@there/db", "host=there password=hush", "postgresql:///?password=hush"]
)
def test_a_contract_holds_no_password(option: str, form: str) -> None:
    lines = f'{option} = "{form}"\n' + ('base = "a.sql"\n' if option == "dsn" else "")
    with pytest.raises(ContractError, match=f"{option}_variable") as caught:
        check_options(parse_contract(HEAD + lines, "one.toml"))
    assert caught.value.facts["key"] == f"resources.db.{option}"
    assert "hush" not in f"{caught.value} {caught.value.hint} {caught.value.facts}"


def test_a_variable_that_can_not_be_used_is_told_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = parse_contract(HEAD + 'base = "a.sql"\ndsn_variable = "THERE"\n', "one.toml")
    services = Services(state=tmp_path, journal="tests", blobs=None, base_dir=tmp_path)
    for value, said in (("", "is not set"), ("hush", "can't be read")):
        monkeypatch.setenv("THERE", value)
        with pytest.raises(ContractError, match=rf"one.toml:8:1: resources.db.dsn_variable: .*{said}") as caught:
            make_resources(contract, services)
        assert "hush" not in f"{caught.value} {caught.value.hint}"


def test_programs_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency) as caught:
        server_programs(str(tmp_path / "bin"))
    said = f"the programs of PostgreSQL can't be run: {tmp_path}/bin/postgres: No such file or directory"
    assert caught.value.message == said
