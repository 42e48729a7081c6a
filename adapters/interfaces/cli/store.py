"""``statefork store``: a file system with reflinks in a file, for state directories on a disk that has none."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import EXIT_NOT_AS_IT_SHOULD_BE
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.store.growth import GROWTH_BYTES_MIN
from statefork.adapters.interfaces.store.looking import Status, look
from statefork.adapters.interfaces.store.sizes import parse_size, show_size

HELP = """A store: a file system with reflinks in a file of the state directory, for disks that have none (ext4).

With reflinks a branch of a database of any size takes milliseconds, and no room until it is written. Needs root.
"""
INIT_EXAMPLES = """
    statefork store init --state /var/lib/shop             once; `statefork up` mounts it from then on
    statefork store init --size 40G --max 200G
    statefork store init --fs btrfs --sparse               takes room on the disk only as it is written
    statefork store init --migrate                         with the resources that are there already
"""
STATUS_EXAMPLES = """
    statefork store status
    statefork store status --json | jq .free_bytes
"""
RESIZE_EXAMPLES = """
    statefork store resize 64G                             also while an engine runs
    statefork store resize --max 200G                      only how far it may grow by itself
"""
GC_EXAMPLES = """
    statefork gc && statefork store gc                     versions first, then the blocks they took
"""
MOUNT_EXAMPLES = """
    statefork store mount && statefork audit --world; statefork release
"""

Kind = Literal["xfs", "btrfs"]
LimitOption = Annotated[
    str | None,
    typer.Option(
        "--max",
        metavar="SIZE",
        help="How far it may grow by itself (0: as far as the disk below keeps a gibibyte free).",
        show_default=False,
    ),
]


def init(
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="How large it is at first, like 40G.",
            show_default="8G, or a quarter of what is free; with --sparse all that is free",
        ),
    ] = None,
    limit: LimitOption = None,
    kind: Annotated[Kind, typer.Option("--fs", help="Its file system.")] = "xfs",
    sparse: Annotated[
        bool,
        typer.Option(
            "--sparse",
            help="Take room on the disk below only as it is written. Each seal then waits for that disk, since it may "
            "be full when the kernel writes.",
        ),
    ] = False,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Copy the resources that are there already into it: whole, or not at all.")
    ] = False,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make a store for a state directory: XFS (or btrfs) with reflinks, in a file, mounted whenever an engine runs.

    Databases and file trees of all environments lie in it; the journal and the blobs lie beside it. Its blocks are set
    aside on the disk at once, and more of them as it grows by itself, so that it never finds that disk full.
    Needs root, and xfsprogs (or btrfs-progs). Without a store everything works by copying: `statefork doctor` says
    what that costs.

    Exit status: 0 made, 1 no room (nothing was changed), 2 it can't be made here, or there is one already.
    """
    from statefork.adapters.interfaces.store.making import Wish
    from statefork.adapters.interfaces.store.making import init as make

    out = Out(as_json=as_json)
    wish = Wish(kind=kind, size_bytes=_bytes(size), limit_bytes=_bytes(limit), sparse=sparse, migrate=migrate)
    with out.progress("making a store") as bar:
        make(state, wish, bar.tell)
    status = look(state)
    out.data(msgspec.to_builtins(status))
    room = "its blocks are taken as they are written" if sparse else "its blocks are set aside"
    out.say(f"made {status.image}: {status.kind}, {show_size(status.size_bytes)}; {room}")
    out.say(f"It is mounted whenever an engine runs: statefork up … --state {state}")


def status(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Say what the store is, how full, and whether it is as it should be. Changes nothing, and needs no root.

    Exit status: 0 as it should be (also where there is none), 1 not so: it says what to do.
    """
    out = Out(as_json=as_json)
    found = look(state)
    out.data(msgspec.to_builtins(found))
    for line in _lines(found):
        out.say(line)
    for problem in found.problems:
        out.say(f"problem: {problem}", "bold red")
    if found.problems:
        raise typer.Exit(EXIT_NOT_AS_IT_SHOULD_BE)


def _lines(found: Status) -> list[str]:
    if not found.store:
        return [
            f"{found.state} has no store: databases and files lie on its own disk",
            "`statefork doctor` says whether that has reflinks, and what it costs if it has none",
        ]
    limit = show_size(found.limit_bytes) if found.limit_bytes else "what the disk below has, but a gibibyte"
    at_limit = found.limit_bytes and found.limit_bytes - found.size_bytes < GROWTH_BYTES_MIN
    grows = f"at its limit of {limit}" if at_limit else f"grows by itself to {limit}"
    free = "unknown while it is not mounted" if found.free_bytes is None else show_size(found.free_bytes)
    where = f"mounted by {', '.join(found.devices)}" if found.mounted else "not mounted"
    return [
        f"{found.image}: {found.kind}, {'sparse, ' if found.sparse else ''}{where}",
        f"size {show_size(found.size_bytes)}, free {free}, {grows}",
        f"on the disk {show_size(found.disk_bytes)}, {show_size(found.disk_free_bytes)} are free there",
        *found.notes,
    ]


def resize(
    size: Annotated[
        str, typer.Argument(metavar="[SIZE]", help="Its new size, like 64G: larger than before.", show_default=False)
    ] = "",
    limit: LimitOption = None,
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Make the store larger, also while an engine runs; or set how far it may grow by itself. It never shrinks.

    Exit status: 0 done, 1 no room on the disk (nothing was changed), 2 it can't be done, or SIZE is not larger.
    """
    from statefork.adapters.interfaces.store.keeping import resize as grow

    if not size and limit is None:
        raise typer.BadParameter("give a SIZE, or --max")
    out = Out(as_json=as_json)
    with out.progress("growing the store") as bar:
        done = grow(state, _bytes(size) if size else None, None if limit is None else _bytes(limit), bar.tell)
    out.data(msgspec.to_builtins(done))
    grows = f"; it grows by itself to {show_size(done.limit_bytes)}" if done.limit_bytes else ""
    out.say(f"{show_size(done.before_bytes)} before, {show_size(done.size_bytes)} now{grows}")


def gc(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Remove what a killed `store init` or engine left, and give free blocks of a sparse store back to the disk.

    What no generation reaches is removed by `statefork gc`, or by opening; this is about the store itself.
    """
    from statefork.adapters.interfaces.store.keeping import collect

    out = Out(as_json=as_json)
    with out.progress("tidying the store") as bar:
        done = collect(state, bar.tell)
    out.data(msgspec.to_builtins(done))
    if done.unfinished:
        out.say("removed a store that was not finished")
    if done.unmounted:
        out.say("unmounted it: a killed engine had left it")
    if done.given_back_bytes:
        out.say(f"{show_size(done.given_back_bytes)} given back to the disk")
    if not (done.unfinished or done.unmounted or done.given_back_bytes):
        out.say("nothing to do")


def mount(state: StateOption = STATE, as_json: JsonOption = False) -> None:
    """Mount the store without an engine, and leave it so: to look into it, or for an engine that does not run as root.

    `statefork release` unmounts it.
    """
    from statefork.adapters.interfaces.store.keeping import mount_by_hand

    out = Out(as_json=as_json)
    place = mount_by_hand(state)
    out.data({"mounted": str(place)})
    out.say(f"mounted at {place}; `statefork release` unmounts it")


def _bytes(text: str | None) -> int:
    try:
        return parse_size(text) if text else 0
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
