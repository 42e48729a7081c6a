"""A SQL file on its way to psql: what names roles is left out, data is not touched, lines keep their numbers."""

from __future__ import annotations

import pytest

from statefork.adapters.resources.postgres.sqlfile import Aside, Refused, adapted


def adapt(text: str, *schemas: str, bare: bool = False) -> str:
    return adapt_both(text, *schemas, bare=bare)[0]


def adapt_both(text: str, *schemas: str, bare: bool = False) -> tuple[str, list[Aside]]:
    lines = text.encode().splitlines(keepends=True)
    aside: list[Aside] = []
    found = list(adapted(lines, aside, schemas, bare=bare))
    assert len(found) == len(lines)
    return b"".join(found).decode(), aside


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE public.goods OWNER TO bob;",
        'ALTER FUNCTION public.f(n integer) OWNER TO "Bob Jones";',
        "GRANT SELECT ON TABLE public.goods TO bob;",
        "  revoke all on schema public from public;",
        "ALTER DEFAULT PRIVILEGES FOR ROLE bob IN SCHEMA public GRANT ALL ON TABLES TO bob;",
        "SET SESSION AUTHORIZATION 'bob';",
        "RESET SESSION AUTHORIZATION;",
    ],
)
def test_owners_and_privileges_are_left_out(statement: str) -> None:
    assert adapt(f"SELECT 1;\n{statement}\nSELECT 2;\n") == "SELECT 1;\n\nSELECT 2;\n"


def test_what_only_a_superuser_may_do_is_set_aside() -> None:
    text = (
        'CREATE EXTENSION hstore\n  WITH SCHEMA "A b"; -- ours\nSELECT 1;\n'
        "COMMENT ON EXTENSION hstore IS 'x;\ny';\nCREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION f();\n"
        "ALTER EVENT TRIGGER e OWNER TO bob;\nCOPY t FROM stdin;\nCREATE EXTENSION b;\n\\.\n"
    )
    rest, aside = adapt_both(text)
    assert rest == "\n\nSELECT 1;\n\n\n\n\nCOPY t FROM stdin;\nCREATE EXTENSION b;\n\\.\n"
    assert [(statement.line, statement.extension, statement.schema) for statement in aside] == [
        (1, True, "A b"),
        (4, True, ""),
        (6, False, ""),
    ]
    assert aside[1].text == b"COMMENT ON EXTENSION hstore IS 'x;\ny';\n"


def test_a_schema_that_is_there_is_not_made_again() -> None:
    text = "DROP SCHEMA IF EXISTS far;\nCREATE SCHEMA Far;\nCREATE SCHEMA IF NOT EXISTS far2;\n"
    assert adapt(text, "far") == "\n\nCREATE SCHEMA IF NOT EXISTS far2;\n"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT '\\! x';\n",
        "SELECT 'é';\n",
        "SELECT '\0';\n",
        "COPY t\n  FROM stdin;\n\\N\n\\.\n",
        "/*\nCOPY t FROM stdin;\n\\! x\n",
        "COPY t FROM stdin;\n\\.\n\\! x\n",
        "SELECT '\nCOPY t FROM stdin;\n\\! x\n",
    ],
)
def test_a_psql_without_restricted_mode_is_given_no_backslash_outside_of_data(text: str) -> None:
    with pytest.raises(Refused, match=r"no .*restrict|command of psql|runs a program"):
        adapt(text, bare=True)


def test_plain_dumps_suit_a_psql_without_restricted_mode() -> None:
    text = "COPY public.t (a, b) FROM stdin;\n\\N\té\n\\.\nSELECT $$ a; $$;\n"
    assert adapt(f"\\restrict a\n{text}", bare=True) == f"\n{text}"


@pytest.mark.parametrize(
    "text",
    [
        "COPY public.t (line) FROM stdin;\nGRANT ALL ON t TO bob;\nDROP ROLE bob;\n\\connect x\n\\.\nSELECT 1;\n",
        "COPY t\n  FROM STDIN;\n'\nGRANT ALL ON t TO bob;\n\\.\n",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $_$\nGRANT ALL ON t TO bob;\n$$ ' $$\n$_$;\n",
        "INSERT INTO t VALUES ('it''s\nGRANT ALL ON t TO bob;\n');\n",
        "INSERT INTO t VALUES (E'it\\'s\nGRANT ALL ON t TO bob;\n');\n",
        'COMMENT ON TABLE "a\nGRANT ALL ON t TO bob;\n" IS NULL;\n',
        "/* one /* two */\nGRANT ALL ON t TO bob;\n*/ SELECT 1;\n",
        "CREATE TABLE t (n integer, -- it's\n  m integer);\nSELECT 1;\n",
        "SELECT a$1$b, $1;\nSELECT 'x';\n",
        "CREATE USER MAPPING FOR PUBLIC SERVER far;\n",
        "SELECT\nGRANT ALL ON t TO bob;\n",
    ],
)
def test_what_is_inside_of_something_is_not_looked_at(text: str) -> None:
    assert adapt(text) == text


def test_how_psql_talks_is_left_out() -> None:
    text = "\\restrict abc'def\n\\set ON_ERROR_STOP on\n\\echo `x`\nSELECT 1;\n\\unrestrict abc'def\n"
    assert adapt(text) == "\n\n\nSELECT 1;\n\n"


def test_after_something_has_ended_the_next_statement_is_looked_at() -> None:
    for before in (
        "COPY t FROM stdin;\n'\n\\.\n",
        "SELECT $$ ' $$;\n",
        "SELECT date'x\\';\n",
        "SELECT _e'x\\', $ 1, 1-1, 1/1, e.e;\n",
        "SELECT E'\n\\';\\\\';\n",
        "SELECT E'\\\\';\n",
        "/* ' */ SELECT 1;\n",
        "SELECT 1; -- it's\n",
        "CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1;\nSELECT 2);\n",
    ):
        assert adapt(f"{before}GRANT ALL ON t TO bob;\n") == f"{before}\n", before


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("\\connect other", "another database"),
        ("\\c other", "another database"),
        ("\\! rm x", "runs a program"),
        ("\\copy t from 'x'", "COPY … FROM STDIN"),
        ("\\i other.sql", "a command of psql"),
        ("\\set x `id`", "a command of psql"),
        ("CREATE DATABASE shop;", "whole database"),
        ("create role bob;", "a role"),
        ("ALTER USER bob WITH SUPERUSER;", "a role"),
    ],
)
def test_what_leaves_the_database_is_refused_with_its_line(line: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as raised:
        adapt(f"SELECT 1;\n\n{line}\n")
    assert raised.value.line == 3
