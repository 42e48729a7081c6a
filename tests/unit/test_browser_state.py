"""Profiles as data: one digest per content, differences in a person's terms, Chromium found where it is said to be."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import playwright
import pytest

from statefork.adapters.resources.browser import Options, find_chromium
from statefork.adapters.resources.browser.apart import apart_from_cookies
from statefork.adapters.resources.browser.chromium import (
    DISABLED,
    FULL_CHROMIUM_DISABLED,
    PLAYWRIGHT_DISABLED,
    launch_flags,
)
from statefork.adapters.resources.browser.state import (
    Entry,
    Flag,
    Frame,
    Origin,
    Profile,
    Stored,
    Tab,
    changes,
    decode,
    digest_of,
    encode,
    origin_of,
)
from statefork.engine.errors import MissingDependency, ResourceFailed
from statefork.engine.masks import Apart
from statefork.journal.values import Conditions

VIEW = {
    "x": 0, "y": 7, "scrolls": [], "opens": [], "focus": None, "selection": None, "name": "",
    "fields": [{"path": ["html"], "id": "q", "name": "query", "kind": "input:text", "value": "cups"}],
}  # fmt: skip

PROFILE = Profile(
    cookies=({"name": "session", "value": "alice", "domain": "shop.example", "path": "/"},),
    origins={"http://shop.example": Origin(local={"visits": "1"})},
    tabs=(Tab(entries=(Entry(url="http://shop.example/"),), current=0, frames=(Frame(view=VIEW),)),),
    flags=(Flag(kind="post-result", where="tab 0"),),
)


def test_equal_content_has_equal_bytes_and_another_order_of_keys_is_equal() -> None:
    turned = msgspec.structs.replace(PROFILE, cookies=(dict(reversed(PROFILE.cookies[0].items())),))
    assert digest_of(turned) == digest_of(PROFILE)
    assert encode(Stored(profile=turned)) == encode(Stored(profile=PROFILE))
    assert decode(encode(Stored(profile=PROFILE, witnesses=("w",))), "there") == Stored(
        profile=PROFILE, witnesses=("w",)
    )


def test_the_witness_is_no_part_of_the_content() -> None:
    one, two = Stored(profile=PROFILE, witnesses=("1:2",)), Stored(profile=PROFILE)
    assert digest_of(one.profile) == digest_of(two.profile)


def test_when_a_cookie_expires_is_no_part_of_what_is_held_and_that_it_does_is() -> None:
    (cookie,) = PROFILE.cookies
    (tab,) = PROFILE.tabs

    def left(now: float = 7.0, masked: tuple[str, ...] = (), **facts: object) -> Apart:
        conditions = Conditions(seed="s", now=now)
        return apart_from_cookies(
            msgspec.structs.replace(
                PROFILE, cookies=({**cookie, **facts},), tabs=(msgspec.structs.replace(tab, conditions=conditions),)
            ),
            masked,
        )

    assert left(expires=1.5).expiries == {"shop.example/ session": 1.5}
    assert left(expires=1.5).digest == left(expires=2.5).digest == left(8.0, expires=1.5).digest
    assert left(expires=1.5).digest != left(expires=-1).digest, "it ends with its session"
    assert left(expires=-1).expiries == {}
    assert left(expires=1.5).digest != left(expires=1.5, value="bob").digest
    assert left(masked=("session",)).digest == left(masked=("session",), value="bob").digest
    assert left(masked=("session",)).digest != left(masked=("session",), httpOnly=True).digest
    assert left(masked=("other",)).digest != left(masked=("other",), value="bob").digest


def test_differences_are_named() -> None:
    (tab,) = PROFILE.tabs
    view = VIEW | {"y": 8, "fields": []}
    after = msgspec.structs.replace(
        PROFILE,
        cookies=({**PROFILE.cookies[0], "value": "bob"},),
        origins={"http://shop.example": Origin(local={"visits": "1", "more": "x"})},
        tabs=(msgspec.structs.replace(tab, frames=(Frame(view=view),)),),
    )
    assert [(change.kind, change.name) for change in changes(PROFILE, after)] == [
        ("changed", "cookie shop.example/ session"),
        ("added", "localStorage http://shop.example more"),
        ("removed", "tab 0 field 0 query"),
        ("changed", "tab 0 scroll"),
    ]
    assert not list(changes(after, after))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"profile": {"format": 2}}', b'{"profile": {"tabs": 1}}'])
def test_what_is_no_profile_is_refused(data: bytes) -> None:
    with pytest.raises(ResourceFailed, match="browser state there"):
        decode(data, "there")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://shop.example/a?b#c", "http://shop.example"),
        ("http://Shop.Example:80/", "http://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("about:blank", None),
        ("chrome-error://chromewebdata/", None),
        ("data:text/html,x", None),
    ],
)
def test_origins_are_named_as_pages_name_them(url: str, origin: str | None) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"start": "file:///etc/passwd"}, "scheme"),
        ({"width": 0}, "positive"),
        ({"settle_s": -1}, "positive"),
        ({"windows": 1}, "windows"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=word):
        msgspec.convert(options, Options)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_configured_chromium_comes_first_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = executable(tmp_path / "mine")
    other = executable(tmp_path / "chromium")
    monkeypatch.setenv("STATEFORK_CHROMIUM", str(other))
    assert find_chromium(str(mine)) == mine
    assert find_chromium() == other
    with pytest.raises(MissingDependency, match="no Chromium at"):
        find_chromium(str(tmp_path / "absent"))


def test_chromium_is_sought_on_the_path_and_in_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATEFORK_CHROMIUM", raising=False)
    monkeypatch.setattr("statefork.adapters.resources.browser.chromium._USUAL_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "downloads"))
    with pytest.raises(MissingDependency) as missing:
        find_chromium()
    assert "apt-get install" in missing.value.hint
    executable(tmp_path / "downloads" / "chromium-99" / "chrome-linux" / "chrome")
    newer = executable(tmp_path / "downloads" / "chromium-1000" / "chrome-linux" / "chrome")
    assert find_chromium() == newer
    shell = executable(tmp_path / "downloads" / "chromium_headless_shell-7" / "chrome-linux" / "headless_shell")
    assert find_chromium() == shell
    full = executable(tmp_path / "bin" / "chromium")
    assert find_chromium() == full
    headless = executable(tmp_path / "bin" / "chromium-headless-shell")
    assert find_chromium() == headless


def disabled_by(flags: list[str]) -> list[str]:
    (told,) = [flag for flag in flags if flag.startswith("--disable-features=")]
    return told.removeprefix("--disable-features=").split(",")


def test_full_chromium_gets_more_disabled() -> None:
    headless, full = (disabled_by(launch_flags(Path(name))) for name in ("chromium-headless-shell", "chromium"))
    assert headless == [*DISABLED]
    assert full == [*DISABLED, *FULL_CHROMIUM_DISABLED]


def test_what_playwright_disables_stays_disabled() -> None:
    """Chromium heeds one list only, ours: where a new Playwright has another, ours has to follow."""
    bundle = Path(playwright.__file__).parent / "driver" / "package" / "lib" / "coreBundle.js"
    listed = re.search(r"disabledFeatures = \[(.*?)\]", bundle.read_text(encoding="utf-8"), re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'^\s*"(\w+)"', listed[1], re.MULTILINE)) == PLAYWRIGHT_DISABLED
