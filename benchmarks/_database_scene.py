"""What the benchmarks of PostgreSQL share: a database like pgbench's, its transactions, file systems to put it on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.resources.reflink import probe_reflink

BYTES_OF_SCALE = 15_800_000  # of pgbench's tables with their keys, as PostgreSQL 18 lays them out
LOG_BYTES = 4 << 30
ACCOUNTS, TELLERS = 100_000, 10  # for each unit of scale

CONTRACT = """
[contract]
name = "bench"

[resources.db]
adapter = "postgres"
base = "base.sql"
durability = "authoritative"
pool = {pool}
accelerate = {accelerate}
"""
BASE = """
BEGIN;
CREATE TABLE pgbench_branches (bid integer NOT NULL, bbalance integer, filler character(88));
CREATE TABLE pgbench_tellers (tid integer NOT NULL, bid integer, tbalance integer, filler character(84));
CREATE TABLE pgbench_accounts (aid integer NOT NULL, bid integer, abalance integer, filler character(84));
CREATE TABLE pgbench_history (tid integer, bid integer, aid integer, delta integer, mtime timestamp, filler char(22));
INSERT INTO pgbench_branches SELECT n, 0, '' FROM generate_series(1, {scale}) n;
INSERT INTO pgbench_tellers SELECT n, (n - 1) / {tellers} + 1, 0, '' FROM generate_series(1, {scale} * {tellers}) n;
INSERT INTO pgbench_accounts SELECT n, (n - 1) / {accounts} + 1, 0, '' FROM generate_series(1, {scale} * {accounts}) n;
ALTER TABLE pgbench_branches ADD PRIMARY KEY (bid);
ALTER TABLE pgbench_tellers ADD PRIMARY KEY (tid);
ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid);
COMMIT;
"""
TRANSACTIONS = 5
STATEMENTS = (
    "UPDATE pgbench_accounts SET abalance = abalance + 7 WHERE aid = %(account)s",
    "SELECT abalance FROM pgbench_accounts WHERE aid = %(account)s",
    "UPDATE pgbench_tellers SET tbalance = tbalance + 7 WHERE tid = %(teller)s",
    "UPDATE pgbench_branches SET bbalance = bbalance + 7 WHERE bid = %(branch)s",
    "INSERT INTO pgbench_history VALUES (%(teller)s, %(branch)s, %(account)s, 7, now(), '')",
)


def make_contract(folder: Path, scale: int, pool: int, *, accelerate: bool = False) -> Path:
    """The contract's file, in a folder that is made, and beside it the base that it names."""
    folder.mkdir()
    (folder / "base.sql").write_text(BASE.format(scale=scale, accounts=ACCOUNTS, tellers=TELLERS))
    contract = folder / "bench.toml"
    contract.write_text(CONTRACT.format(pool=pool, accelerate=str(accelerate).lower()))
    return contract


def connect(env: Environment) -> psycopg.Connection[Any]:
    """As the application of an environment does."""
    address = dict(env.bindings["db"].address)
    return psycopg.connect(psycopg.conninfo.make_conninfo("", dbname=address.pop("name"), **address))


def transact(connection: psycopg.Connection[Any], number: int, scale: int) -> None:
    """One transaction of pgbench. Each number has rows of its own, all over the database."""
    account = number * 7919 * 1009 % (ACCOUNTS * scale) + 1
    teller = number * 31 % (TELLERS * scale) + 1
    row = {"account": account, "teller": teller, "branch": (teller - 1) // TELLERS + 1}
    with connection.transaction():
        for statement in STATEMENTS:
            connection.execute(statement.encode(), row)


class Kind(NamedTuple):
    """A file system with reflinks."""

    name: str
    make: tuple[str, ...]


XFS = Kind("xfs", ("mkfs.xfs", "-q", "-m", "reflink=1"))
BTRFS = Kind("btrfs", ("mkfs.btrfs", "-q"))


@contextlib.contextmanager
def on_image(directory: Path, kind: Kind, size: int) -> Iterator[Path | None]:
    """Such a file system in a sparse file, or None where it can't be had (root, the programs, the kernel)."""
    image, place = directory / f"{kind.name}.img", directory / kind.name
    if os.geteuid() != 0 or shutil.which(kind.make[0]) is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(size)
    place.mkdir()
    subprocess.run([*kind.make, str(image)], check=True, stdout=subprocess.DEVNULL)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, capture_output=True)
    try:
        yield place if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)
        image.unlink()
        place.rmdir()


def clones(folder: Path) -> bool:
    """Whether extents are shared here."""
    return probe_reflink(folder).works


def kind_of(directory: Path) -> str:
    """What the databases lie on decides the figures."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False)
    return kind.stdout.strip()
