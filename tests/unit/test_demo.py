"""The demo around its scenario: what it prints, what it gives as JSON, and when it declines to begin."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("oscar", reason="the demo's packages: pip install 'statefork[demo]'")

from statefork.adapters.interfaces.cli import demo as command
from statefork.adapters.interfaces.cli import main
from statefork.adapters.interfaces.cli.faults import EXIT_CANNOT, EXIT_INTERRUPTED, exit_status, one_line
from statefork.engine.errors import MissingDependency, TransitionAborted
from statefork.journal.errors import StateForeign
from statefork.journal.store import check_ours
from statefork.worlds.shop import demo as scenario
from statefork.worlds.shop import show
from statefork.worlds.shop.build import build
from statefork.worlds.shop.report import (
    Audited,
    Branching,
    Checked,
    DemoReport,
    EnvironmentReport,
    Memory,
    Replayed,
    RuntimeMemory,
    Timing,
)

if TYPE_CHECKING:
    from statefork.adapters.interfaces.python import Engine


def report(*problems: str) -> DemoReport:
    good = Checked(what="orders", generation=2, score=1.0, facts={"orders": {"seen": 1}})
    bad = Checked(what="leaves", generation=1, score=0.5, facts={"orders": {"seen": 1, "wanted": 0}})

    def env(name: str, origin: str, check: Checked) -> EnvironmentReport:
        return EnvironmentReport(
            name=name,
            task="orders",
            origin=origin,
            generation=2,
            epoch=1,
            actions=5,
            inherited_actions=4 if origin != "base" else 0,
            checked=(check,),
            ms_per_action=81.4,
            private_bytes={"db": 2048, "media": 1024},
            screenshots=5,
        )

    return DemoReport(
        run=1,
        seconds=41.2,
        environments=(env("shop-1", "base", good), env("shop-1-three", "shop-1@2", bad if problems else good)),
        lineage=(Branching(name="shop-1", parent=None), Branching(name="shop-1-three", parent="shop-1@2")),
        timings=(Timing(op="fork", times=4, ready_ms=420.5, stores_ms=4.2, browser_ms=380, server_ms=8),),
        memory=Memory(
            environments=8,
            environments_at_end=12,
            runtimes=(
                RuntimeMemory(
                    name="shop",
                    processes=1,
                    with_one=100 << 20,
                    with_all=107 << 20,
                    at_end=112 << 20,
                    per_environment=1 << 20,
                ),
            ),
            engine=90 << 20,
        ),
        replayed=Replayed(env="shop-1-three", actions=9, exact=True, verdict="exact-observed", seconds=3.1),
        audited=Audited(clean=True, events=900, lines=("clean: 900 events",)),
        screenshots="pictures",
        problems=problems,
    )


def printed(found: DemoReport) -> str:
    out = io.StringIO()
    command.show(found, Console(file=out, width=command.WIDTH_PIPED, highlight=False))
    return out.getvalue()


def test_people_get_a_table_a_tree_and_a_verdict() -> None:
    text = printed(report())
    assert "\x1b" not in text, "plain where no terminal is"
    assert "shop-1-three (from shop-1@2)" in text
    assert "4+5" in text, "inherited and own actions"
    for expected in ("orders ✓", "99.0", "1.0", "112.0", "420.5", "exact-observed", "clean: 900 events", "pictures"):
        assert expected in text
    assert text.splitlines()[-1].startswith("All as it should be: 2 environments")


def test_a_problem_is_told_and_named_in_the_verdict() -> None:
    text = printed(report("shop-1-three: leaves: wrong", "audit: unclean"))
    assert "leaves ✗" in text
    assert text.splitlines()[-1].startswith("NOT as it should be: 2 problems, 1 of 2 evaluations full")
    assert "First: shop-1-three: leaves: wrong" in text


def test_json_has_all_of_it() -> None:
    plain = json.loads(json.dumps(report("broken").as_json()))
    assert plain["ok"] is False
    assert plain["verdict"].startswith("NOT")
    assert plain["environments"][1]["checked"][0]["facts"] == {"orders": {"seen": 1, "wanted": 0}}
    assert plain["memory"]["runtimes"][0]["per_environment"] == 1 << 20


@pytest.mark.parametrize(
    ("names", "run"),
    [([], 1), (["mine"], 1), (["shop-1", "shop-1-three"], 2), (["shop-1", "run2-1", "run10-3"], 11)],
)
def test_every_run_has_names_of_its_own(names: list[str], run: int) -> None:
    assert show.next_run(dict.fromkeys(names)) == run


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    show.refuse_foreign(tmp_path / "absent")
    show.refuse_foreign(tmp_path)
    (tmp_path / "thesis.tex").write_text("\\section{}")
    with pytest.raises(StateForeign, match="holds no earlier demo"):
        show.refuse_foreign(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "worlds" / "shop-0123.partial").mkdir(parents=True)
    show.refuse_foreign(tmp_path)
    with pytest.raises(StateForeign, match="holds no earlier demo of shop-postgres"):
        show.refuse_foreign(tmp_path, "postgres")


def test_a_directory_that_the_demo_began_is_its_own_and_nobody_elses(tmp_path: Path) -> None:
    state = tmp_path / "state"
    show.begin(state)
    check_ours(state)  # the engine opens it
    (state / "journal.sqlite3").touch()  # where it is cut short: the base is built elsewhere first
    (state / "worlds").mkdir()
    show.begin(state)
    with pytest.raises(StateForeign, match="holds no earlier demo of shop-postgres"):
        show.begin(state, "postgres")
    (tmp_path / "file").touch()
    show.begin(tmp_path / "file")  # for the opening to refuse


def test_a_demo_that_is_interrupted_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_play", interrupted)
    assert main.invoke(["demo"]) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "interrupted; run it again to go on\n"


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command.demo)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_the_lines_of_the_demo_are_plain_when_piped() -> None:
    out = io.StringIO()
    narrator = command.Narrator(Console(file=out, width=80))
    narrator.progress(0.1, "creating tables")
    narrator.progress(0.2, "creating tables")
    narrator.tell("shop-1", "created [bold]literally[/bold]")
    assert [line.split(" s  ")[1].split() for line in out.getvalue().splitlines()] == [
        ["base", "creating", "tables"],
        ["shop-1", "created", "[bold]literally[/bold]"],
    ]


def test_without_chromium_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> Path:
        raise MissingDependency(
            "no Chromium was found on this machine", hint="Install it: apt-get install chromium-headless-shell"
        )

    monkeypatch.setattr("statefork.adapters.resources.browser.chromium.find_chromium", none)
    with pytest.raises(MissingDependency, match="no Chromium") as caught:
        command.demo(state=tmp_path / "state")
    assert exit_status(caught.value.code) == EXIT_CANNOT
    assert one_line(caught.value).endswith("Install it: apt-get install chromium-headless-shell")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("envs", ["3", "65"])
def test_too_few_or_too_many_environments(envs: str, tmp_path: Path) -> None:
    code, said = run("--envs", envs, "--state", str(tmp_path / "state"))
    assert code == 2
    assert "must be from 4 to 64" in said


class _Engine:
    """Only what the first act asks of an engine; one environment can't be made."""

    def __init__(self, state: Path) -> None:
        self.state = state

    async def create(self, name: str) -> Any:
        if name == "shop-3":
            raise TransitionAborted("branching media failed: no space left", environment=name)
        return SimpleNamespace(name=name, capsule=SimpleNamespace(actions=0))

    async def cost(self) -> None:
        raise RuntimeError("nobody counts here")


