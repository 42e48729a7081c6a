"""What the journal is measured against: bare sqlite3, and the PyPI package ``eventsourcing`` in a process of its own.

Run as a script it is that process: threads append single events, each waiting for the disk, and it prints their rate.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PEER = "eventsourcing==9.5.6"
"""Installed into an environment that the benchmark makes and removes; it is no dependency of ours."""

EVENTS = "INSERT INTO events (position, stream, version, event, hash) VALUES (?, ?, ?, ?, ?)"
HEADS = "INSERT OR REPLACE INTO streams (stream, version, hash) VALUES (?, ?, ?)"


@contextmanager
def bare(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an empty journal's tables, with the settings that the journal has."""
    from statefork.journal.schema import create_schema

    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
            connection.execute(f"PRAGMA {pragma}")
        create_schema(connection)
        yield connection
    finally:
        connection.close()


def bare_batches(path: Path, data: bytes, batches: int, batch_events: int, *, heads: bool) -> float:
    """Events per second of ``executemany``: rows of as many streams as a batch has, hashed, a commit for each batch."""
    from statefork.journal.codec import GENESIS, link

    text = data.decode()
    last = [GENESIS] * batch_events
    with bare(path) as connection:
        start = time.perf_counter()
        position = 0
        for version in range(1, batches + 1):
            rows = []
            for number in range(batch_events):
                position += 1
                stream = f"act/{number}"
                last[number] = link(last[number], stream, version, data)
                rows.append((position, stream, version, text, last[number]))
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(EVENTS, rows)
            if heads:
                connection.executemany(HEADS, [(row[1], row[2], row[4]) for row in rows])
            connection.execute("COMMIT")
        return position / (time.perf_counter() - start)


def bare_commits(path: Path, event: Any, count: int, *, whole: bool) -> list[float]:
    """Seconds of each of some commits of one row. ``whole``: with encoding, hash and the stream's head as well."""
    from statefork.journal.codec import GENESIS, Codec, link

    codec = Codec()
    text, digest = codec.encode(event).decode(), GENESIS
    took = []
    with bare(path) as connection:
        for version in range(1, count + 1):
            start = time.perf_counter()
            if whole:
                data = codec.encode(event)
                text, digest = data.decode(), link(digest, "act/0", version, data)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(EVENTS, (version, "act/0", version, text, digest))
            if whole:
                connection.execute(HEADS, ("act/0", version, digest))
            connection.execute("COMMIT")
            took.append(time.perf_counter() - start)
    return took


def bare_read(path: Path) -> float:
    """Events per second of reading a journal's rows, decoding them and computing their hashes."""
    from statefork.journal.codec import GENESIS, Codec, link

    decode = Codec().decode
    tails: dict[str, str] = {}
    connection = sqlite3.connect(path)
    start = time.perf_counter()
    count = 0
    for stream, version, event, digest in connection.execute(
        "SELECT stream, version, event, hash FROM events ORDER BY position"
    ):
        data = event.encode()
        decode(data)
        assert link(tails.get(stream, GENESIS), stream, version, data) == digest
        tails[stream] = digest
        count += 1
    rate = count / (time.perf_counter() - start)
    connection.close()
    return rate


def peer_python(folder: Path) -> Path | str:
    """A Python that has the peer; or, in words, why there is none."""
    python = folder / "peer" / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder / "peer")],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"pip install {PEER} failed: {last}"
    return python


def peer_appends(python: Path, path: Path, appenders: int, seconds: float, data: bytes) -> float:
    """The peer's events per second."""
    path.parent.mkdir()
    command = [str(python), __file__, str(path), str(appenders), str(seconds), data.decode()]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(result.stdout)["appends_per_s"])


def _main() -> None:
    from eventsourcing.persistence import InfrastructureFactory, StoredEvent  # type: ignore[import-not-found]  # the peer's own Python has it
    from eventsourcing.utils import Environment  # type: ignore[import-not-found]  # likewise

    path, appenders, seconds, data = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4].encode()
    settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": path, "SQLITE_LOCK_TIMEOUT": "60"}
    recorder = InfrastructureFactory.construct(Environment("bench", settings)).application_recorder()
    counts = [0] * appenders
    begin = threading.Barrier(appenders + 1)

    def append(name: int) -> None:
        stream, version = uuid.uuid4(), 0
        begin.wait()
        while time.perf_counter() < until:
            version += 1
            recorder.insert_events([StoredEvent(stream, version, "bench:event", data)])
        counts[name] = version

    threads = [threading.Thread(target=append, args=(name,)) for name in range(appenders)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    until = start + seconds
    begin.wait()
    for thread in threads:
        thread.join()
    print(json.dumps({"appends_per_s": sum(counts) / (time.perf_counter() - start)}))


if __name__ == "__main__":
    _main()
