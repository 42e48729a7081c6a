"""What differs, and who did it, as people ask for it: on the command line, of a real application's rows and files."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from tests.integration.test_cli import Commands, engine
from tests.integration.web_kit import PROJECT

CONTRACT = f"""
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.media]
adapter = "files"
base = "media"
[resources.search]
adapter = "files"
base = "search"
[resources.site]
adapter = "web"
stack = "django"
settings = "notes.settings"
path = "{PROJECT}"
host = "notes.example"
grace_s = 0.2
durability = "derived"
depends_on = ["db", "media", "search"]
stores = {{ database = "db", media = "media", search = "search" }}
"""
HAND = """
[resources.hand]
adapter = "memory"
"""
BROWSER = """
[resources.browser]
adapter = "browser"
depends_on = ["site"]
start = "http://notes.example/notes/"
"""


@pytest.fixture
def base(notes_base: Path, tmp_path: Path) -> Path:
    """A copy, for the contract is written there."""
    return Path(shutil.copytree(notes_base, tmp_path / "base"))


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


def send(commands: Commands, path: str, **fields: str) -> None:
    """A request that no action causes."""
    site = commands.json("show", "a")["sites"]["notes.example"]
    assert httpx.post(f"{site}{path}", data=fields, trust_env=False).status_code == 200


def act(commands: Commands, key: str) -> None:
    commands("act", "a", f'{{"type": "put", "key": "{key}", "value": 1}}')


def test_rows_and_files_and_who_changed_them(base: Path, commands: Commands) -> None:
    with engine(base, commands.state, CONTRACT + HAND):
        commands("create", "a")
        act(commands, "one")
        send(commands, "/add/", title="lamp", body="bright")
        send(commands, "/upload/", name="lamp.txt", body="a lamp")
        act(commands, "two")
        send(commands, "/add/", title="chair", body="soft")
        act(commands, "three")

        told = commands("diff", "a@1", "a", status=1)  # which publishes a@2
        assert "notes_note: 2 added" in told
        assert '+ notes_note[2]  id=2, title="lamp"' in told
        assert "+ lamp.txt" in told
        assert "+ three  1" in told
        stat = commands("diff", "a@1", "a", "--stat", status=1)
        assert "notes_note: 2 added" in stat
        assert "lamp" not in stat
        assert commands("diff", "a@2", "a") == "nothing differs between a@2 and a\n"

        found = commands.json("diff", "a#1", "a#2", status=1)
        assert (found["equal"], found["made_after"]["verdict"]) == (False, "exact-observed")
        names = [change["name"] for change in found["resources"]["db"]["changes"] if change["group"] == "notes_note"]
        assert names == ["notes_note[2]"]
        bounded = commands.json("diff", "a@1", "a", "--limit", "0", status=1)["resources"]["db"]
        assert (bounded["changes"], bounded["left_out"]) == ([], bounded["total"])

        blamed = commands.json("blame", "a", "--row", "notes_note:2")
        assert blamed["step"] == "input POST http://notes.example/add/ after action 1"
        assert (blamed["resource"], blamed["kind"], blamed["after"]["title"]) == ("db", "added", "lamp")
        said = commands("blame", "a", "--file", "lamp.txt", "--resource", "media")
        assert "lamp.txt in media was added by input POST http://notes.example/upload/ after action 1: a#1" in said
        assert "+ two  1" in commands("blame", "a", "--item", "two")
        assert "nothing changed notes_note[9]" in commands("blame", "a", "--row", "notes_note:9", status=1)
        assert "error[usage]" in commands("blame", "a", status=2)
        assert "error[unknown_ref]" in commands("diff", "a@1", "a#77", status=2)
        assert [env["env"] for env in commands.json("ls")["environments"]] == ["a"]


@pytest.mark.browser
def test_what_was_seen_and_its_pictures(base: Path, tmp_path: Path, commands: Commands) -> None:
    with engine(base, commands.state, CONTRACT + BROWSER):
        commands("create", "a")
        commands("act", "a", "goto", "http://notes.example/notes/")
        send(commands, "/add/", title="lamp", body="bright")
        commands("act", "a", "goto", "http://notes.example/notes/?again")

        pictures = tmp_path / "seen"
        found = commands.json("diff", "a#1", "a#2", "--pictures", str(pictures), status=1)
        page = found["page"]
        assert [(change["name"], change["after"]) for change in page["changes"]] == [
            ("address", "http://notes.example/notes/?again")
        ]
        assert "lamp" in page["tree"]
        assert (page["tree_added"], page["tree_removed"], page["pictures"]) == (1, 1, True)
        assert found["pictures"]["regions"] >= 1
        assert {path.name for path in pictures.iterdir()} == {"before.png", "after.png", "difference.png"}
        tabs = [change["name"] for change in found["resources"]["browser"]["changes"] if change["group"] == "tabs"]
        assert "tab 0 address" in tabs
        assert "page: not compared, as nothing was seen at a@1" in commands("diff", "a@1", "a", status=1)
        looked = commands("diff", "a@1", "a", "--look", "--stat", status=1)
        assert "page: address, content, screenshot differ, 1 line added" in looked
        blamed = commands.json("blame", "a", "--item", "tab 0 address")
        assert (blamed["ref"], blamed["action"]["url"]) == ("a#2", "http://notes.example/notes/?again")
