"""What checkers must remember of the whole journal lives in a private temporary database, not in memory.

SQLite keeps it in its page cache up to a bound and writes the rest to an unnamed file that vanishes with the process.
"""

from __future__ import annotations

import sqlite3

_CACHE_KIB = 4096


def open_spill(schema: str) -> sqlite3.Connection:
    """An empty database with the given schema."""
    spill = sqlite3.connect("", isolation_level=None)
    spill.execute(f"pragma cache_size = -{_CACHE_KIB}")
    spill.execute("pragma journal_mode = off")
    spill.execute("pragma synchronous = off")
    spill.executescript(schema)
    return spill
