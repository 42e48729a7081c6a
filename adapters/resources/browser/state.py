"""What a browser profile is, as data: the content of a sealed version, its bytes, its digest, its differences.

What the page scripts captured stays plain JSON; only what this side reads has a type. The content's bytes are
deterministic, so equal content has an equal digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Change

FORMAT = 1


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the values below."""


class Flag(Part, frozen=True, kw_only=True, order=True):
    """Something that the profile had and that a restore can't give back, or not wholly.

    ``kind``: post-result, history-post, history-state, frame-unreadable, frame-storage, file-too-big, live-connection,
    download, unreachable-page, indexeddb-value, indexeddb-too-big, indexeddb-unreadable, cache-opaque, cache-too-big,
    opfs, history-value, origin-unreadable.
    """

    kind: str
    where: str
    detail: str = ""


class Origin(Part, frozen=True, kw_only=True):
    """What one origin has stored."""

    local: dict[str, str] = {}
    databases: list[dict[str, Any]] = []
    caches: list[dict[str, Any]] = []
    workers: list[dict[str, Any]] = []


class Entry(Part, frozen=True, kw_only=True):
    """One entry of a tab's history. ``state`` is history.state, packed by scripts/codec.js."""

    url: str
    state: Any = None
    same_document: bool = False  # as the entry before it: made by pushState or a fragment


class Document(Part, frozen=True, kw_only=True):
    """A page that no GET of its address gives again (the answer to a POST): kept as it was delivered."""

    url: str
    status: int
    headers: dict[str, str]
    body: str  # base64


class Frame(Part, frozen=True, kw_only=True):
    """What one frame shows. ``at`` is its place in the frame tree: indexes of children, () for the tab's own page."""

    at: tuple[int, ...] = ()
    view: dict[str, Any]
    session: dict[str, str] | None = None  # only of frames that are of another origin than their tab
    local: dict[str, str] | None = None


class Tab(Part, frozen=True, kw_only=True):
    """One page with its history."""

    entries: tuple[Entry, ...]
    current: int
    opener: int | None = None  # index of the tab whose script opened it
    session: dict[str, dict[str, str]] = {}  # sessionStorage by origin, earlier origins too
    frames: tuple[Frame, ...] = ()
    document: Document | None = None
    status: int = 0  # of the answer that the page was made from; 0: not known, -1: Chromium's own error page
    referrer: str = ""


class Profile(Part, frozen=True, kw_only=True):
    """A whole browser profile. ``start`` is set (and nothing else) in one that has not opened its first page yet."""

    format: int = FORMAT
    start: str = ""
    cookies: tuple[dict[str, Any], ...] = ()
    origins: dict[str, Origin] = {}
    tabs: tuple[Tab, ...] = ()
    active: int = 0
    flags: tuple[Flag, ...] = ()


class Stored(Part, frozen=True, kw_only=True):
    """The file of a sealed version. ``witnesses`` are cheap hashes of each tab's visible text when it was captured."""

    profile: Profile
    witnesses: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Stored)


def digest_of(profile: Profile) -> str:
    """SHA-256 (hex) of the content."""
    return hashlib.sha256(_encoder.encode(profile)).hexdigest()


def encode(stored: Stored) -> bytes:
    """The bytes of a sealed version's file."""
    return _encoder.encode(stored)


def decode(data: bytes, where: str) -> Stored:
    """The sealed version in a file's bytes. Raises ResourceFailed, naming the file, when they are not one."""
    try:
        stored = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ResourceFailed(f"browser state {where} can't be read: {error}", path=where) from error
    if stored.profile.format != FORMAT:
        raise ResourceFailed(f"browser state {where} has format {stored.profile.format}, not {FORMAT}", path=where)
    return stored


def facts_of(profile: Profile) -> Iterator[tuple[str, Any]]:
    """The content as named facts in a person's terms; a name appears once."""
    if profile.start:
        yield "start page", profile.start
    for cookie in profile.cookies:
        partition = f" in {cookie['partitionKey']}" if cookie.get("partitionKey") else ""
        rest = {k: v for k, v in cookie.items() if k not in ("name", "domain", "path")}
        yield f"cookie {cookie['domain']}{cookie['path']} {cookie['name']}{partition}", rest
    for name, origin in profile.origins.items():
        yield from _origin_facts(name, origin)
    for number, tab in enumerate(profile.tabs):
        yield from _tab_facts(f"tab {number}", tab)
    yield "active tab", profile.active
    for flag in profile.flags:
        yield f"not carried: {flag.kind} {flag.where}", flag.detail


def _origin_facts(name: str, origin: Origin) -> Iterator[tuple[str, Any]]:
    for key, value in origin.local.items():
        yield f"localStorage {name} {key}", value
    for database in origin.databases:
        yield f"indexedDB {name} {database['name']}", {"version": database["version"]}
        for store in database["stores"]:
            where = f"indexedDB {name} {database['name']}/{store['name']}"
            yield f"{where} (shape)", {k: v for k, v in store.items() if k != "records"}
            for key, value in store["records"]:
                yield f"{where} {msgspec.json.encode(key).decode()}", value
    for cache in origin.caches:
        for entry in cache["entries"]:
            yield f"cache {name} {cache['name']} {entry['method']} {entry['url']}", {"status": entry["status"]}
    for worker in origin.workers:
        yield f"service worker {name} {worker['scope']}", worker["script"]


def _tab_facts(where: str, tab: Tab) -> Iterator[tuple[str, Any]]:
    yield f"{where} address", tab.entries[tab.current].url
    yield f"{where} history", [entry.url for entry in tab.entries]
    yield f"{where} history position", tab.current
    yield f"{where} history.state", [entry.state for entry in tab.entries]
    for origin, items in tab.session.items():
        for key, value in items.items():
            yield f"{where} sessionStorage {origin} {key}", value
    if tab.document is not None:
        yield f"{where} kept page", hashlib.sha256(tab.document.body.encode()).hexdigest()
    for frame in tab.frames:
        at = where + "".join(f" frame {index}" for index in frame.at)
        view = frame.view
        yield f"{at} scroll", [view["x"], view["y"]]
        yield f"{at} scrolled elements", view["scrolls"]
        yield f"{at} focus", view["focus"]
        yield f"{at} selection", view["selection"]
        yield f"{at} window.name", view["name"]
        yield f"{at} open elements", view["opens"]
        for number, field in enumerate(view["fields"]):
            label = field["name"] or field["id"] or field["path"][-1]
            yield f"{at} field {number} {label}", {k: field[k] for k in field.keys() - {"path", "id", "name", "kind"}}
        for kind, stored in (("sessionStorage", frame.session), ("localStorage", frame.local)):
            for key, text in (stored or {}).items():
                yield f"{at} {kind} {key}", text


def changes(before: Profile, after: Profile) -> Iterator[Change]:
    """What differs, in a person's terms, sorted by name."""
    old, new = dict(facts_of(before)), dict(facts_of(after))
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield Change(kind="removed", name=name, before=old[name])
        elif name not in old:
            yield Change(kind="added", name=name, after=new[name])
        elif old[name] != new[name]:
            yield Change(kind="changed", name=name, before=old[name], after=new[name])
