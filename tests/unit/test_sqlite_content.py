"""Digest and differences of database files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from statefork.adapters.resources.sqlite.content import changes, content_digest
from statefork.engine.masks import Column
from statefork.engine.ports import Change

SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, title TEXT COLLATE NOCASE, price REAL, picture BLOB);
CREATE TABLE stock (place TEXT, product INTEGER, number INTEGER, PRIMARY KEY (place, product)) WITHOUT ROWID;
CREATE TABLE visit (path TEXT, at);
CREATE VIEW cheap AS SELECT * FROM product WHERE price < 5;
INSERT INTO product VALUES (1, 'Cup', 4.5, x'00ff'), (2, 'Plate', 6, NULL), (3, 'Spoon', 1, NULL);
INSERT INTO stock VALUES ('north', 1, 10), ('south', 1, 3);
INSERT INTO visit VALUES ('/', 1), ('/', 1), ('/cup', 2);
"""


def database(path: Path, *statements: str, schema: str = SCHEMA) -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(schema)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


def told(before: Path, after: Path) -> list[tuple[str, str]]:
    return [(change.kind, change.name) for change in changes(before, after)]


@pytest.mark.parametrize(
    "statements",
    [
        ("VACUUM",),
        ("PRAGMA page_size = 8192", "VACUUM"),
        ("DELETE FROM product WHERE id = 2", "INSERT INTO product VALUES (2, 'Plate', 6, NULL)"),
        ("DELETE FROM visit WHERE path = '/cup'", "INSERT INTO visit VALUES ('/cup', 2)"),
        ("ANALYZE",),
        ("PRAGMA journal_mode = WAL",),
    ],
)
def test_the_same_rows_have_the_same_digest(tmp_path: Path, statements: tuple[str, ...]) -> None:
    plain, other = database(tmp_path / "a"), database(tmp_path / "b", *statements)
    assert content_digest(plain) == content_digest(other)
    assert told(plain, other) == []


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE product SET price = 5 WHERE id = 1", [("changed", "product[1]")]),
        ("UPDATE product SET title = 'CUP' WHERE id = 1", [("changed", "product[1]")]),
        ("UPDATE product SET picture = '00ff' WHERE id = 1", [("changed", "product[1]")]),
        ("UPDATE stock SET number = 9 WHERE place = 'south'", [("changed", "stock[south, 1]")]),
        ("INSERT INTO product VALUES (9, 'Jug', 1, NULL)", [("added", "product[9]")]),
        ("DELETE FROM product WHERE id = 3", [("removed", "product[3]")]),
        ("INSERT INTO visit VALUES ('/', 1)", [("added", "visit")]),
        ("DELETE FROM visit WHERE at = 1", [("removed", "visit"), ("removed", "visit")]),
        ("UPDATE visit SET at = '2' WHERE path = '/cup'", [("removed", "visit"), ("added", "visit")]),
        ("CREATE INDEX by_title ON product (title)", [("added", "index by_title")]),
        (
            "DROP TABLE stock",
            [("removed", "table stock"), *[("removed", f"stock[{p}, 1]") for p in ("north", "south")]],
        ),
        ("PRAGMA user_version = 3", [("changed", "user_version")]),
    ],
)
def test_other_content_has_another_digest_and_is_named(
    tmp_path: Path, statement: str, expected: list[tuple[str, str]]
) -> None:
    plain, other = database(tmp_path / "a"), database(tmp_path / "b", statement)
    assert content_digest(plain) != content_digest(other)
    assert sorted(told(plain, other)) == sorted(expected)


