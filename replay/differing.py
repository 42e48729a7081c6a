"""What differs between two moments, as values: counted, bounded, in the terms of who looks at an environment."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable

import msgspec

from statefork.engine.ports import Change
from statefork.journal.errors import BlobMissing
from statefork.journal.values import Moment, Observation
from statefork.replay.covering import covered
from statefork.replay.verdict import RolloutResult

COUNTED_MAX = 100_000
"""Changes of one resource that are counted; what there is beyond them is not looked at."""
TREE_LINES_MAX = 400
_CONTEXT_LINES = 2
_FIELDS = {"added": 0, "removed": 1, "changed": 2}


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of one sort there are."""

    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.added + self.removed + self.changed


class ResourceDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs in one resource.

    ``changes`` are the first ones; ``counts`` has all of them, by table or other sort, unless there are more than
    ``COUNTED_MAX``: then ``counted_all`` is False. ``cache``: of what is made from other resources, whether what one
    moment holds would do for the other: ``fresh`` (what it is made from is equal) or ``stale`` (``stale_by`` differ).
    """

    adapter: str
    changes: tuple[Change, ...] = ()
    counts: dict[str, Counts] = {}
    counted_all: bool = True
    cache: str = ""
    stale_by: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Changes that were counted."""
        return sum(counts.total for counts in self.counts.values())

    @property
    def left_out(self) -> int:
        """Changes that were counted and are not in ``changes``."""
        return self.total - len(self.changes)


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen at a moment: after which action (of the lineage), and the digests of the blobs that show it."""

    number: int
    url: str
    title: str
    tabs: tuple[tuple[str, str], ...] = ()  # address and title of each
    snapshot: str = ""
    screenshot: str = ""


class PageDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent saw otherwise. ``changes``: addresses and titles; ``tree``: unified diff of what a screen reader
    is told, cut after ``TREE_LINES_MAX`` lines; ``pictures``: whether the screenshots are not the same bytes."""

    before: Sight | None = None
    after: Sight | None = None
    changes: tuple[Change, ...] = ()
    tree: str = ""
    tree_added: int = 0
    tree_removed: int = 0
    pictures: bool = False

    @property
    def equal(self) -> bool:
        """Nothing was seen to differ; nor where one of the moments was not seen."""
        return not (self.changes or self.tree or self.pictures)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two moments. ``resources`` names those that differ, and every cache.

    ``before_at`` and ``after_at`` are the generations that were compared; of a moment at which none stands it is one of
    an environment that was made for this and is retired, and ``made_before`` or ``made_after`` says how that went.
    """

    before: str
    after: str
    before_at: Moment
    after_at: Moment
    resources: dict[str, ResourceDifference]
    page: PageDifference
    made_before: RolloutResult | None = None
    made_after: RolloutResult | None = None

    @property
    def equal(self) -> bool:
        """Nothing differs: what is held, and what was seen where both moments were seen."""
        return self.page.equal and not any(one.total for one in self.resources.values())

    def __str__(self) -> str:
        """A line for each change that is kept; `statefork diff` shows more of them."""
        lines = [f"{self.before} to {self.after}:{' nothing differs' if self.equal else ''}"]
        for resource, one in self.resources.items():
            lines += [f"  {resource}: {change.kind} {change.name}" for change in one.changes]
            lines += [f"  {resource}: {one.left_out} more"] if one.left_out else []
            lines += [f"  {resource}: {one.cache}"] if one.cache == "stale" else []
        lines += [f"  page: {change.kind} {change.name}" for change in self.page.changes]
        return "\n".join(lines)


async def counted(adapter: str, changes: AsyncIterator[Change], limit: int) -> ResourceDifference:
    """The first ``limit`` changes, and how many there are of each sort."""
    kept: list[Change] = []
    tally: dict[str, list[int]] = {}
    number = 0
    async for change in changes:
        if number == COUNTED_MAX:
            break
        number += 1
        tally.setdefault(change.group, [0, 0, 0])[_FIELDS[change.kind]] += 1
        if len(kept) < limit:
            kept.append(covered(change))
    else:
        return _difference(adapter, kept, tally, counted_all=True)
    return _difference(adapter, kept, tally, counted_all=False)


def _difference(
    adapter: str, kept: list[Change], tally: dict[str, list[int]], *, counted_all: bool
) -> ResourceDifference:
    counts = {group: Counts(added=a, removed=r, changed=c) for group, (a, r, c) in tally.items()}
    return ResourceDifference(adapter=adapter, changes=tuple(kept), counts=counts, counted_all=counted_all)


def sight_of(number: int, seen: Observation, read_blob: Callable[[str], bytes]) -> Sight:
    """An observation, with the tabs that it tells of."""
    tabs: tuple[tuple[str, str], ...] = ()
    if "tabs" in seen.parts:
        try:
            told = msgspec.json.decode(read_blob(seen.parts["tabs"]), type=list[dict[str, str | bool]])
        except (BlobMissing, msgspec.DecodeError):
            told = []
        tabs = tuple((str(one.get("url", "")), str(one.get("title", ""))) for one in told)
    return Sight(
        number=number,
        url=seen.url,
        title=seen.title,
        tabs=tabs,
        snapshot=seen.snapshot,
        screenshot=seen.screenshot,
    )


def page_difference(before: Sight | None, after: Sight | None, read_blob: Callable[[str], bytes]) -> PageDifference:
    """What differs between two sights. Where one is missing there is nothing to compare."""
    if before is None or after is None:
        return PageDifference(before=before, after=after)
    tree = _tree(before, after, read_blob) if before.snapshot != after.snapshot else []
    body = [line for line in tree if not line.startswith(("---", "+++"))]
    cut = [*tree[:TREE_LINES_MAX], f"… {len(tree) - TREE_LINES_MAX} more lines"] if len(tree) > TREE_LINES_MAX else tree
    return PageDifference(
        before=before,
        after=after,
        changes=tuple(_facts(before, after)),
        tree="\n".join(cut),
        tree_added=sum(line.startswith("+") for line in body),
        tree_removed=sum(line.startswith("-") for line in body),
        pictures=before.screenshot != after.screenshot,
    )


def _facts(before: Sight, after: Sight) -> list[Change]:
    old, new = dict(_named(before)), dict(_named(after))
    found = []
    for name in [*old, *(name for name in new if name not in old)]:
        was, now = old.get(name), new.get(name)
        if was != now:
            kind = "added" if was is None else "removed" if now is None else "changed"
            found.append(Change(kind=kind, name=name, before=was, after=now, group="page"))
    return found


def _named(sight: Sight) -> list[tuple[str, str]]:
    tabs = [
        (f"tab {at} {what}", told) for at, tab in enumerate(sight.tabs) for what, told in zip(_TAB, tab, strict=True)
    ]
    return [("address", sight.url), ("title", sight.title), *(tabs if len(sight.tabs) > 1 else [])]


_TAB = ("address", "title")


def _tree(before: Sight, after: Sight, read_blob: Callable[[str], bytes]) -> list[str]:
    old, new = (_lines(sight.snapshot, read_blob) for sight in (before, after))
    return list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=_CONTEXT_LINES))


def _lines(digest: str, read_blob: Callable[[str], bytes]) -> list[str]:
    if not digest:
        return []
    try:
        return read_blob(digest).decode(errors="replace").splitlines()
    except BlobMissing as error:
        return [f"({error.message})"]
