"""``statefork diff``: what differs between two moments?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE, EXIT_OK, UsageError
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out, moment_text, ref_text, short
from statefork.adapters.interfaces.cli.reading import run, view
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.control.protocol import Diff

EXAMPLES = """
    statefork diff shop-1@1 shop-1               what the agent did to it, from the beginning to now
    statefork diff 'shop-1#12' 'shop-1#13' --stat
    statefork diff shop-1-f1 shop-1-f2 --pictures seen/
"""
SHOWN_PER_RESOURCE = 20
VALUE_CHARS_MAX = 80
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_SECRET_CHANGED = "changed (secret)"
_ABSENT = object()
_DIGEST = re.compile(r"[0-9a-f]{64}")

RefOfTwo = Annotated[
    str, typer.Argument(help="A moment of any environment: shop, shop@7, shop@7+3, shop#42.", show_default=False)
]


def diff(
    before: RefOfTwo,
    after: RefOfTwo,
    stat: Annotated[bool, typer.Option("--stat", help="Only how many there are of each sort.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", help="Changes shown per resource.", metavar="N", min=0)
    ] = SHOWN_PER_RESOURCE,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            help="Write the two screenshots here, and one with the changed regions framed.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    look: Annotated[
        bool, typer.Option("--look", help="Where nothing was seen at a moment, make a child of it and look.")
    ] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two moments, of one environment or of two of one contract.

    Rows by table, files, cookies and storage, the page as it was seen last before each moment, and whether caches are
    stale. The present is published first where it was written to. A moment of the past at which no generation stands is
    made in an environment of its own, which is retired afterwards. Values of secrets (passwords, tokens, cookies that
    scripts can't read) are not shown.

    Exit status: 0 nothing differs, 1 something does, 2 it can't be said.
    """
    out = Out(as_json=as_json)
    answer = Control(state).ask("diff", Diff(before=before, after=after, limit=0 if stat else limit, look=look))
    page = answer["page"]
    if pictures is not None:
        answer["pictures"] = _draw(state, page, pictures)
    out.data(answer)
    for side in ("before", "after"):
        made = answer[f"made_{side}"]
        if made is not None:
            again = f"{counted(made['actions'], 'action')} from {ref_text(made['source'])} done again"
            out.say(f"{answer[side]} was made to be compared: {made['verdict']}, {again}")
    if answer["equal"]:
        out.say(f"nothing differs between {before} and {after}", "bold")
    for name, one in answer["resources"].items():
        _resource(out, name, one, listed=not stat)
    _page(out, answer, listed=not stat)
    for line in _picture_lines(answer.get("pictures")):
        out.say(line)
    raise typer.Exit(EXIT_OK if answer["equal"] else EXIT_NOT_AS_IT_SHOULD_BE)


# --- what is held ---------------------------------------------------------------------------------------------------


def _resource(out: Out, name: str, one: Mapping[str, Any], *, listed: bool) -> None:
    if one["total"]:
        more = "" if one["counted_all"] else "more than "
        out.say(f"{name} ({one['adapter']}): {more}{counted(one['total'], 'change')}", "bold")
        for group, counts in one["counts"].items():
            parts = [f"{counts[kind]} {kind}" for kind in _SIGNS if counts[kind]]
            if group or not listed:
                out.say(f"  {group or 'all'}: {', '.join(parts)}")
        for change in one["changes"] if listed else ():
            out.say(f"    {change_line(change)}")
        if listed and one["left_out"]:
            out.say(f"    … {one['left_out']} more: --limit shows them")
    if one["cache"]:
        out.say(f"{name} ({one['adapter']}): {_cache(one)}")


def _cache(one: Mapping[str, Any]) -> str:
    if one["cache"] == "stale":
        return f"stale: what it is made from differs ({', '.join(one['stale_by'])})"
    return "not stale: what it is made from is equal"


