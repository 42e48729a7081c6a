"""Whether two observations are of the same: to the digest, or but for what the contract's masks take out.

Where digests differ the parts are looked at, and what differs is named. Screenshots count where both digests cover them
(in strict determinism), and are compared by their pixels. Under the masks only what they cover may differ: everything
else is compared as before.
"""

from __future__ import annotations

from collections.abc import Callable

from statefork.engine.masks import Masks
from statefork.journal.errors import BlobMissing
from statefork.journal.values import Observation, Rest
from statefork.replay.pixels import same_pixels

ReadBlob = Callable[[str], bytes]

SCREENSHOT = "another screenshot"
_TEXT_PARTS = frozenset({"tabs"})
"""Parts that say in text what a page shows of itself (address and title of every tab)."""


def difference(recorded: Observation, seen: Observation, read_blob: ReadBlob) -> str:
    """What differs between two observations, as a clause; empty when nothing does."""
    if recorded.digest == seen.digest and recorded.pixels == seen.pixels:
        return ""
    if recorded.url != seen.url:
        return "another address"
    if recorded.title != seen.title:
        return "another title"
    if recorded.snapshot != seen.snapshot:
        return "another page content"
    names = sorted(name for name in recorded.parts | seen.parts if recorded.parts.get(name) != seen.parts.get(name))
    if names:
        return f"another {', '.join(names)}"
    if recorded.pixels != seen.pixels:  # it was recorded under another determinism; nothing else says that they differ
        return ""
    if recorded.pixels and recorded.screenshot != seen.screenshot:
        return "" if _same_picture(recorded.screenshot, seen.screenshot, read_blob) else SCREENSHOT
    return "another digest of the same page"


def equivalent(recorded: Observation, seen: Observation, masks: Masks, read_blob: ReadBlob) -> bool:
    """Whether two observations that differ are equal in everything that the masks do not cover."""
    if not masks.text and not masks.selectors:
        return False
    cover = masks.cover
    if (cover(recorded.url), cover(recorded.title)) != (cover(seen.url), cover(seen.title)):
        return False
    if recorded.parts.keys() != seen.parts.keys():
        return False
    for name, digest in recorded.parts.items():
        if digest != seen.parts[name] and not (
            name in _TEXT_PARTS and _same_text(digest, seen.parts[name], masks, read_blob)
        ):
            return False
    left = _what_is_left(recorded, seen, masks)
    if not left or not _same_text(left[0].snapshot, left[1].snapshot, masks, read_blob):
        return False
    return not (recorded.pixels and seen.pixels) or _same_picture(left[0].screenshot, left[1].screenshot, read_blob)


def alike(recorded: Observation, seen: Observation, masks: Masks, read_blob: ReadBlob) -> bool:
    """Whether two observations are equal, or but for what the masks cover."""
    return not difference(recorded, seen, read_blob) or equivalent(recorded, seen, masks, read_blob)


def masks_of_another_time(recorded: Observation | None, masks: Masks) -> str:
    """What to add to a difference where other elements were taken out when it was recorded; else empty."""
    there = recorded.rest.selectors if recorded is not None and recorded.rest is not None else ()
    if recorded is None or there == masks.selectors:
        return ""
    return " (it was recorded under other selectors, so none of them counts: masks.selectors was changed since)"


def _what_is_left(recorded: Observation, seen: Observation, masks: Masks) -> tuple[Rest, Rest] | None:
    """Both sides without what the selectors match; both whole where one side was seen under other selectors."""
    if not recorded.snapshot or not seen.snapshot:
        return None
    there, here = recorded.rest, seen.rest
    if there is not None and here is not None and there.selectors == here.selectors == masks.selectors:
        return there, here
    return _whole(recorded), _whole(seen)


def _whole(observation: Observation) -> Rest:
    return Rest(selectors=(), snapshot=observation.snapshot, screenshot=observation.screenshot)


def _same_text(one: str, other: str, masks: Masks, read_blob: ReadBlob) -> bool:
    if one == other:
        return True
    try:
        return masks.cover(_text(one, read_blob)) == masks.cover(_text(other, read_blob))
    except BlobMissing:
        return False


def _text(digest: str, read_blob: ReadBlob) -> str:
    return "\n".join(read_blob(digest).decode(errors="replace").splitlines())


def _same_picture(one: str, other: str, read_blob: ReadBlob) -> bool:
    if one == other:
        return True
    if not one or not other:
        return False
    try:
        return same_pixels(read_blob(one), read_blob(other))
    except BlobMissing:
        return False
