"""Parts of the HTTP interface by themselves: statuses, addresses, log lines, what a client makes of an error."""

from __future__ import annotations

import io
import json
import logging

import pytest

from statefork.adapters.interfaces.http.calls import call_of
from statefork.adapters.interfaces.http.logs import environment, json_lines
from statefork.adapters.interfaces.http.problems import STATUSES, UsageError, error_of, problem, status_of
from statefork.adapters.interfaces.http.serving import place_of
from statefork.engine.errors import EnvironmentExists, PartialFork, RuntimeDied, UnknownRef
from statefork.journal.errors import StateforkError
from tests.test_tidy import error_classes


def test_every_error_has_a_status() -> None:
    codes = set()
    for kind in error_classes():
        assert issubclass(kind, StateforkError)
        error = kind.__new__(kind)
        StateforkError.__init__(error, "it went wrong")
        assert 400 <= status_of(error) <= 599
        codes.add(kind.code)
    assert set(STATUSES) <= codes, "statuses of errors that there are not"
    assert status_of(RuntimeDied("gone")) == status_of(RuntimeDied.__mro__[1]("failed"))  # as the kind that it is of


def test_an_error_that_was_sent_is_the_same_again() -> None:
    children = {"b": EnvironmentExists("b is taken", hint="another", environment="b")}
    told = problem(PartialFork("a@1", ["c", "d"], children))
    again = error_of(json.loads(json.dumps({name: getattr(told, name) for name in told.__struct_fields__})))
    assert isinstance(again, PartialFork)
    assert (again.born, again.facts["source"]) == (("c", "d"), "a@1")
    assert isinstance(again.failed["b"], EnvironmentExists)
    assert again.failed["b"].facts == {"environment": "b"}
    later = error_of({"code": "of_a_later_version", "detail": "so", "hint": "then", "facts": {"n": 1}})
    assert (later.code, str(later), later.facts) == ("of_a_later_version", "so. then", {"n": 1})
    assert UnknownRef.code == "unknown_ref"  # of the instance only, not of the class


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("8642", "127.0.0.1", 8642, True),
        (":0", "127.0.0.1", 0, True),
        ("localhost:1", "127.0.0.1", 1, True),
        ("[::1]:2", "::1", 2, True),
        ("0.0.0.0:3", "0.0.0.0", 3, False),
    ],
)
def test_addresses_are_loopback_unless_another_is_named(text: str, host: str, port: int, loopback: bool) -> None:
    place = place_of(text)
    assert (place.host, place.port, place.loopback) == (host, port, loopback)


@pytest.mark.parametrize("text", ["", "http", "example.com:80", "1.2.3.4", "127.0.0.1:", "127.0.0.1:65536", "-1"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        place_of(text)


def test_a_call_has_its_fields_where_they_belong() -> None:
    assert call_of("act", {"env": "a b", "action": {"type": "look"}, "timeout_s": None}) == (
        *("POST", "/v1/environments/a%20b/actions", {"action": {"type": "look"}}, {}),
    )
    assert call_of("mark", {"ref": "a#1", "text": "x"})[:2] == ("PUT", "/v1/marks/a%231")
    assert call_of("status", {"cost": True}) == ("GET", "/v1/status", None, {"cost": "true"})
    with pytest.raises(UsageError, match="no verb"):
        call_of("nope", {})


def test_log_lines_name_environment_and_generation() -> None:
    stream, log = io.StringIO(), logging.getLogger("statefork.of_this_test")
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    with json_lines({"a": 7}.get, stream):
        log.info("of the engine")
        with environment("a"):
            log.warning("of %s", "a")
        log.error("told", extra={"environment": "b", "generation": 3})
        try:
            raise ValueError("so")
        except ValueError:
            log.exception("it failed\non two lines")
        log.debug("not told")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(one["environment"], one["generation"], one["level"]) for one in lines] == [
        (None, None, "info"),
        ("a", 7, "warning"),
        ("b", 3, "error"),
        (None, None, "error"),
    ]
    assert lines[3]["message"] == "it failed\non two lines"
    assert "ValueError: so" in lines[3]["traceback"]
    assert (root.handlers, root.level) == before
