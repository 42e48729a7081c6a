"""What may be reached outside of a world, and which recorded answer a question gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from statefork.adapters.interfaces.gateway.outside import body_digest
from statefork.engine.origins import is_metadata, parse_origin, parse_origins
from statefork.engine.outside import Question, Rehearsal
from statefork.journal.events import ExchangeRecorded


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://cdn.example.com", "https://cdn.example.com"),
        ("HTTPS://CDN.example.com:443/", "https://cdn.example.com"),
        ("http://127.0.0.1:8123", "http://127.0.0.1:8123"),
        ("http://localhost:80", "http://localhost"),
    ],
)
def test_an_origin_is_scheme_host_and_port(text: str, told: str) -> None:
    assert str(parse_origin(text)) == told


@pytest.mark.parametrize(
    "text",
    [
        "cdn.example.com",
        "https://*.example.com",
        "https://cdn.example.com/lib",
        "https://cdn.example.com?",
        "https://me@cdn.example.com",
        "https://cdn.example.com:0",
        "https://cdn.example.com:70000",
        "https://cdn.example.com\n",
        "https://",
        "ftp://cdn.example.com",
        "http://[::1]:80",
        "https://cdn.example.com.",
    ],
)
def test_all_else_is_none(text: str) -> None:
    assert parse_origin(text) is None
    with pytest.raises(ValueError, match="an origin is"):
        parse_origins([text])


def test_one_port_of_a_host_stands_once() -> None:
    with pytest.raises(ValueError, match="a:443 stands twice"):
        parse_origins(["https://a", "http://a:443"])


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254"])
def test_addresses_where_machines_keep_secrets(address: str) -> None:
    assert is_metadata(address)
    assert not is_metadata("127.0.0.1")
    assert not is_metadata("10.0.0.1")


def test_a_form_in_parts_is_known_without_its_boundary() -> None:
    kind = "multipart/form-data; boundary="
    one, other = (body_digest(b"--%b\r\nx\r\n--%b--" % (at, at), kind + at.decode()) for at in (b"----Wk1", b"----Wk2"))
    assert one == other != body_digest(b"--Wk\r\ny\r\n--Wk--", kind + "Wk")
    assert body_digest(b"", "text/plain") == ""
    assert body_digest(b"a", "text/plain") != body_digest(b"b", "text/plain")


def asked(url: str, after: int, answer: str, method: str = "GET", cause: Any = "action") -> ExchangeRecorded:
    place: dict[str, Any] = {"env": "a", "generation": 1, "epoch": 1, "activation": 1, "lease": 1, "asked": 1}
    return ExchangeRecorded(at=0, after_action=after, cause=cause, method=method, url=url, answer=answer, **place)


def find(rehearsal: Rehearsal, url: str, method: str = "GET") -> str | None:
    found = rehearsal.find(Question(method=method, url=url))
    return found.answer if found is not None else None


def test_answers_are_given_back_in_the_order_of_the_questions() -> None:
    rehearsal = Rehearsal({}, [asked("/n", 1, "1"), asked("/n", 1, "2"), asked("/n", 3, "3")])
    rehearsal.cue(1)
    assert [find(rehearsal, "/n") for _ in range(3)] == ["1", "2", "2"], "one that is asked too often gets the last one"
    rehearsal.cue(3)
    assert find(rehearsal, "/n") == "3"
    assert (rehearsal.missed(), rehearsal.unasked()) == ((), ())


def test_what_changes_something_is_never_answered_twice() -> None:
    rehearsal = Rehearsal({}, [asked("/n", 1, "1", "POST")])
    rehearsal.cue(1)
    assert [find(rehearsal, "/n", "POST") for _ in range(2)] == ["1", None]
    assert rehearsal.missed() == ("POST /n",)
    assert rehearsal.missed() == (), "each is told once"


def test_what_another_browser_had_in_its_cache_and_what_comes_early() -> None:
    lib = asked("/lib", 0, "old")
    rehearsal = Rehearsal({("GET", "/lib", ""): lib}, [asked("/poll", 2, "late", cause=""), asked("/n", 2, "n")])
    rehearsal.cue(1)
    assert [find(rehearsal, url) for url in ("/lib", "/poll", "/other")] == ["old", "late", None]
    assert (rehearsal.missed(), rehearsal.unasked()) == (("GET /other",), ())
    rehearsal.cue(2)
    assert rehearsal.unasked() == ("GET /n (action 2)",)


def test_what_masks_cover_in_an_address_does_not_count() -> None:
    recorded = [asked("/n?t=17", 1, "1"), asked("/n?t=18", 1, "2"), asked("/m?t=17", 1, "m")]
    rehearsal = Rehearsal({}, recorded, lambda url: re.sub(r"t=\d+", "", url))
    rehearsal.cue(1)
    assert [find(rehearsal, url) for url in ("/n?t=20", "/m?t=21", "/n?t=22", "/n?u=1")] == ["1", "m", "2", None]
