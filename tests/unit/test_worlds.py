"""Packaged worlds: what is told of them, and how long the parts of a base took."""

from __future__ import annotations

from statefork.adapters.interfaces.worlds import Part, Parts, find_contract, read_contract, survey
from statefork.engine.contract import Contract


def hosts(contract: Contract) -> tuple[str, ...]:
    return tuple(str(spec.options["host"]) for spec in contract.resources.values() if "host" in spec.options)


def test_sites_stand_in_the_contracts_order() -> None:
    for world in survey():
        contract, _ = read_contract(find_contract(world.name))
        assert world.sites == hosts(contract)


def test_the_parts_of_a_build_are_timed() -> None:
    times = iter((0.0, 0.04, 2.0, 5.0, 6.5))
    told: list[tuple[float, str]] = []
    parts = Parts(lambda fraction, text: told.append((fraction, text)), lambda: next(times))
    parts.tell(0.0, "starting")
    parts.tell(0.1, "shop: tables")
    parts.tell(0.5, "shop: pictures")
    parts.tell(0.9, "shop: tables")
    assert parts.ended() == (Part(name="shop: tables", seconds=3.5), Part(name="shop: pictures", seconds=3.0))
    assert told[:2] == [(0.0, "starting"), (0.1, "shop: tables")]


def test_a_build_of_which_nothing_was_told_has_no_parts() -> None:
    assert Parts(lambda fraction, text: None).ended() == ()
