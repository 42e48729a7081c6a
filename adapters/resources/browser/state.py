"""What a browser profile is, as data: the content of a sealed version, its bytes, its digest, its differences.

What the page scripts captured stays plain JSON; only what this side reads has a type. The content's bytes are
deterministic, so equal content has an equal digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Change
from statefork.engine.tickets import tell_conditions
from statefork.journal.values import Conditions

FORMAT = 1


def origin_of(url: str) -> str | None:
    """The origin of an http(s) address, as a page would name it; None for others."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" if port in (None, usual) else f"{parts.scheme}://{host}:{port}"


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
    other_document: bool | msgspec.UnsetType = msgspec.UNSET  # True: surely not that of the entry before it


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
    conditions: Conditions | None = None  # under which its page was loaded; None: they were real


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
    """The file of a sealed version. ``witnesses`` are cheap hashes of each tab's visible text when it was captured.

    ``documents``: of each tab the answer that its page was made from, where a GET's is known. It is no part of the
    content: what the page became is. A page is made anew from it rather than asked for again, for a server may answer
    otherwise by now (a message that is shown once), and the tab still shows what it was told then.
    """

    profile: Profile
    witnesses: tuple[str, ...] = ()
    documents: tuple[Document | None, ...] = ()


def of_the_first_page(start: str) -> Conditions:
    """The first page of a fresh profile is a part of the origin: it draws the same in every environment."""
    return Conditions(seed=hashlib.sha256(start.encode()).hexdigest()[:32])


def told_while_restoring(profile: Profile) -> str:
    """What servers are told while the pages are loaded again: the conditions of the active tab's own load.

    A server that answers the first page of all draws for it what that draws by itself: the same in every environment.
    """
    conditions = profile.tabs[profile.active].conditions if profile.tabs else None
    if profile.start:
        conditions = of_the_first_page(profile.start)
    return tell_conditions(conditions.seed, conditions.now) if conditions is not None else ""


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


_GROUPS = {
    "cookie ": "cookies",
    "localStorage ": "localStorage",
    "indexedDB ": "indexedDB",
    "cache ": "caches",
    "service worker ": "service workers",
    "not carried: ": "not carried",
}


def _group_of(name: str) -> str:
    """What people count a fact under."""
    found = next((group for begin, group in _GROUPS.items() if name.startswith(begin)), "tabs")
    return "sessionStorage" if found == "tabs" and " sessionStorage " in name else found


def changes(before: Profile, after: Profile) -> Iterator[Change]:
    """What differs, in a person's terms, sorted by name."""
    old, new = dict(facts_of(before)), dict(facts_of(after))
    for name in sorted(old.keys() | new.keys()):
        group = _group_of(name)
        if name not in new:
            yield Change(kind="removed", name=name, before=old[name], group=group)
        elif name not in old:
            yield Change(kind="added", name=name, after=new[name], group=group)
        elif old[name] != new[name]:
            yield Change(kind="changed", name=name, before=old[name], after=new[name], group=group)
