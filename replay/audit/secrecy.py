"""I12: what opens one environment (a ticket, a lease, a binding) opens that environment alone.

Secrets are not in a journal, and that is a part of the rule: a ticket or a binding that is written down opens the
environment for whoever can read the file. The rest of it is in who was let in and who was turned away.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

# A ticket is "1.<identity>.<MAC>": JSON and 32 bytes, both in base64 as it is used in addresses.
_TICKET = re.compile(rb"1\.([A-Za-z0-9_-]{8,})\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_RESERVED = "statefork-"  # headers of the gateway's own, which no client's request may bear
_SECRETS = re.compile(r"ticket|secret|password|passwd|token|private|(^|_)key(_|$)|credential|address|identity")
_SCHEMA = "create table lease (place text, lease int, env text, at int, primary key (place, lease)) without rowid;"
_LEASED = frozenset({kinds.ACTION_BEGUN, kinds.INPUT, kinds.EXCHANGED, kinds.EVALUATED})
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})  # not kept of what was asked outside


class Secrecy(Checker):
    """No secret is written down, no lease is of two environments, refusals are told to whom they concern."""

    invariant = "I12"
    rule = "what opens an environment opens that one alone, and is not written down"
    kinds = None

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        self.looked_at += 1
        for identity in tickets(row.raw):
            yield f"a ticket of {identity} is written down in the clear, in an event of {row.stream}"
        if row.kind == kinds.STARTED:
            self._spill.execute(
                "delete from lease where place = ?", (row.place,)
            )  # leases are counted anew in each run of an engine
        elif row.kind in _LEASED:
            yield from self._leased(row)
        elif row.kind == kinds.REFUSED:
            yield from self._refused(row)
        elif row.kind in (kinds.PUBLISHED, kinds.PROVISIONED):
            for name, sealed in row.sealed():
                yield from _told(row.text("env", "the base"), name, sealed)
        if row.kind in (kinds.INPUT, kinds.EXCHANGED):
            for name in row.table("headers"):
                if name.lower().replace("_", "-").startswith(_RESERVED):
                    yield f"{row.text('method')} {row.text('url')} let in the header {name}, which is the gateway's own"
                if row.kind == kinds.EXCHANGED and name.lower() in _CREDENTIALS:
                    yield f"{row.text('method')} {row.text('url')}, asked of a host outside, tells its {name}"

    def _leased(self, row: Row) -> Iterator[str]:
        env, lease = row.text("env"), row.number("lease")
        if self.heads.of(env).importing:
            return
        place = self.heads.of(env).place
        made = self._spill.execute("insert or ignore into lease values (?, ?, ?, ?)", (place, lease, env, row.position))
        if made.rowcount:
            return
        query = "select env, at from lease where place = ? and lease = ?"
        first, at = self._spill.execute(query, (place, lease)).fetchone()
        if first != env:
            yield f"lease {lease} lets somebody into {env}, though it was granted on {first} (position {at})"

    def _refused(self, row: Row) -> Iterator[str]:
        env, code = row.text("env"), row.text("code")
        head = self.heads.of(env)
        if row.stream.startswith("engine") and row.place != head.place:
            return  # that engine does not have the environment, and need not know of it
        if row.stream.startswith("act/") and row.stream != f"act/{env}":
            yield f"a refusal ({code}) that concerns {env} is recorded with another environment: {row.stream}"
        elif head.generation and not row.stream.startswith("act/"):
            yield f"a refusal ({code}) that concerns {env}@{head.generation} is not recorded with it"
        elif head.generation and code == "unknown_environment":
            yield f"somebody was told that there is no {env}, which stands on generation {head.generation}"


def _told(whose: str, name: str, sealed: Mapping[str, Any]) -> Iterator[str]:
    data = sealed.get("data")
    for key in (*sealed, *(data if isinstance(data, dict) else ())):
        if _SECRETS.search(key.lower()):
            yield f"the sealed version of {name} in the manifest of {whose} tells its {key}"


def tickets(text: bytes) -> Iterator[str]:
    """Whose tickets stand in some bytes: environment, epoch, activation."""
    for found in _TICKET.finditer(text):
        payload = found[1]
        try:
            claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (ValueError, binascii.Error):
            continue
        if isinstance(claims, list) and len(claims) == 3 and isinstance(claims[0], str):
            yield f"{claims[0]} (epoch {claims[1]}, activation {claims[2]})"
