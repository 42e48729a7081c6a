"""The tables of a journal in a PostgreSQL database, in a schema that belongs to it alone.

``events`` and ``streams`` are as in the SQLite file. ``journal`` has one row, and its lock is the order of the journal:
``append`` takes it before it gives positions, and it is given back by the commit. So positions become visible in their
order, and nobody ever sees a hole. All of an append is one call of that function, so no lock is held while anybody
waits for the network.

``writers`` has a row for each open journal: its *session*, a number that changes with each connection, and the *batch*
that it wrote last. Whoever lost a reply takes a new session under the lock: from then on what was sent in the old one
is refused, and the batch that is written there is the truth. ``claims`` says who alone may write into a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statefork.journal.codec import GENESIS
from statefork.journal.errors import JournalCorrupt, JournalUnavailable, StateMissing
from statefork.journal.postgres_link import Address
from statefork.journal.postgres_views import VIEWS, views_digest

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

FORMAT = 1
"""The layout's version. Views may change without a new one; tables and the function may not."""

WHOLE = "*"
"""The claim on a whole journal. No stream has that name in an engine's journal."""

_TABLES = """
CREATE TABLE {s}.journal (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  format integer NOT NULL,
  id text NOT NULL,
  position bigint NOT NULL,
  counter bigint NOT NULL,
  views text NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE {s}.events (
  position bigint PRIMARY KEY,
  stream text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  event text COLLATE "C" NOT NULL,
  hash text COLLATE "C" NOT NULL,
  UNIQUE (stream, version)
);
CREATE TABLE {s}.streams (
  stream text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL,
  hash text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE {s}.writers (
  writer bigint PRIMARY KEY,
  session bigint NOT NULL,
  batch uuid,
  reached bigint,
  who text NOT NULL,
  seen timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE TABLE {s}.claims (
  stream text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  writer bigint NOT NULL,
  place text NOT NULL,
  who text NOT NULL,
  expires timestamptz NOT NULL
);
CREATE TABLE {s}.checkpoints (
  fold text COLLATE "C" NOT NULL,
  part integer NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (fold, part)
);
"""

_APPEND = """
CREATE FUNCTION {s}.append(
  _batch uuid, _writer bigint, _session bigint,
  _touched text[], _versions bigint[], _hashes text[],
  _names text[], _numbers bigint[], _events text[], _digests text[],
  _moved text[], _moved_versions bigint[], _moved_hashes text[],
  _claimed text[], _tokens bigint[],
  OUT outcome text, OUT reached bigint, OUT bad text[]
) LANGUAGE plpgsql AS $$
DECLARE
  here bigint;
BEGIN
  SELECT j.position INTO STRICT here FROM {s}.journal j FOR UPDATE;
  -- each statement from here on sees all that was committed before the lock was given
  IF NOT EXISTS (SELECT FROM {s}.writers w WHERE w.writer = _writer AND w.session = _session) THEN
    outcome := 'ended';
    RETURN;
  END IF;
  SELECT array_agg(l.stream) INTO bad FROM (
    SELECT c.stream FROM {s}.claims c WHERE c.writer <> _writer AND (c.stream = '*' OR c.stream = ANY (_touched))
    UNION
    SELECT h.stream FROM unnest(_claimed, _tokens) AS h(stream, token)
    WHERE NOT EXISTS (SELECT FROM {s}.claims c WHERE c.stream = h.stream AND c.token = h.token)
  ) l;
  IF bad IS NOT NULL THEN
    outcome := 'lost';
    RETURN;
  END IF;
  SELECT array_agg(h.stream) INTO bad
  FROM unnest(_touched, _versions, _hashes) AS h(stream, version, hash)
  LEFT JOIN {s}.streams s ON s.stream = h.stream
  WHERE coalesce(s.version, 0) <> h.version OR coalesce(s.hash, '{genesis}') <> h.hash;
  IF bad IS NOT NULL THEN
    outcome := 'conflict';
    RETURN;
  END IF;
  INSERT INTO {s}.events (position, stream, version, event, hash)
  SELECT here + e.nth, e.stream, e.version, e.event, e.hash
  FROM unnest(_names, _numbers, _events, _digests) WITH ORDINALITY AS e(stream, version, event, hash, nth);
  INSERT INTO {s}.streams (stream, version, hash)
  SELECT m.stream, m.version, m.hash FROM unnest(_moved, _moved_versions, _moved_hashes) AS m(stream, version, hash)
  ON CONFLICT (stream) DO UPDATE SET version = excluded.version, hash = excluded.hash;
  reached := here + cardinality(_names);
  UPDATE {s}.journal SET position = reached;
  UPDATE {s}.writers w SET batch = _batch, reached = append.reached WHERE w.writer = _writer;
  PERFORM pg_notify('{channel}', _writer::text);
  outcome := 'kept';
END
$$;
"""


