"""A program that a contract names, and that is not there, is told before anything is begun."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.python import open_engine
from statefork.adapters.resources.process.options import Options
from statefork.adapters.resources.process.programs import why_not
from statefork.engine.errors import ContractError

CONTRACT = """
[contract]
name = "notes"

[resources.notes]
adapter = "process"
command = ["COMMAND", "{port}"]
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory with a program, and a file that is none."""
    (tmp_path / "data").mkdir()
    for name, mode in (("serve", 0o755), ("text", 0o644), ("data/serve", 0o755)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("sh -c true", {}, ""),
        ("{python} -m http.server", {}, ""),
        ("{data}/serve", {"base": "data"}, ""),
        ("{data}/serve", {}, ""),  # it begins empty: who knows what is put there
        ("{shop.program} x", {}, ""),
        ("./serve", {"path": "."}, ""),
        ("./serve", {"base": "data"}, ""),
        ("./serve", {}, ""),
        ("serve", {"environment": {"PATH": "{data}/bin"}}, ""),
        ("no-such-program", {}, "there is no program 'no-such-program' in the engine's PATH"),
        ("sh", {"environment": {"PATH": "/nowhere"}}, "there is no program 'sh' in the contract's PATH (/nowhere)"),
        ("./text", {"path": "."}, "may not be executed"),
        ("./none", {"base": "data"}, "there is no program"),
        ("{data}/none", {"base": "data"}, "there is no program"),
        ("/tmp", {}, "is a directory"),
    ],
)
def test_why_a_program_can_not_be_run(there: Path, command: str, options: dict[str, object], why: str) -> None:
    told = why_not(Options(command=command, **options), there)  # type: ignore[arg-type]  # as a contract gives them
    assert (why in told) if why else not told


def test_what_lies_in_a_base_that_is_not_made_yet_is_not_looked_for(there: Path) -> None:
    assert not why_not(Options(command="{data}/none", base="data"), None)
    assert why_not(Options(command="no-such-program"), None)


@pytest.mark.parametrize("command", ["no-such-program", "TEXT"])
def test_it_is_told_wherever_a_contract_is_opened_or_checked(
    there: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, state = there / "notes.toml", there / "state"
    file.write_text(CONTRACT.replace("COMMAND", command.replace("TEXT", str(there / "text"))))
    place = f"{file}:7:1: resources.notes.command:"

    async def opened() -> None:
        async with open_engine(file, state=state):
            raise AssertionError("it is open")

    with pytest.raises(ContractError, match=r"program|executed") as told:
        anyio.run(opened, backend="trio")
    assert place in str(told.value)
    assert not state.exists()
    assert invoke(["contract", "check", str(file)]) == 1
    assert place in capsys.readouterr().out
    assert invoke(["doctor", str(file), "--state", str(state)]) == 2
    found = capsys.readouterr().out
    assert place in found
    assert "Missing: program" in found


def test_so_is_a_program_that_makes_a_derived_tree(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = there / "notes.toml"
    entry = (
        '[contract]\nname = "notes"\n[resources.index]\nadapter = "derived"\ndurability = "derived"\ncommand = ["%s"]\n'
    )
    for command, status in (("./serve", 0), ("sh", 0), ("{output}/x", 0), ("./text", 1), ("no-such-program", 1)):
        file.write_text(entry % command)
        assert invoke(["contract", "check", str(file)]) == status, command
        assert (f"{file}:6:1: resources.index.command:" in capsys.readouterr().out) == bool(status)
