"""What was seen, as it is kept: blobs, and one digest over what a replay must reproduce."""

from __future__ import annotations

import hashlib

import msgspec

from statefork.adapters.resources.browser.perform import Look
from statefork.engine.ports import Blobs
from statefork.journal.values import Observation, Rest


def observed(seen: Look, blobs: Blobs, strict: bool, selectors: tuple[str, ...]) -> Observation:
    """Store a look. In strict determinism the digest covers the screenshot, as the file that the browser wrote.

    The same browser writes the same file for the same pixels; who compares files that differ looks at the pixels.
    """
    put = blobs.put
    tabs = msgspec.json.encode(seen.tabs, order="deterministic")
    parts = {"tabs": put(tabs)} | {f"download:{name}": put(data) for name, data in seen.downloads.items()}
    snapshot = put(seen.snapshot)
    screenshot = put(seen.screenshot) if seen.screenshot else ""
    pixels = strict and bool(screenshot)
    covered = [seen.url, seen.title, snapshot, parts["tabs"], *((screenshot,) if pixels else ())]
    rest = None
    if selectors:
        rest_screenshot = put(seen.rest_screenshot) if seen.rest_screenshot else ""
        rest = Rest(selectors=selectors, snapshot=put(seen.rest), screenshot=rest_screenshot)
    return Observation(
        digest=hashlib.sha256(msgspec.json.encode(covered)).hexdigest(),
        url=seen.url,
        title=seen.title,
        snapshot=snapshot,
        screenshot=screenshot,
        parts=parts,
        value=seen.value or None,
        pixels=pixels,
        rest=rest,
    )
