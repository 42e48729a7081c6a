"""Making a base: from a SQL file, from dumps of each format, from a live database; errors are told with their place."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from statefork.adapters.resources.postgres import base
from statefork.adapters.resources.postgres.base import Source, fill, fingerprint, freeze, live, source_of
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.content import digest
from statefork.adapters.resources.postgres.programs import environment
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import ContractError
from tests.contract.postgres_contents_kit import OWNER, SAMPLE, connected, database, run


@pytest.fixture(scope="module")
def original(postgres: EmbeddedServer) -> Iterator[str]:
    """A database with what only a superuser may make, too."""
    watch = "CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
    trigger = "CREATE EVENT TRIGGER watched ON ddl_command_end EXECUTE FUNCTION watch()"
    with database(postgres, SAMPLE, "CREATE EXTENSION file_fdw", "CREATE EXTENSION citext", watch, trigger) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def original_digest(original: str) -> str:
    with connected(original) as connection:
        return digest(connection)


def dump(dsn: str, *options: str) -> None:
    command = [str(find_programs() / "pg_dump"), *options]
    subprocess.run(command, env=environment(dsn), check=True)


def source_in(tmp_path: Path, dsn: str, kind: str) -> Source:
    if kind == "live":
        return live(dsn)
    path = tmp_path / "base"
    dump(dsn, f"--format={ {'sql': 'plain'}.get(kind, kind) }", f"--file={path}")
    source = source_of(path)
    assert source.kind == kind
    return source


@pytest.mark.parametrize("kind", ["sql", "custom", "tar", "directory", "live"])
def test_every_kind_of_source_gives_the_same_content(
    postgres: EmbeddedServer, original: str, original_digest: str, tmp_path: Path, kind: str
) -> None:
    source = source_in(tmp_path, original, kind)
    with database(postgres) as target:
        fill(source, target, OWNER, find_programs())
        with connected(target) as connection:
            assert digest(connection) == original_digest
            owners = connection.execute(
                "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            ).fetchall()
            assert owners == [(OWNER,)]


def test_a_file_written_by_hand(postgres: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "base.sql"
    path.write_text(
        "create extension if not exists pg_trgm;\n"
        "create table t (a text);\n"
        "alter table t owner to nobody_here;\n"
        "\\echo filling\n"
        "copy t from stdin;\nfirst\n\\.\n"
        "insert into t values ('last');\n"
        "grant all on t to nobody_here;\n"
    )
    with database(postgres) as target:
        fill(source_of(path), target, OWNER, find_programs())
        with connected(target) as connection:
            assert connection.execute("SELECT a FROM t ORDER BY a").fetchall() == [("first",), ("last",)]
            freeze(connection)
            frozen = "SELECT relpages, relallvisible, relallfrozen, relkind FROM pg_class WHERE relname = 't'"
            assert connection.execute(frozen).fetchall() == [(1, 1, 1, "r")]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("SELECT 1;\n\nSELEC 2;\nSELECT 3;\n", 3, 'syntax error at or near "SELEC"'),
        ("CREATE TABLE t (n integer);\nCOPY t FROM stdin;\n1\nx\n\\.\n", 5, "invalid input syntax for type integer"),
        ("SELECT 1;\nCREATE EXTENSION nowhere;\n", 2, 'extension "nowhere" is not available'),
        ("CREATE TABLE t (n integer);\nCREATE POLICY p ON t TO bob;\n", 2, 'role "bob" does not exist'),
        ("SELECT 1;\n\\connect other\n", 2, "leads to another database"),
        ("SELECT 1;\n\\nonsense\n", 2, "a command of psql"),
        ("CREATE TABLE t ();\nCREATE ROLE stray;\n", 2, "makes or changes a role"),
        (
            "SELECT 1;\nCREATE EVENT TRIGGER e ON sql_drop\n  EXECUTE FUNCTION nothing();\n",
            2,
            "nothing() does not exist",
        ),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x', 'y';\n", 1, "permission denied for language c"),
    ],
)
def test_an_error_is_told_with_its_line(shared_target: str, tmp_path: Path, text: str, line: int, said: str) -> None:
    run(shared_target, "DROP TABLE IF EXISTS t")
    path = tmp_path / "base.sql"
    path.write_text(text)
    with pytest.raises(ContractError) as raised:
        fill(source_of(path), shared_target, OWNER, find_programs())
    assert said in raised.value.message
    assert raised.value.message.startswith(f"{path}:{line}: ")
    assert raised.value.facts["line"] == line


@pytest.fixture(scope="module")
def shared_target(postgres: EmbeddedServer) -> Iterator[str]:
    with database(postgres) as dsn:
        yield dsn


RUN = "COPY (SELECT 1) TO PROGRAM 'touch {mark}'"
RESTRICTED = "backslash commands are restricted"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT 1 \\g |touch {mark}\n", RESTRICTED),
        ("SELECT 1; \\! touch {mark}\n", RESTRICTED),
        ("SELECT 1; \\unrestrict x\n\\! touch {mark}\n", "wrong key"),
        ("SELECT 1; \\set x `touch {mark}`\n", RESTRICTED),
        ("SELECT 1; \\c postgres\n", RESTRICTED),
        ("SET standard_conforming_strings = off;\nSELECT '\\''; \\! touch {mark}\n", RESTRICTED),
        ("\\o |touch {mark}\n", "a command of psql"),
        ("\\copy (SELECT 1) TO PROGRAM 'touch {mark}'\n", "reads or writes files"),
        (f"SELECT 1; SET ROLE NONE; {RUN};\n", "permission denied"),
        (f"SELECT 1; RESET ROLE; {RUN};\n", "permission denied"),
        ("SELECT 1; SET ROLE postgres;\n", "permission denied"),
        ("SELECT 1; SET SESSION AUTHORIZATION postgres;\n", "permission denied"),
        ("SELECT 1; SET ROLE NONE; CREATE ROLE stray SUPERUSER;\n", "permission denied"),
        ("DO $$BEGIN SET LOCAL ROLE NONE; CREATE ROLE stray SUPERUSER; END$$;\n", "permission denied"),
        (f"CREATE EXTENSION IF NOT EXISTS citext; {RUN};\n", "multiple commands"),
        (f"CREATE EXTENSION citext\n; {RUN};\n", "multiple commands"),
    ],
)
def test_a_base_runs_no_program_and_makes_no_superuser(
    shared_target: str, open_to_all: Path, tmp_path: Path, text: str, said: str
) -> None:
    path, mark = tmp_path / "base.sql", open_to_all / "mark"
    path.write_text(text.replace("{mark}", str(mark)))
    with pytest.raises(ContractError, match=said):
        fill(source_of(path), shared_target, OWNER, find_programs())
    assert not mark.exists()
    assert strangers(shared_target) == []


def test_event_triggers_of_a_base_answer_to_nothing_in_it(postgres: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "base.sql"
    path.write_text(
        "CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN CREATE ROLE stray; END$$;\n"
        "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION e();\nCREATE EXTENSION citext;\n"
        "COMMENT ON EVENT TRIGGER e IS 'x';\n"
    )
    with database(postgres) as target:
        fill(source_of(path), target, OWNER, find_programs())
        assert strangers(target) == []


def strangers(dsn: str) -> list[tuple[str]]:
    """Roles that are not the tests' own."""
    with connected(dsn) as connection:
        name = connection.info.dbname
        query = "SELECT rolname FROM pg_roles WHERE rolname IN ('stray', %s) OR rolsuper AND rolname <> session_user"
        return connection.execute(query, (name,)).fetchall()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Where the server's user, and psql's, could leave a mark."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        yield Path(place)


