"""``audit --world``: all that lies in a state directory is what the journal says, or is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from statefork.replay.audit import Report
from statefork.replay.auditing import audit
from tests.unit.replay.true_state import edit, engine

IDENTITY = base64.urlsafe_b64encode(b'["a",3,2]').rstrip(b"=").decode()
TICKET = f"1.{IDENTITY}.{'A' * 43}"


def told(report: Report) -> list[str]:
    """Every finding, with its rule."""
    return [f"{finding.invariant}: {finding.sentence}" for finding in report.findings]


def crash(state: Path) -> None:
    """The last engine did not stop in good order: its last word is taken back."""
    edit(state, "delete from events where position = (select max(position) from events)")
    edit(
        state,
        "update streams set (version, hash) = (select version, hash from events where stream = 'engine' "
        "order by version desc limit 1) where stream = 'engine'",
    )


def test_a_sound_state_directory_is_clean(state: Path) -> None:
    report = audit(state, world=True)
    assert report.clean, list(report.lines())
    looked = {(checked.invariant, checked.rule): checked.looked_at for checked in report.checked}
    assert looked["I6", "sealed bytes are what was sealed"] >= 8
    assert looked["I11", "whatever is in the world is reached by the journal"] >= 8
    assert report.notes == ("versions of page are not on disk: nothing was compared",)


# --- sealed bytes -----------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    """One bit."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_a_page(state: Path) -> str:
    path = max(state.glob("resources/db/layers/a-e1-*/db.sqlite3"))
    flip(path, 4096 + 4000)
    return f"was changed: {path.relative_to(state)} is not what was sealed"


def flip_the_base(state: Path) -> str:
    (path,) = state.glob("resources/media/layers/base-*/tree/logo.svg")
    flip(path, 2)
    return f"was changed: {path.relative_to(state)} is not what was sealed"


def flip_an_index(state: Path) -> str:
    path = min(state.glob("resources/media/layers/a-e1-*/index"))
    flip(path, 20)
    return f"was changed: {path.relative_to(state)} is not what was sealed"


def lose_a_file(state: Path) -> str:
    path = min(state.glob("resources/media/layers/a-e1-*/tree/*.txt"))
    path.unlink()
    return f"lacks {path.relative_to(state)}"


def add_a_file(state: Path) -> str:
    path = min(state.glob("resources/media/layers/a-e1-*/tree")) / "new.txt"
    path.write_text("new")
    return f"has got {path.relative_to(state)}, which was not sealed with it"


def change_a_record(state: Path) -> str:
    path = min(state.glob("resources/db/sealed/a-e1-*.json"))
    record = json.loads(path.read_bytes())
    record["handle"]["adapter"] = "files"
    path.write_text(json.dumps(record))
    return "is on record as something else than in the journal"


@pytest.mark.parametrize(
    "damage", [flip_a_page, flip_the_base, flip_an_index, lose_a_file, add_a_file, change_a_record]
)
def test_damage_to_what_was_sealed_is_named(state: Path, damage: Callable[[Path], str]) -> None:
    words = damage(state)
    (finding,) = audit(state, world=True).findings
    assert finding.invariant == "I6"
    assert words in finding.sentence
    assert "version" in finding.sentence
    assert "needs (position" in finding.sentence, "component, generation and place are told"


def test_a_link_that_leads_elsewhere_is_found(state: Path) -> None:
    tree = min(state.glob("resources/media/layers/a-e1-*/tree"))
    sums = tree.parent / "sums.json"
    known = json.loads(sums.read_bytes())
    (tree / "link").symlink_to("0.txt")
    known["tree/link"] = "link " + hashlib.sha256(b"0.txt").hexdigest()
    sums.write_text(json.dumps(known))
    assert audit(state, world=True).clean
    (tree / "link").unlink()
    (tree / "link").symlink_to("1.txt")
    assert "tree/link is not what was sealed" in told(audit(state, world=True))[0]


def test_layers_without_sums_are_told_and_not_judged(state: Path) -> None:
    path = max(state.glob("resources/db/layers/a-e1-*/db.sqlite3"))
    (path.parent / "sums.json").unlink()
    flip(path, 5000)
    report = audit(state, world=True)
    assert report.clean, told(report)
    assert "1 sealed layers have no sums (or not yet): their bytes were not compared" in report.notes