@pytest.mark.anyio
async def test_what_fails_in_one_environment_does_not_hide_the_others(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    async def no_warming(env: object) -> None:
        pass

    demo = scenario.Demo(
        cast("Engine", _Engine(tmp_path)), environments=4, run=1, tell=lambda name, what: told.append((name, what))
    )
    demo.warm = no_warming  # type: ignore[method-assign]  # there is no server
    await demo.create()
    assert list(demo.cast) == ["shop-1", "shop-2", "shop-4"]
    assert demo.errors["shop-3"] == ["created: TransitionAborted: branching media failed: no space left"]
    assert ("shop-4", "created") in told
    assert demo.errors[""] == ["memory with 1: RuntimeError: nobody counts here"]
    await demo.reset()  # shop-3 is not there to be reset: nothing is done, and nothing raised
    assert demo.replayed is None


def test_a_build_ends_at_once_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    """Its progress is told also while the child is silent, so that a Ctrl-C need not wait for the next table."""
    told: list[str] = []

    class Enough(Exception):
        pass

    def progress(fraction: float, text: str) -> None:
        told.append(text)
        raise Enough

    before = psutil.Process().children()
    with pytest.raises(Enough):
        build(tmp_path / "base", progress)
    assert told == ["starting"]
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process().children() == before