def test_a_forged_dump_makes_no_superuser(postgres: EmbeddedServer, tmp_path: Path) -> None:
    path, room = tmp_path / "base", "x" * 100
    with database(postgres, "CREATE TABLE t ()", f"COMMENT ON TABLE t IS '{room}'") as dsn:
        dump(dsn, "--format=custom", f"--file={path}")
    forged = "NULL; RESET ROLE; SET ROLE NONE; CREATE ROLE stray SUPERUSER; --".ljust(len(room) + 2)
    path.write_bytes(path.read_bytes().replace(f"'{room}'".encode(), forged.encode()))
    with database(postgres) as target:
        with pytest.raises(ContractError, match=r"COMMENT TABLE t: .*permission denied to create role"):
            fill(source_of(path), target, OWNER, find_programs())
        assert strangers(target) == []


@pytest.mark.parametrize("kind", ["sql", "custom"])
def test_an_extension_has_a_schema_of_its_own(postgres: EmbeddedServer, tmp_path: Path, kind: str) -> None:
    with database(postgres, "CREATE SCHEMA aside", "CREATE EXTENSION citext SCHEMA aside") as dsn:
        source = source_in(tmp_path, dsn, kind)
    with database(postgres) as target:
        fill(source, target, OWNER, find_programs())
        query = (
            "SELECT extname, nspname, nspowner::regrole::text FROM pg_extension "
            "JOIN pg_namespace n ON n.oid = extnamespace"
        )
        with connected(target) as connection:
            assert ("citext", "aside", OWNER) in connection.execute(query).fetchall()