def test_versions_on_a_database_server_are_told_and_not_counted_as_summed(state: Path) -> None:
    looked_at = {checked.rule: checked.looked_at for checked in audit(state, world=True).checked}
    layers = sorted(state.glob("resources/db/layers/a-e1-*"))
    for layer in layers:
        (layer / "db.sqlite3").unlink()
        (layer / "database").write_text("sf_0123_v4567\n")
        digest = hashlib.sha256(b"sf_0123_v4567\n").hexdigest()
        (layer / "sums.json").write_text(json.dumps({"database": digest}))
    report = audit(state, world=True)
    assert f"{len(layers)} versions of db on a database server: that they are on record was looked at" in " ".join(
        report.notes
    )
    looked = {checked.rule: checked.looked_at for checked in report.checked}
    rule = "sealed bytes are what was sealed"
    assert looked[rule] == looked_at[rule] - len(layers)
    (layers[0] / "database").write_text("sf_0123_v7654\n")
    assert "was changed" in told(audit(state, world=True))[-1]


def test_without_world_nobody_reads_what_was_sealed(state: Path) -> None:
    flip_a_page(state)
    assert audit(state).clean


@pytest.mark.parametrize(
    "damage", [lambda data: data.replace(b"basket", b"baskeT"), lambda data: data[:-9], bytes.upper]
)
def test_a_profile_is_named_by_its_content(state: Path, damage: Callable[[bytes], bytes]) -> None:
    profile = b'{"format":1,"cookies":[{"name":"basket","value":"7"}]}'
    data = b'{"profile":' + profile + b',"witnesses":["w"]}'
    version = f"{hashlib.sha256(profile).hexdigest()[:32]}-00aa"
    place = f"resources/page/{version}.json"
    (state / "resources" / "page").mkdir()
    (state / place).write_bytes(data)
    as_if_sealed(state, version, place)
    assert "I6" not in " ".join(told(audit(state, world=True)))
    (state / place).write_bytes(damage(data))
    assert f"was changed: {place} is not what was sealed" in " ".join(told(audit(state, world=True)))


def as_if_sealed(state: Path, version: str, place: str) -> None:
    """The page's version in the last generation of a lies in a file. (That the chain is broken by this is expected.)"""
    edit(
        state,
        "update events set event = json_set(event, '$.manifest.page.sealed.version', ?, "
        "'$.manifest.page.sealed.data', json(?)) "
        "where position = (select max(position) from events where json_extract(event, '$.op') = 'restore' "
        "and json_extract(event, '$.type') = 'generation.published/1')",
        version,
        json.dumps({"path": place}),
    )


# --- orphans ----------------------------------------------------------------------------------------------------------


def stray_version(state: Path) -> str:
    path = min(state.glob("resources/db/sealed/a-e1-*.json"))
    record = json.loads(path.read_bytes())
    record["handle"]["version"] = "stray"
    (path.parent / "stray.json").write_text(json.dumps(record))
    return "version stray of db is in no generation"


def stray_branch(state: Path) -> str:
    sealed = json.loads(min(state.glob("resources/db/sealed/a-e1-*.json")).read_bytes())
    handle = {"id": "a-e9-x", "env": "a", "epoch": 9, "journal": sealed["handle"]["journal"], "data": {}}
    record = {"handle": handle, "over": sealed["handle"], "layers": sealed["layers"], "upper": ""}
    (state / "resources/db/branches/a-e9-x.json").write_text(json.dumps(record))
    return "branch a-e9-x of db (of a, epoch 9) is open, and no engine runs"


def stray_layer(state: Path) -> str:
    (state / "resources/media/layers/lost").mkdir()
    return "layer lost of media belongs to no version and no branch"


def stray_resource(state: Path) -> str:
    (state / "resources/cache").mkdir()
    return "resources/cache is of a resource that no contract knows"