def test_values_are_told_as_they_were_and_are(tmp_path: Path) -> None:
    plain = database(tmp_path / "a")
    other = database(tmp_path / "b", "UPDATE product SET price = 5, picture = zeroblob(100) WHERE id = 1")
    (change,) = changes(plain, other)
    assert change.before == {"price": 4.5, "picture": {"hex": "00ff"}}
    assert isinstance(change.after, dict)
    assert change.after["price"] == 5.0
    assert change.after["picture"]["bytes"] == 100
    other = database(tmp_path / "b", f"UPDATE product SET title = '{'x' * 9000}' WHERE id = 1")
    (change,) = changes(plain, other)
    assert isinstance(change.after, dict)
    assert change.after["title"].endswith("… (9000 characters)")


def test_a_column_more_is_told_with_the_schema(tmp_path: Path) -> None:
    other = database(tmp_path / "b", "ALTER TABLE product ADD COLUMN note TEXT DEFAULT 'new'")
    assert told(database(tmp_path / "a"), other) == [("changed", "table product")]


def test_text_that_is_no_unicode_and_odd_names(tmp_path: Path) -> None:
    schema = 'CREATE TABLE "a ""b" ("x y" PRIMARY KEY, "select"); CREATE VIRTUAL TABLE words USING fts5(text);'
    fill = """INSERT INTO "a ""b" VALUES (1, CAST(x'ff' AS TEXT)), (NULL, 1), (NULL, 1)"""
    one = database(tmp_path / "a", fill, schema=schema)
    two = database(tmp_path / "b", fill, "INSERT INTO words VALUES ('new')", schema=schema)
    assert content_digest(one) == content_digest(database(tmp_path / "c", fill, schema=schema))
    assert content_digest(one) != content_digest(two)
    assert any(name.startswith("words_content") for _, name in told(one, two))
    three = database(tmp_path / "c", """INSERT INTO "a ""b" VALUES (1, 'plain')""", schema=schema)
    found: dict[str, Change] = {change.name: change for change in changes(one, three)}
    assert found['a "b[1]'].before == {"select": {"text_hex": "ff", "bytes": 1}}


@pytest.mark.parametrize(
    ("statement", "columns", "same"),
    [
        ("UPDATE product SET price = 5", ("product.price",), True),
        ("UPDATE product SET price = NULL WHERE id = 2", ("Product.PRICE",), True),  # as SQL reads names
        ("UPDATE product SET price = 5", ("product.title", "stock.price", "visit.at"), False),
        ("UPDATE product SET price = 5, title = 'x'", ("product.price",), False),
        ("UPDATE product SET price = 5, title = 'x'", ("product.price", "product.title"), True),
        ("INSERT INTO product (id) VALUES (9)", ("product.id", "product.price", "product.title"), False),
        ("UPDATE product SET id = 10 - id", ("product.id",), True),  # in another order of the key
        ("UPDATE product SET id = 10 - id, title = title || id", ("product.id",), False),
        ("UPDATE stock SET place = 'east' WHERE place = 'north'", ("stock.place",), True),
        ("UPDATE stock SET place = 'east', number = 1 WHERE place = 'north'", ("stock.place",), False),
        ("UPDATE visit SET at = at + 7", ("visit.at",), True),
        ("UPDATE visit SET at = at + 7, path = '/x' WHERE at = 2", ("visit.at",), False),
        ("UPDATE visit SET at = 9, path = 'x'", ("visit.at", "visit.path"), True),  # but how many there are
        ("DELETE FROM visit WHERE at = 2", ("visit.at", "visit.path"), False),
        ("ALTER TABLE visit DROP COLUMN at", ("visit.at",), False),
    ],
)
def test_columns_that_are_left_out_hide_nothing_else(
    tmp_path: Path, statement: str, columns: tuple[str, ...], same: bool
) -> None:
    before, after = database(tmp_path / "a"), database(tmp_path / "b", statement)
    without = frozenset(Column(*column.split(".")) for column in columns)
    one, other = (content_digest(path, without=without) for path in (before, after))
    assert (one == other) is same
    assert content_digest(before) != content_digest(after)
    assert content_digest(before, without=frozenset({Column("nothing", "there")})) == content_digest(before)
