"""The format of the file (docs/design/export.md): a ZIP archive that vouches for each of its bytes.

::

    objects/<sha256>     bytes, by their digest: blobs, and the files of sealed components
    events.jsonl         the journal's slice, a line for each event
    manifest.json        what this is, and size and SHA-256 of all the others

The archive's comment is ``statefork-export/1 `` and the SHA-256 of everything before the digest itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from statefork.journal.values import Moment

FORMAT = 1
KIND = b"statefork-export/"
DIGEST_CHARS = 64
COMMENT = KIND + str(FORMAT).encode() + b" "

EVENTS = "events.jsonl"
MANIFEST = "manifest.json"
OBJECTS = "objects/"
OBJECT = re.compile(r"objects/([0-9a-f]{64})")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,126}")
"""What a component's files may be called."""

MEMBERS_MAX = 1_000_000
MANIFEST_BYTES_MAX = 256 * 1024 * 1024
EVENTS_BYTES_MAX = 512 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024  # an event has at most 4 MiB
BLOB_BYTES_MAX = 256 * 1024 * 1024
"""What is held in memory while it is read has a limit."""

GENERATIONS_MAX = 500
"""Of a longer history so many generations are carried, the origin and the last one among them: others can be made."""

Progress = Callable[[float, str], None]
"""Called with how far it is (0 to 1), and what is being done."""


def nobody_watches(_fraction: float, _doing: str) -> None:
    """Tells nobody."""


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the values below."""


class ContractForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract of the environment. ``text`` is for people: passwords in addresses are covered."""

    digest: str
    name: str
    text: str


class ComponentForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sealed component: what its content's digest is, and its files by name, each the SHA-256 of its bytes.

    ``files`` None: it was left out, for the contract's base has it.
    """

    resource: str
    adapter: str
    version: str  # its name there
    digest: str
    files: dict[str, str] | None = None


class Member(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a member must be."""

    size: int
    sha256: str


class Manifest(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``manifest.json``."""

    format: int
    statefork: str  # which wrote it
    until: float  # Unix seconds, UTC: when the last of it happened
    journal: str
    environment: str  # what people call it
    moment: Moment  # the last generation
    called: str = ""  # what was asked for, where the last generation is of an environment that only helped
    heads: str  # digest of the heads of the streams in events.jsonl
    contract: ContractForm
    generations: tuple[Moment, ...]
    components: tuple[ComponentForm, ...]
    blobs: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # a sentence each
    members: dict[str, Member]


class Line(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of ``events.jsonl``: an event in its place, with the hash that chains its stream.

    ``altered``: these are not the bytes that were hashed (a secret was left out, or an older statefork wrote them), so
    that only the event after it proves the hash.
    """

    position: int
    stream: str
    version: int
    hash: str
    altered: str = ""
    event: msgspec.Raw


class Size(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is carried."""

    actions: int
    inputs: int
    generations: int
    components: int
    blobs: int
    bytes: int  # of the file
    unpacked_bytes: int


class Exported(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export wrote."""

    path: str
    sha256: str  # of the file
    ref: str
    journal: str
    size: Size
    left_out: tuple[str, ...] = ()


class Imported(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an import made."""

    env: str
    ref: str
    source: str  # what was exported
    journal: str
    sha256: str  # of the file
    size: Size
    reused: tuple[str, ...] = ()  # resources whose base was here already
    left_out: tuple[str, ...] = ()