def stray_profile(state: Path) -> str:
    journal = json.loads(min(state.glob("resources/db/sealed/*.json")).read_bytes())["handle"]["journal"]
    (state / "resources" / "page" / journal).mkdir(parents=True)
    (state / "resources" / "page" / journal / "abc.json").write_text("{}")
    return "version abc of page is in no generation"


STRAYS = [stray_version, stray_branch, stray_layer, stray_resource, stray_profile]


@pytest.mark.parametrize("stray", STRAYS)
def test_an_orphan_is_named(state: Path, stray: Callable[[Path], str]) -> None:
    words = stray(state)
    assert told(audit(state, world=True)) == [f"I11: {words}"]


@pytest.mark.parametrize("stray", STRAYS)
def test_after_a_crash_orphans_are_no_violation(state: Path, stray: Callable[[Path], str]) -> None:
    crash(state)
    words = stray(state)
    report = audit(state, world=True)
    assert report.clean, told(report)
    assert f"{words}; the next opening collects it" in report.notes


def test_many_orphans_are_counted(state: Path) -> None:
    crash(state)
    for number in range(30):
        (state / f"resources/media/layers/lost-{number}").mkdir()
    assert "and 10 more that the journal does not reach; the next opening collects it" in audit(state, world=True).notes


def test_what_another_journal_left_is_left_alone(state: Path) -> None:
    for name in ("sealed", "branches"):
        record = {"handle": {"journal": "other", "env": "x", "epoch": 1}, "layers": [], "upper": ""}
        (state / f"resources/db/{name}/theirs.json").write_text(json.dumps(record))
    assert audit(state, world=True).clean


def test_a_runtime_that_outlives_its_engine_is_named(state: Path) -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    (state / "runtimes").mkdir()
    record = state / "runtimes" / "web.json"
    record.write_text(json.dumps({"name": "web", "pid": os.getpid(), "started_ticks": ticks, "journal": "j"}))
    assert told(audit(state, world=True)) == [
        f"I11: process {os.getpid()} of the runtime web is alive, and no engine runs"
    ]
    record.write_text(json.dumps({"name": "web", "pid": os.getpid(), "started_ticks": ticks + 1, "journal": "j"}))
    assert audit(state, world=True).clean, "another process has that number now"
    record.write_text("{}")
    assert audit(state, world=True).exit_code == 2


# --- doors and tickets ------------------------------------------------------------------------------------------------


def test_a_door_for_everybody_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(state)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("control.sock")
        Path("control.sock").chmod(0o666)
        assert told(audit(state, world=True)) == [
            "I12: control.sock is open to other users (mode 0666): whoever may enter commands every environment"
        ]
        Path("control.sock").chmod(0o600)
        assert audit(state, world=True).clean


def test_a_ticket_in_a_log_is_named(state: Path) -> None:
    (state / "logs").mkdir(exist_ok=True)
    log = state / "logs" / "web.log"
    log.write_bytes(b"x" * ((1 << 20) - 30) + f"GET / {TICKET} {TICKET}\n".encode())
    assert told(audit(state, world=True)) == ["I12: a ticket of a (epoch 3, activation 2) stands in logs/web.log"]
    log.write_text(f"1.{IDENTITY}.tooshort 1.bm90LWpzb24tYXQtYWxs.{'B' * 43} 1.5.2")
    assert audit(state, world=True).clean


# --- beside a running engine ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_beside_a_running_engine(state: Path) -> None:
    async with engine(state) as kernel:
        await kernel.create("z")
        report = await anyio.to_thread.run_sync(lambda: audit(state, world=True))
        assert report.clean, told(report)
        stray_version(state)
        branch = state / "resources" / "db" / "branches" / f"{kernel.branches('z')['db'].id}.json"
        shutil.copy(branch, state / "copy")
        report = await anyio.to_thread.run_sync(lambda: audit(state, world=True))
        assert report.clean
        assert (
            "version stray of db is in no generation; an engine runs and may be staging or closing it" in report.notes
        )
        branch.unlink()
        report = await anyio.to_thread.run_sync(lambda: audit(state, world=True))
        assert told(report) == ["I11: z is bound (activation 1), and has no branch of db"]
        shutil.move(state / "copy", branch)
        (state / "resources/db/sealed/stray.json").unlink()
    assert audit(state, world=True).clean
