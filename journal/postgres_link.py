"""Where a journal on PostgreSQL is, and connections to it. The only module that loads psycopg, and only when asked.

An address is any that PostgreSQL's own programs take; ``schema=`` may be added to a ``postgresql://`` one. It may hold
a password: so addresses are never shown, only hosts, databases and schemas are.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from statefork.journal.errors import JournalUnavailable

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

SCHEMA = "statefork"
"""The schema that holds a journal, unless another is named."""

PREFIXES = ("postgresql://", "postgres://")

LOCK_TIMEOUT_S = 10.0
"""How long an append waits for another engine's; each holds the lock for one commit."""

IDLE_TIMEOUT_S = 4.0
"""The server ends a transaction whose client fell silent in the middle, so that it holds nobody up for longer."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # ms: a cut that says nothing is noticed after so long
    "application_name": "statefork",
}
_HINTS = {
    "08": "Check that the server runs and can be reached",
    "28": "Check the user and the password (a file named by PGPASSFILE keeps it out of command lines)",
    "3D": "Create the database first: createdb NAME",
    "42501": "Give the user the right: GRANT CREATE ON DATABASE name TO user; or create the schema for it",
    "53100": "The server's disk is full: free space and try again",
    "53300": "The server takes no more connections: raise max_connections, or close some",
    "25006": "This server only reads (a standby?): name the primary",
    "55P03": "Another program keeps the journal's tables locked: end its transaction",
    "57P": "The server is starting or stopping: try again",
}

_REFUSALS = (
    (re.compile(r'database "[^"]*" does not exist'), "3D000"),
    (re.compile(r'authentication failed|no password supplied|role "[^"]*" does not exist|pg_hba\.conf'), "28000"),
    (re.compile(r"too many clients|connection slots"), "53300"),
    (re.compile(r"the database system is "), "57P03"),
)
"""Who is refused while connecting gets no code from the client library, only the server's words."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a journal is. ``shown`` is fit for eyes and logs."""

    parameters: dict[str, Any]
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def channel(self) -> str:
        """Where it is told that the head moved."""
        return f"{self.schema}_journal"


def is_postgres(journal: str) -> bool:
    """Whether a journal's address names a PostgreSQL server."""
    return journal.startswith(PREFIXES)


def driver() -> ModuleType:
    """psycopg. Raises JournalUnavailable, naming the extra, where it is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise JournalUnavailable(
            f"A journal on PostgreSQL needs the package psycopg 3 ({error})",
            hint="pip install 'statefork[postgres]'",
        ) from error
    return psycopg


def parse_address(dsn: str, schema: str | None = None) -> Address:
    """Read an address. Raises JournalUnavailable, which does not repeat it: there may be a password in it."""
    conninfo = driver().conninfo
    if is_postgres(dsn):
        front, mark, query = dsn.partition("?")
        options = [option for option in query.split("&") if option]
        named = [option for option in options if option.startswith("schema=")]
        schema = schema or (unquote(named[-1].removeprefix("schema=")) if named else None)
        rest = "&".join(option for option in options if option not in named)
        dsn = f"{front}{mark}{rest}" if rest else front
    schema = schema or SCHEMA
    if not _SCHEMA.fullmatch(schema) or schema == "public" or schema.startswith("pg_"):
        raise JournalUnavailable(
            f"{schema!r} can't be the schema of a journal",
            hint="Name one of its own: small letters, digits and underscores, 48 at most, not public or pg_...",
        )
    try:
        given = conninfo.conninfo_to_dict(dsn)
        if not re.fullmatch(r"[0-9,]*", str(given.get("port") or "")):
            raise driver().ProgrammingError
    except driver().Error:
        raise JournalUnavailable(
            "The journal's address can't be understood",
            hint="Write postgresql://user@host:port/database, with the password in a file that PGPASSFILE names",
        ) from None  # psycopg's error quotes the address
    host = str(given.get("host") or given.get("hostaddr") or "the default host")
    port = f":{given['port']}" if given.get("port") else ""
    shown = f"{host}{port}/{given.get('dbname') or ''}, schema {schema}"
    return Address(parameters={**_DEFAULTS, **given}, schema=schema, shown=shown)


def connect(address: Address, *, session: bytes = b"") -> Connection:
    """A connection in autocommit whose session is set up as a journal needs it, and by ``session``.

    Raises psycopg's errors.
    """
    connection: Connection = driver().connect(**address.parameters, autocommit=True, client_encoding="utf8")
    try:
        connection.execute(_session() + session)
    except BaseException:
        connection.close()
        raise
    return connection


def _session() -> bytes:
    settings = {
        "lock_timeout": f"'{round(LOCK_TIMEOUT_S * 1000)}ms'",
        "idle_in_transaction_session_timeout": f"'{round(IDLE_TIMEOUT_S * 1000)}ms'",
        "statement_timeout": "0",
        "default_transaction_isolation": "'read committed'",  # append() relies on it
        "default_transaction_deferrable": "off",
    }
    durable = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    return "; ".join([*(f"SET {name} = {value}" for name, value in settings.items()), durable]).encode()


def code_of(error: Exception) -> str:
    """The SQLSTATE of an error; empty where the server did not answer."""
    if code := getattr(error, "sqlstate", None):
        return str(code)
    return next((code for words, code in _REFUSALS if words.search(str(error))), "")


def is_broken(connection: Connection | None, error: Exception) -> bool:
    """Whether the connection ended, so that nobody can say what became of what was sent last."""
    code = code_of(error)
    return connection is None or connection.closed or code.startswith(("08", "57P"))


def is_passing(error: Exception) -> bool:
    """Whether a server that could not be reached may be reached soon: it restarts, or the network is cut."""
    code = code_of(error)
    return isinstance(error, driver().OperationalError) and (not code or code.startswith(("08", "57P", "53300")))


def unavailable(address: Address, what: str, error: Exception) -> JournalUnavailable:
    """One of psycopg's errors as ours, without the address's secrets."""
    code = code_of(error)
    said = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
    password = str(address.parameters.get("password") or "")
    if password:
        said = said.replace(password, "***")
    said = " ".join(said.split())
    hint = next((hint for start, hint in _HINTS.items() if code.startswith(start)), _HINTS["08"] if not code else "")
    failure = JournalUnavailable(
        f"The journal at {address.shown} {what}: {said}",
        hint=hint or "Look at the server's log",
        sqlstate=code or None,
    )
    failure.__cause__ = None
    failure.__suppress_context__ = True
    return failure