def test_a_psql_without_restricted_mode_is_given_nothing_that_could_be_a_command(
    postgres: EmbeddedServer, open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "restricts", lambda _: False)
    path, mark = tmp_path / "base.sql", open_to_all / "mark"
    good = "\\restrict a\nCREATE TABLE t (a text);\nCOPY t (a) FROM stdin;\n\\\\ é\n\\.\n\\unrestrict a\n"
    path.write_text(good)
    with database(postgres) as target:
        fill(source_of(path), target, OWNER, find_programs())
        path.write_text(f"SELECT 1; \\! touch {mark}\n")
        with pytest.raises(ContractError, match=r":1: this psql, .* takes only ASCII"):
            fill(source_of(path), target, OWNER, find_programs())
    assert not mark.exists()


def test_an_error_in_a_dump_names_the_entry(shared_target: str, original: str, tmp_path: Path) -> None:
    path = tmp_path / "base"
    dump(original, "--format=custom", f"--file={path}")
    run(shared_target, "CREATE TABLE public.stock (n integer)")
    with pytest.raises(ContractError, match=r'TABLE stock: .*relation "stock" already exists') as raised:
        fill(source_of(path), shared_target, OWNER, find_programs())
    assert raised.value.facts["file"] == str(path)


def test_what_is_no_base_is_refused(shared_target: str, tmp_path: Path) -> None:
    packed = tmp_path / "base.sql.gz"
    packed.write_bytes(b"\x1f\x8b\x08rest")
    folder = tmp_path / "folder"
    folder.mkdir()
    broken = tmp_path / "broken"
    broken.write_bytes(b"PGDMP rubbish")
    for path, said in ((packed, "gzip"), (folder, "toc.dat"), (tmp_path / "absent", "no file or directory")):
        with pytest.raises(ContractError, match=said):
            source_of(path)
    with pytest.raises(ContractError, match=r"pg_restore says: .*(?:archive|header|version)"):
        fill(source_of(broken), shared_target, OWNER, find_programs())


def test_a_live_database_that_is_not_there_is_told_without_its_password(
    postgres: EmbeddedServer, shared_target: str
) -> None:
    dsn = psycopg.conninfo.make_conninfo("", **{**postgres.address(), "password": "hushhush", "dbname": "absent"})
    for attempt in (lambda: fingerprint(live(dsn)), lambda: fill(live(dsn), shared_target, OWNER, find_programs())):
        with pytest.raises(ContractError) as raised:
            attempt()
        assert "hushhush" not in str(raised.value)


def test_fingerprints(original: str, tmp_path: Path) -> None:
    path = tmp_path / "base.sql"
    path.write_text("SELECT 1;\n")
    first = fingerprint(source_of(path))
    os.utime(path, (0, 0))
    assert fingerprint(source_of(path)) == first
    path.write_text("SELECT 2;\n")
    assert fingerprint(source_of(path)) != first
    assert len(fingerprint(live(original))) == 64


def test_whoever_gives_up_leaves_no_program_behind(shared_target: str, tmp_path: Path) -> None:
    path = tmp_path / "base.sql"
    path.write_text("SELECT pg_sleep(600);\n" + "SELECT 1;\n" * 20_000)

    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(source_of(path), shared_target, OWNER, find_programs(), give_up)