def change_line(change: Mapping[str, Any]) -> str:
    """One change in a line: its sign, its name, and what it was and is."""
    kind, was, now = change["kind"], change["before"], change["after"]
    text = f"{_SIGNS[kind]} {change['name']}"
    if kind == "changed" and _is_secret(was) and _is_secret(now):
        return f"{text}  {_SECRET_CHANGED}"
    if kind == "changed" and isinstance(was, dict) and isinstance(now, dict):
        return f"{text}  {', '.join(_moved(was, now))}"
    if kind == "changed":
        return f"{text}  {value_text(was)} → {value_text(now)}"
    return f"{text}  {value_text(now if kind == 'added' else was)}"


def _moved(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in [*was, *(key for key in now if key not in was)]:
        old, new = was.get(key, _ABSENT), now.get(key, _ABSENT)
        if old == new:
            continue
        if _is_secret(old) and _is_secret(new):
            yield f"{key}: {_SECRET_CHANGED}"
        else:
            was_text, now_text = (_time_text(one) if key == "expires" else value_text(one) for one in (old, new))
            yield f"{key}: {was_text} → {now_text}"


def _is_secret(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("(secret")


def _time_text(value: Any) -> str:
    """When a cookie expires: seconds since the epoch, -1 with its session."""
    if not isinstance(value, int | float):
        return value_text(value)
    return "with the session" if value < 0 else f"{moment_text(value)} UTC"


def value_text(value: Any) -> str:
    """A value in a line."""
    if value is _ABSENT:
        return "(none)"
    if isinstance(value, dict):
        text = ", ".join(f"{key}={_json(one)}" for key, one in value.items())
        return text if len(text) <= 2 * VALUE_CHARS_MAX else f"{text[: 2 * VALUE_CHARS_MAX]}…"
    text = _json(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def _json(value: Any) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return short(value)
    return json.dumps(value, ensure_ascii=False, default=str)


# --- what was seen --------------------------------------------------------------------------------------------------


def _page(out: Out, answer: Mapping[str, Any], *, listed: bool) -> None:
    page = answer["page"]
    unseen = [answer[side] for side in ("before", "after") if page[side] is None]
    if unseen:
        sight = page["after"] or page["before"]
        if len(unseen) == 1 and (sight["url"] or sight["title"]):  # else the world has no pages
            out.say(f"page: not compared, as nothing was seen at {unseen[0]} (--look makes a child of it and looks)")
        return
    if page["equal"]:
        return
    lines = f", {counted(page['tree_added'], 'line')} added and {page['tree_removed']} removed" if page["tree"] else ""
    what = [change["name"] for change in page["changes"]]
    what += ["content"] * bool(page["tree"]) + ["screenshot"] * page["pictures"]
    out.say(f"page: {', '.join(what)} differ{'s' if len(what) < 2 else ''}{lines}", "bold")
    if listed:
        for change in page["changes"]:
            out.say(f"    {change_line(change)}")
        if page["tree"]:
            out.say(page["tree"])


def _picture_lines(told: Mapping[str, Any] | None) -> Iterator[str]:
    if told is None:
        return
    if told["difference"]:
        yield f"{counted(told['regions'], 'region')} framed in {told['difference']}"
    for side in ("before", "after"):
        if told[side]:
            yield f"{side}: {told[side]}"
    if not (told["before"] or told["after"]):
        yield "no screenshot was taken at these moments"


def _draw(state: Path, page: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write what there is of the screenshots; the paths, and how many regions differ."""
    from statefork.adapters.interfaces.pictures import drawn

    told: dict[str, Any] = {"before": "", "after": "", "difference": "", "regions": 0}
    seen = {side: page[side]["screenshot"] for side in ("before", "after") if page[side] and page[side]["screenshot"]}

    async def read() -> dict[str, bytes]:
        async with view(state) as opened:
            return {side: opened.blobs.get(digest) for side, digest in seen.items()}

    data = run(read) if seen else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for side, png in data.items():
            told[side] = str(folder / f"{side}.png")
            (folder / f"{side}.png").write_bytes(png)
        if len(data) == 2:
            made = drawn(data["before"], data["after"])
            told["regions"] = len(made.regions)
            if made.regions:
                told["difference"] = str(folder / "difference.png")
                (folder / "difference.png").write_bytes(made.png)
    except OSError as error:
        raise UsageError(f"pictures can't be written to {folder}: {error.strerror}") from error
    return told
