"""What ``diff`` says in a line: of secrets that they changed, of cookies when they expire."""

from __future__ import annotations

import msgspec
import pytest

from statefork.adapters.interfaces.cli.diff import change_line
from statefork.adapters.interfaces.cli.faults import EXIT_CANNOT
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.cli.sentences import sentence
from statefork.engine.ports import Change
from statefork.journal.events import ActionEnded
from statefork.journal.values import Observation
from statefork.replay.covering import covered


def line(change: Change) -> str:
    return change_line(msgspec.to_builtins(covered(change)))


def test_a_secret_that_changed_is_told_once_also_where_it_is_as_long_as_before() -> None:
    row = Change(kind="changed", name="user[1]", before={"password": "abc", "n": 1}, after={"password": "abd", "n": 2})
    assert line(row) == "~ user[1]  password: changed (secret), n: 1 → 2"
    assert line(Change(kind="changed", name="a token", before="abc", after="abd")) == "~ a token  changed (secret)"


def test_a_cookie_that_only_expires_later_keeps_its_value_and_says_when() -> None:
    old = {"value": "abc", "httpOnly": True, "expires": 1_700_000_000.5}
    change = Change(kind="changed", name="cookie shop/ sid", before=old, after={**old, "expires": -1}, group="cookies")
    assert line(change) == "~ cookie shop/ sid  expires: 2023-11-14 22:13:20 UTC → with the session"


@pytest.mark.parametrize(("url", "told"), [("", "#1 ok in 1 ms"), ("http://a/", "#1 ok in 1 ms -> http://a/ 'A'")])
def test_a_world_without_pages_is_not_told_of_as_if_it_had_some(url: str, told: str) -> None:
    seen = Observation(digest="0" * 64, url=url, title="A" if url else "")
    ended = ActionEnded(
        at=0.0,
        env="a",
        lease=1,
        generation=1,
        epoch=1,
        activation=1,
        number=1,
        outcome="ok",
        elapsed_ms=1.0,
        observation=seen,
    )
    assert sentence(ended) == told


def test_restore_without_a_moment_shows_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["restore", "shop-1"]) == EXIT_CANNOT
    assert "statefork restore shop-1 shop-1@1" in capsys.readouterr().err
    assert invoke(["restore", "shop-1#4", "--state", "nowhere"]) == EXIT_CANNOT
    assert "error[no_engine]" in capsys.readouterr().err  # all that it lacked
