"""The tutorial and the README's example do what they say."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.document_kit import Block, Shell, blocks, matches, section
from tests.integration.postgres_kit import needs_postgres

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs/tutorial.md"
WITHOUT_ASYNC = ROOT / "docs/how-to/use-without-async.md"
FIRST = ("First steps", "Looking at the history", "When things go wrong")


def tutorial(*headings: str) -> list[Block]:
    """The fenced blocks of some sections of the tutorial."""
    return blocks(section(TUTORIAL.read_text(encoding="utf-8"), *headings))


@pytest.mark.smoke
def test_the_tutorials_first_steps_do_what_they_say(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for block in tutorial(*FIRST):
        shell.run(block)


@pytest.mark.shop
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_the_tutorials_shop_does_what_it_says(tmp_path: Path) -> None:
    from tests.integration.shop_kit import seeded

    seeded(tmp_path / "state")
    shell = Shell(tmp_path)
    with ExitStack() as running:
        for block in tutorial("A real shop"):
            if block.background:
                running.enter_context(shell.background(block))
            else:
                shell.run(block)


@pytest.mark.smoke
@pytest.mark.shop
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_the_readmes_example_runs(tmp_path: Path) -> None:
    from tests.integration.shop_kit import seeded

    seeded(tmp_path / "state")
    (example,) = [
        block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "python"
    ]
    (tmp_path / "example.py").write_text(example.body, encoding="utf-8")
    command = [sys.executable, "example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.smoke
def test_the_guide_to_use_without_async_does_what_it_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    text = WITHOUT_ASYNC.read_text(encoding="utf-8")
    for block in blocks(section(text, "In a script", "In a notebook", "In a Gymnasium environment")):
        shell.run(block)


@pytest.mark.shop
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_the_guides_shop_without_async_does_what_it_says(tmp_path: Path) -> None:
    from tests.integration.shop_kit import seeded

    seeded(tmp_path / "shop-state")
    shell = Shell(tmp_path)
    for block in blocks(section(WITHOUT_ASYNC.read_text(encoding="utf-8"), "With a browser")):
        shell.run(block)


@needs_postgres
@pytest.mark.usefixtures("postgres_door")
def test_the_guide_to_postgresql_does_what_it_says(tmp_path: Path) -> None:
    import psycopg

    from statefork.adapters.resources.postgres.binaries import find_programs

    shell = Shell(tmp_path)
    shell.environment["PATH"] = f"{shell.environment['PATH']}:{find_programs()}"
    text = (ROOT / "docs/how-to/use-postgresql.md").read_text(encoding="utf-8")
    for block in blocks(section(text, "In Python")):
        shell.run(block)
    ours = (
        "select datname from pg_database where datname like 'sf\\_%' "
        "union all select rolname from pg_roles where rolname like 'sf\\_%'"
    )
    with psycopg.connect(shell.environment["NOTES_SERVER"]) as server:
        assert server.execute(ours).fetchall()
        for block in blocks(section(text, "What a lost directory left")):
            shell.run(block)
        assert not server.execute(ours).fetchall()


def test_every_block_of_the_tutorial_is_run() -> None:
    everything = blocks(TUTORIAL.read_text(encoding="utf-8"))
    run = tutorial(*FIRST, "A real shop")
    assert [block.body for block in everything if block.body != "$ ./dev setup\n"] == [block.body for block in run]


def test_given_expected_output_when_compared_then_dots_stand_for_anything() -> None:
    assert matches(["a … c", "…", "end"], ["a  b   c", "x", "y", "end"])
    assert matches(["…"], [])
    assert matches([], [])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["…", "end"], ["end", "more"])
