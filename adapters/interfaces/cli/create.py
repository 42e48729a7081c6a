"""``statefork create``: a new environment."""

from __future__ import annotations

from typing import Annotated

import typer

from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption, ask
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.protocol import Create

EXAMPLES = """
    statefork create shop-1
    statefork create shop-2 --json | jq .sites
"""


def create(
    name: Annotated[str, typer.Argument(help="Its name: small letters, digits, '-'.", show_default=False)],
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make an environment over the contract's base: generation 1, bound and probed when this returns."""
    out = Out(as_json=as_json)
    answer = ask(state, out, "create", Create(name=name))
    out.say(f"{answer['ref']} is ready")
    say_sites(out, answer)


def say_sites(out: Out, environment: dict[str, object]) -> None:
    """The private base URLs of an environment that an engine described."""
    sites = environment.get("sites")
    if isinstance(sites, dict):
        for host, url in sites.items():
            out.say(f"  {host} for plain HTTP clients: {url}")
