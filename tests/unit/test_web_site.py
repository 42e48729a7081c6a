"""The description of a site behind the server, and the packages of a world: what is missing is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.resources.web.behind.site import find_program, read_site
from statefork.adapters.resources.web.stack import Setup
from statefork.engine.errors import MissingDependency
from statefork.worlds import packages


def described(directory: Path, text: str) -> Setup:
    (directory / "site.toml").write_text(text)
    return Setup(settings="site.toml", path=str(directory))


def test_a_description_knows_its_directory(tmp_path: Path) -> None:
    setup = described(tmp_path, 'root = "$site"\n[environment]\nCONFIG = "$site/config"\nPRICE = "$$1"')
    site, directory = read_site(setup)
    assert directory == tmp_path
    assert site.root == str(tmp_path)
    assert site.environment == {"CONFIG": f"{tmp_path}/config", "PRICE": "$1"}
    assert site.stores == ("database",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("root = 1", "Expected `str`, got `int`"),
        ('root = "/"\nrot = "/"', "unknown field `rot`"),
        ("", "missing required field `root`"),
        ("root", "site.toml"),
    ],
)
def test_a_wrong_description_is_told_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_site(described(tmp_path, text))
    with pytest.raises(ValueError, match=r"settings = 'other\.toml'"):
        read_site(Setup(settings="other.toml", path=str(tmp_path)))


def test_what_must_be_installed_is_told(tmp_path: Path) -> None:
    setup = described(tmp_path, f'root = "{tmp_path}/absent"\ninstall = "apt-get install forum"')
    with pytest.raises(MissingDependency) as missing:
        read_site(setup)
    assert (missing.value.message, missing.value.hint) == (f"there is no {tmp_path}/absent", "apt-get install forum")
    with pytest.raises(MissingDependency, match="'no-such-program' is not installed"):
        find_program("no-such-program", hint="")


def test_a_world_says_which_packages_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*command: str) -> str:
        return "installed 1.2" if command[-1] == "there" and command[0] == "dpkg-query" else ""

    monkeypatch.setattr(packages, "_ask", ask)
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    assert packages.versions(["there"], "forum") == {"there": "1.2"}
    with pytest.raises(MissingDependency, match="the forum needs Debian's packages absent") as missing:
        packages.versions(["there", "absent"], "forum")
    assert missing.value.hint == "As root: apt-get install --no-install-recommends absent"


def test_a_world_asks_for_the_version_that_would_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*command: str) -> str:
        return "absent:\n  Installed: (none)\n  Candidate: 3.4\n" if command[0] == "apt-cache" else ""

    monkeypatch.setattr(packages, "_ask", ask)
    monkeypatch.setattr(packages, "_check_may_install", lambda absent, world: None)
    assert packages.versions(["absent"], "forum") == {"absent": "3.4"}
