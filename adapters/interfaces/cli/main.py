"""The command line: every verb in one place, and what becomes of errors."""

from __future__ import annotations

import codecs
import inspect
import io
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import typer
from typer.exceptions import TyperException

from statefork.adapters.interfaces.cli import (
    act,
    audit,
    bisect,
    blame,
    carry,
    contract,
    create,
    demo,
    diff,
    doctor,
    forking,
    gc,
    keep,
    log,
    ls,
    mcp,
    release,
    replay,
    rollout,
    show,
    simulate,
    store,
    up,
    webarena,
    world,
)
from statefork.adapters.interfaces.cli import transitions as moving
from statefork.adapters.interfaces.cli.faults import (
    EXIT_CANNOT,
    EXIT_INTERRUPTED,
    InternalError,
    UsageError,
    as_json,
    debugging,
    exit_status,
    one_line,
)
from statefork.adapters.interfaces.cli.output import json_text, printable
from statefork.journal.errors import StateforkError

HELP = """Share the runtime, fork the state: many logical environments on the same browser, servers and databases.

Begin with `statefork doctor`, then `statefork demo`, or:

    statefork up shop                          in one terminal
    statefork create shop-1                    in another
    statefork act shop-1 goto http://shop.example/
    statefork fork shop-1 -n 2

Commands find each other by the state directory: `--state DIR`, or STATEFORK_STATE, else ./state.

Exit status: 0 done, 1 not as it should be, 2 can't be done, 3 outcome unknown. Errors are one line with a stable code
(see docs/reference/errors.md); STATEFORK_DEBUG=1 adds the traceback.
"""


class Verb(NamedTuple):
    """A command: its function, examples for its help, and the group it stands in."""

    run: Callable[..., None]
    examples: str
    panel: str


LOOK, RUN, LIVE, PAST, MAKE = "Look", "Run", "Environments", "The past", "Making statefork"

VERBS: dict[str, Verb] = {
    "doctor": Verb(doctor.doctor, doctor.EXAMPLES, RUN),
    "demo": Verb(demo.demo, "\n    statefork demo\n    statefork demo --envs 16 --json\n", RUN),
    "up": Verb(up.up, up.EXAMPLES, RUN),
    "world ls": Verb(world.ls, world.LS_EXAMPLES, RUN),
    "world build": Verb(world.build, world.BUILD_EXAMPLES, RUN),
    "world up": Verb(world.up, world.UP_EXAMPLES, RUN),
    "world down": Verb(world.down, world.DOWN_EXAMPLES, RUN),
    "webarena env": Verb(webarena.env, webarena.ENV_EXAMPLES, RUN),
    "webarena reset-server": Verb(webarena.reset_server, webarena.RESET_EXAMPLES, RUN),
    "webarena check": Verb(webarena.check, webarena.CHECK_EXAMPLES, RUN),
    "rollout": Verb(rollout.rollout, rollout.EXAMPLES, RUN),
    "contract check": Verb(contract.check, contract.CHECK_EXAMPLES, RUN),
    "contract derive": Verb(contract.derive, contract.DERIVE_EXAMPLES, RUN),
    "contract discover": Verb(contract.discover, contract.DISCOVER_EXAMPLES, RUN),
    "release": Verb(release.release, release.EXAMPLES, RUN),
    "store init": Verb(store.init, store.INIT_EXAMPLES, RUN),
    "store status": Verb(store.status, store.STATUS_EXAMPLES, RUN),
    "store resize": Verb(store.resize, store.RESIZE_EXAMPLES, RUN),
    "store gc": Verb(store.gc, store.GC_EXAMPLES, RUN),
    "store mount": Verb(store.mount, store.MOUNT_EXAMPLES, RUN),
    "ls": Verb(ls.ls, ls.EXAMPLES, LOOK),
    "log": Verb(log.log, log.EXAMPLES, LOOK),
    "show": Verb(show.show, show.EXAMPLES, LOOK),
    "create": Verb(create.create, create.EXAMPLES, LIVE),
    "act": Verb(act.act, act.EXAMPLES, LIVE),
    "snapshot": Verb(moving.snapshot, moving.SNAPSHOT_EXAMPLES, LIVE),
    "fork": Verb(forking.fork, forking.FORK_EXAMPLES, LIVE),
    "clone": Verb(forking.clone, forking.CLONE_EXAMPLES, LIVE),
    "reset": Verb(moving.reset, moving.RESET_EXAMPLES, LIVE),
    "restore": Verb(moving.restore, moving.RESTORE_EXAMPLES, LIVE),
    "recover": Verb(moving.recover, moving.RECOVER_EXAMPLES, LIVE),
    "keep": Verb(keep.keep, keep.KEEP_EXAMPLES, LIVE),
    "park": Verb(moving.park, moving.PARK_EXAMPLES, LIVE),
    "retire": Verb(moving.retire, moving.RETIRE_EXAMPLES, LIVE),
    "replay": Verb(replay.replay, replay.EXAMPLES, PAST),
    "bisect": Verb(bisect.bisect, bisect.EXAMPLES, PAST),
    "diff": Verb(diff.diff, diff.EXAMPLES, PAST),
    "blame": Verb(blame.blame, blame.EXAMPLES, PAST),
    "export": Verb(carry.export, carry.EXPORT_EXAMPLES, PAST),
    "import": Verb(carry.import_, carry.IMPORT_EXAMPLES, PAST),
    "audit": Verb(audit.audit, audit.EXAMPLES, PAST),
    "mark": Verb(keep.mark, keep.MARK_EXAMPLES, PAST),
    "prune": Verb(keep.prune, keep.PRUNE_EXAMPLES, PAST),
    "gc": Verb(gc.gc, gc.EXAMPLES, PAST),
    "mcp agent": Verb(mcp.agent, mcp.AGENT_EXAMPLES, LIVE),
    "mcp operator": Verb(mcp.operator, mcp.OPERATOR_EXAMPLES, LIVE),
    "simulate": Verb(simulate.simulate, simulate.EXAMPLES, MAKE),
}