class Sql:
    """The statements of one journal, with the name of its schema in them."""

    def __init__(self, address: Address) -> None:
        self._words = {"s": f'"{address.schema}"', "channel": address.channel, "genesis": GENESIS}

    def __call__(self, text: str) -> bytes:
        """A statement in which ``{s}`` stands for the schema."""
        for name, word in self._words.items():
            text = text.replace(f"{{{name}}}", word)
        return text.encode()


def tables_of(connection: Connection, address: Address) -> set[str] | None:
    """The names of all tables in the schema; None where there is no such schema."""
    if connection.execute(b"SELECT FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchone() is None:
        return None
    query = (
        b"SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')"
    )
    return {str(name) for (name,) in connection.execute(query, (f'"{address.schema}"',))}


def check_schema(connection: Connection, address: Address) -> bool:
    """True for a journal that we can use, False where nothing is there yet; else an error, and nothing is changed."""
    (encoding,) = connection.execute(b"SHOW server_encoding").fetchone() or ("",)
    if encoding != "UTF8":
        raise JournalUnavailable(
            f"The database at {address.shown} has the encoding {encoding}",
            hint="A journal needs UTF8: createdb --encoding UTF8 --template template0 NAME",
        )
    found = tables_of(connection, address)
    if not found:
        return False
    if "journal" not in found:
        raise JournalCorrupt(
            f"The schema at {address.shown} is not a statefork journal: it holds {min(found)!r}",
            hint="Name another schema, or an empty one; nothing was changed",
            position=0,
        )
    row = connection.execute(Sql(address)("SELECT format FROM {s}.journal")).fetchone()
    if row is None or row[0] != FORMAT:
        has = "no format" if row is None else f"format {row[0]}"
        raise JournalUnavailable(
            f"The journal at {address.shown} has {has}; this statefork knows {FORMAT}",
            hint="Another version of statefork made it: use that one. Nothing was changed",
        )
    return True


def create_schema(connection: Connection, address: Address, identity: str, first: tuple[str, str, str]) -> bool:
    """Make the journal where there is none, with its first event, and bring the views up to date. True: it is new.

    ``first``: stream, event and hash. All of it is one transaction, and of several that come at once one does it.
    """
    sql = Sql(address)
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(hashtextextended('statefork ' || %s, 0))", (address.schema,))
        there = check_schema(connection, address)
        if not there:
            _create(connection, address, identity, first)
        digest = views_digest()
        (known,) = connection.execute(sql("SELECT views FROM {s}.journal")).fetchone() or ("",)
        if known != digest:
            for name in reversed(VIEWS):
                connection.execute(sql(f"DROP VIEW IF EXISTS {{s}}.{name}"))
            for name, query in VIEWS.items():
                connection.execute(sql(f"CREATE VIEW {{s}}.{name} AS {query}"))
            connection.execute(sql("UPDATE {s}.journal SET views = %s"), (digest,))
    return not there


def _create(connection: Connection, address: Address, identity: str, first: tuple[str, str, str]) -> None:
    sql = Sql(address)
    if tables_of(connection, address) is None:
        connection.execute(sql("CREATE SCHEMA {s}"))
    connection.execute(sql(_TABLES))
    connection.execute(sql(_APPEND))
    stream, event, digest = first
    connection.execute(sql("INSERT INTO {s}.events VALUES (1, %s, 1, %s, %s)"), (stream, event, digest))
    connection.execute(sql("INSERT INTO {s}.streams VALUES (%s, 1, %s)"), (stream, digest))
    row = "INSERT INTO {s}.journal (format, id, position, counter, views) VALUES (%s, %s, 1, 0, '')"
    connection.execute(sql(row), (FORMAT, identity))


def no_journal(address: Address) -> StateMissing:
    """The error for a database that holds no journal."""
    return StateMissing(
        f"There is no journal at {address.shown}",
        hint="Check the address and the schema; an engine makes a journal when it first opens one",
    )