GROUPS = {
    "contract": contract.HELP,
    "mcp": mcp.HELP,
    "store": store.HELP,
    "webarena": webarena.HELP,
    "world": world.HELP,
}
"""Verbs of two words: what the first is about."""

_FREE_WORDS = {"ignore_unknown_options": True}  # fields of an action look like options


def make_app(verbs: Mapping[str, Verb] = VERBS) -> typer.Typer:
    """The Typer application: with all verbs it is also what completion and the reference page are made from."""
    app = typer.Typer(
        name="statefork",
        help=_dedented(HELP),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    groups = {"": app}
    for name, verb in verbs.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            groups[group] = typer.Typer(help=GROUPS[group], no_args_is_help=True)
            app.add_typer(groups[group], name=group, rich_help_panel=verb.panel)
        settings: dict[str, Any] = _FREE_WORDS if name == "act" else {}
        groups[group].command(
            word, help=help_text(verb), rich_help_panel=verb.panel, context_settings=settings, no_args_is_help=False
        )(verb.run)
    return app


def help_text(verb: Verb) -> str:
    """A verb's help: what it does, then examples."""
    return f"{_dedented(verb.run.__doc__ or '')}\n\nExamples:\n{verb.examples}"


def _dedented(text: str) -> str:
    """A docstring for a terminal of any width: each paragraph is one line, and what is indented stays as it is."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.splitlines()) for one in paragraphs)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"statefork {version('statefork')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


_root.__doc__ = _dedented(HELP)


app = make_app()


@cache
def _command(first: str) -> Any:
    """The command that knows the verbs that begin with a word; all of them where none does.

    To make it of all takes longer than most verbs do.
    """
    wanted = {name: verb for name, verb in VERBS.items() if name.partition(" ")[0] == first}
    return typer.main.get_command(make_app(wanted) if wanted else app)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Ends the process with the status that :mod:`faults` documents."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("as-json", _as_json_spells)
        sys.stdout.reconfigure(errors="as-json")
    sys.exit(invoke(words))


def _as_json_spells(error: UnicodeError) -> tuple[str, int]:
    """What standard output can't show (bytes of a path that are no text, in a strict locale more) in a form that JSON
    allows."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def invoke(words: list[str]) -> int:
    """Run one command line and return its exit status. Never raises."""
    try:
        result = _command(words[0] if words else "")(args=words, prog_name="statefork", standalone_mode=False)
        status = result if isinstance(result, int) else 0
        return _interrupted(words) if status == EXIT_INTERRUPTED else status  # Typer ends a Ctrl-C without a word
    except StateforkError as error:
        return _tell(error, words)
    except TyperException as error:
        if not words or " ".join(words) in GROUPS:
            return EXIT_CANNOT  # the help was printed
        return _tell(UsageError(_message(error), hint=_usage_hint(words)), words)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has what it wanted
        return EXIT_CANNOT
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(words)
    except ExceptionGroup as group:
        return _tell(_first(group, words), words)
    except BaseExceptionGroup as group:  # a second Ctrl-C, in the middle of closing
        if group.subgroup((KeyboardInterrupt, SystemExit)) is None:
            raise
        return _interrupted(words)
    except Exception as error:  # noqa: BLE001 -- the last net: people get a line, not a traceback
        return _tell(_internal(error, words), words)


def _interrupted(words: list[str]) -> int:
    goes_on = words[:1] in (["demo"], ["rollout"])
    print("interrupted; run it again to go on" if goes_on else "interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _message(error: TyperException) -> str:
    told = getattr(error, "format_message", None)
    return str(told()) if told is not None else str(error)


def _usage_hint(words: list[str]) -> str:
    known = {*VERBS, *GROUPS}
    verb = next((found for found in (" ".join(words[:2]), *words) if found in known), "")
    return f"See: statefork {verb + ' ' if verb else ''}--help"


def _first(group: ExceptionGroup[Exception], words: list[str]) -> StateforkError:
    """The error to tell of, of several that ended together: one of ours before others."""
    mine, others = group.split(StateforkError)
    found: BaseException | None = mine if mine is not None else others
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if isinstance(found, StateforkError):
        return found
    assert isinstance(found, Exception)
    return _internal(found, words)


def _internal(error: Exception, words: list[str]) -> StateforkError:
    no_text = next((word for word in words if not word.isascii() and not _is_text(word)), None)
    if isinstance(error, UnicodeEncodeError) and no_text is not None:
        return UsageError(f"{no_text!r} is no text: it has bytes that are not UTF-8", hint=_usage_hint(words))
    internal = InternalError(
        f"{type(error).__name__}: {error}", hint="This is a defect: STATEFORK_DEBUG=1 shows where; please report it"
    )
    internal.__cause__ = error
    return internal


def _is_text(word: str) -> bool:
    return word == word.encode(errors="ignore").decode()


def _tell(error: StateforkError, words: list[str]) -> int:
    if debugging():
        traceback.print_exception(error)
    if "--json" in words:
        print(json_text(as_json(error), indent=2))
    else:
        print(printable(one_line(error)), file=sys.stderr)
    return exit_status(error.code)
