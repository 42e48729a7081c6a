"""The engine over HTTP, as programs use it: every verb, its document, its errors, keys, files and events."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from statefork.adapters.interfaces.control.verbs import VERBS
from statefork.adapters.interfaces.http.answers import ANSWERS, Audited, Environments, Log
from statefork.adapters.interfaces.http.routes import EXPORT, IMPORT, ROUTES
from statefork.engine.errors import (
    ActionFailed,
    EnvironmentExists,
    InvalidAction,
    KeyReused,
    PartialFailure,
    UnknownEnvironment,
    UnknownRef,
)
from statefork.journal.errors import BlobMissing, StateforkError
from statefork.journal.events import ActionEnded
from statefork.replay.export.errors import ExportUnreadable
from tests.integration.http_kit import PATIENCE_S, PUT, TOKEN, Running, serving, until
from tests.integration.venv_kit import venv_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """It is served on trio."""
    return "trio"


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One for the module: tests use environments of their own."""
    async with serving(tmp_path_factory.mktemp("http")) as running:
        yield running


def test_every_verb_has_an_address() -> None:
    reached = {route.verb_name for route in (*ROUTES, EXPORT, IMPORT)}
    assert reached == set(VERBS)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


async def test_the_life_of_an_environment(running: Running, tmp_path: Path) -> None:
    async with running.client() as engine:
        assert (await engine.create("life"))["ref"] == "life@1"
        assert (await engine.act("life", PUT))["value"] == "tea"
        assert (await engine.observe("life"))["value"] == {"greeting": "hello", "basket": "tea"}
        assert (await engine.snapshot("life")) == {"ref": "life@2", "env": "life", "generation": 2}
        children = (await engine.fork("life#1", names=["life-a", "life-b"]))["children"]
        assert [child["ref"] for child in children] == ["life-a@1", "life-b@1"]
        assert (await engine.act("life-a", {"type": "get", "key": "basket"}))["value"] == "tea"
        found = await engine.diff("life@1", "life-b")
        assert not found["equal"]
        assert [change["name"] for change in found["resources"]["page"]["changes"]] == ["basket"]
        assert (await engine.restore("life", "life@1"))["ref"] == "life@3"
        assert (await engine.replay("life-a"))["exact"]
        assert (await engine.moment("life@2"))["operation"] == "snapshot"
        assert (await engine.moment("life-a#1"))["action"] == PUT
        assert (await engine.mark("life@2", "with tea"))["mark"] == "with tea"
        assert (await engine.clone("life@2", "life-c"))["origin"] == "life-c@1"
        assert (await engine.park("life-c"))["ref"] == "life-c@1"
        assert (await engine.describe("life-c"))["phase"] == "parked"
        assert (await engine.activate("life-c"))["phase"] == "serving"
        await engine.export("life@2", tmp_path / "life.statefork")
        assert (await engine.import_(tmp_path / "life.statefork", "life-d"))["env"] == "life-d"
        assert (await engine.act("life-d", {"type": "get", "key": "basket"}))["value"] == "tea"
        assert (await engine.reset("life-d"))["env"] == "life-d"
        await engine.retire("life-d")
        assert "life-d" not in {one["env"] for one in (await engine.environments())["environments"]}
        assert (await engine.audit())["clean"]


async def test_the_client_that_waits_says_the_same(running: Running, tmp_path: Path) -> None:
    def life() -> list[Any]:
        with running.blocking() as engine:
            engine.create("waits")
            done = [engine.act("waits", PUT)["value"], engine.export("waits", tmp_path / "waits.statefork")["ref"]]
            done.append(engine.import_(tmp_path / "waits.statefork", "waits-2")["env"])
            done.append(next(engine.events(env="waits", after=0))["event"]["type"])
            with pytest.raises(BlobMissing):
                engine.blob("0" * 64)
            return done

    assert await anyio.to_thread.run_sync(life) == ["tea", "waits@2", "waits-2", "environment.created/1"]


async def test_what_is_wrong_with_a_file_is_told_by_the_name_that_its_sender_knows(
    running: Running, tmp_path: Path
) -> None:
    path = tmp_path / "broken.statefork"
    path.write_text("no such file")

    def blocking() -> StateforkError:
        with running.blocking() as engine, pytest.raises(ExportUnreadable) as told:
            engine.import_(path)
        return told.value

    async with running.client() as engine:
        with pytest.raises(ExportUnreadable) as told:
            await engine.import_(path)
    for error in (told.value, await anyio.to_thread.run_sync(blocking)):
        assert str(error).startswith(f"{path} can't be imported: ")
        assert error.facts["path"] == str(path)
    async with running.http() as http:
        raw = (await http.post("/v1/imports", content=b"no such file")).json()
    assert raw["facts"]["path"] == "the file that was sent"
    assert "statefork-import-" not in str(raw)


async def test_errors_are_those_of_the_engine(running: Running) -> None:
    async with running.client() as engine:
        await engine.create("errs")
        with pytest.raises(EnvironmentExists):
            await engine.create("errs")
        with pytest.raises(InvalidAction, match="there is no action 'nope'") as told:
            await engine.act("errs", {"type": "nope"})
        assert told.value.facts["field"] == "type"
        assert "There are: put" in told.value.hint
        with pytest.raises(ActionFailed):
            await engine.act("errs", {"type": "fail", "key": "x"})
        with pytest.raises(UnknownEnvironment):
            await engine.snapshot("nobody")
        with pytest.raises(UnknownRef):
            await engine.fork("errs@7")
        with pytest.raises(PartialFailure) as some:
            await engine.ask("create-many", names=["errs", "errs-2"])
        assert some.value.done == ("errs-2",)
        assert isinstance(some.value.failed["errs"], EnvironmentExists)


async def test_a_key_makes_repeating_safe(running: Running) -> None:
    async with running.client() as engine, running.http(**{"Idempotency-Key": "in a header"}) as http:
        await engine.create("keyed", key="made")
        assert (await engine.create("keyed", key="made"))["ref"] == "keyed@1"
        with pytest.raises(KeyReused):
            await engine.create("keyed-2", key="made")
        answers = [await http.post("/v1/environments/keyed/snapshots") for _ in range(2)]
        assert [answer.json()["ref"] for answer in answers] == ["keyed@2", "keyed@2"]
        two_keys = await http.post("/v1/environments/keyed/snapshots", json={"key": "in the body"})
        assert (two_keys.status_code, two_keys.json()["code"]) == (400, "usage")
        acted = await http.post("/v1/environments/keyed/actions", json={"action": PUT})
        assert (acted.status_code, acted.json()["code"]) == (400, "usage")  # a promise that can't be kept is not made


async def test_the_document_is_valid_and_answers_are_as_it_says(running: Running) -> None:
    async with running.http() as http:
        document = (await http.get("/openapi.json")).json()
        validate(document)
        assert {path for route in ROUTES for path in [route.path]} <= set(document["paths"])
        posts = [
            ("/v1/environments", {"name": "doc"}, "create"),
            ("/v1/environments/doc/actions", {"action": PUT}, "act"),
            ("/v1/environments/doc/snapshots", {}, "snapshot"),
            ("/v1/environments/doc/restore", {"ref": "doc@1"}, "restore"),
            ("/v1/environments/doc/prune", {"dry_run": True}, "prune"),
            ("/v1/environments/doc/park", None, "park"),
            ("/v1/environments/doc/activate", None, "activate"),
            ("/v1/environments/doc/reset", {}, "reset"),
            ("/v1/environments/doc/recover", {}, "recover"),
            ("/v1/bulk/environments", {"names": ["doc-2", "doc-3"]}, "create-many"),
            ("/v1/bulk/resets", {"envs": ["doc-2", "doc-3"]}, "reset-many"),
            ("/v1/forks", {"ref": "doc@2"}, "fork"),
            ("/v1/clones", {"ref": "doc@2", "name": "doc-c"}, "clone"),
            ("/v1/replays", {"ref": "doc-f1"}, "replay"),
            ("/v1/replays/none/steps", {}, "step"),
            ("/v1/diffs", {"before": "doc@1", "after": "doc@2"}, "diff"),
            ("/v1/blames", {"ref": "doc@2", "item": "basket"}, "blame"),
            ("/v1/spans", {"good": "doc-f1#0", "bad": "doc-f1#1"}, "between"),
        ]
        for path, body, verb in posts:
            answer = await http.post(path, json=body)
            assert answer.is_success, answer.text
            msgspec.convert(answer.json(), ANSWERS[verb])
        for path, kind in (
            ("/v1/status?cost=true", ANSWERS["status"]),
            ("/v1/environments", Environments),
            ("/v1/environments/doc", ANSWERS["describe"]),
            ("/v1/environments/doc/policies", ANSWERS["keep"]),
            ("/v1/tasks/none", ANSWERS["progress"]),
            ("/v1/log", Log),
        ):
            msgspec.convert((await http.get(path)).json(), kind)
        kept = await http.patch("/v1/environments/doc/policies", json={"snapshots": "every action"})
        assert msgspec.convert(kept.json(), ANSWERS["keep"]) is not None
        marked = await http.put("/v1/marks/doc@2", json={"text": "second"})
        msgspec.convert(marked.json(), ANSWERS["mark"])
        msgspec.convert((await http.post("/v1/audits")).json(), Audited)
        ended = await http.delete("/v1/environments/doc-c?key=bye")
        msgspec.convert(ended.json(), ANSWERS["retire"])


async def test_a_log_is_read_in_pages(running: Running) -> None:
    async with running.client() as engine:
        await engine.create("paged")
        for _ in range(3):
            await engine.act("paged", PUT)
        await running.engine.journal.flush()
        pages, after = [], 0
        while events := (page := await engine.log(env="paged", after=after, limit=4))["events"]:
            pages.append([event["position"] for event in events])
            after = page["next"]
    assert max(map(len, pages)) == 4
    positions = [position for page in pages for position in page]
    assert positions == sorted(set(positions))
    begun = [event async for event in running.engine.journal.read(stream="act/paged")]
    assert {event.position for event in begun} <= set(positions)


async def test_events_go_on_behind_the_last_that_was_seen(running: Running) -> None:
    async def first(count: int, after: int) -> list[dict[str, Any]]:
        found = []
        async with running.client() as engine:
            async for event in engine.events(env="eve", after=after):
                found.append(event)
                if len(found) == count:
                    break
        return found

    with anyio.fail_after(PATIENCE_S):
        async with running.client() as engine:
            await engine.create("eve")
            await engine.act("eve", PUT)
            await until(running.engine, ActionEnded, env="eve")
            seen = await first(3, 0)
            await engine.snapshot("eve")
            seen += await first(5, seen[-1]["position"])
        expected = [one async for one in running.engine.journal.read() if getattr(one.event, "env", "") == "eve"]
    assert [one["position"] for one in seen] == [one.position for one in expected][:8]
    assert [one["hash"] for one in seen] == [one.hash for one in expected][:8]


async def test_events_that_are_yet_to_come_are_told(running: Running) -> None:
    heard: list[str] = []
    async with running.http() as http, running.client() as engine:
        await engine.create("later")
        async with http.stream("GET", "/events", params={"env": "later"}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.aiter_lines()
            assert await anext(lines) == ": listening"
            await engine.snapshot("later")
            with anyio.fail_after(PATIENCE_S):
                while not heard or heard[-1] != "event: generation.published/1":
                    heard.append(await anext(lines))
    assert "event: generation.published/1" in heard


async def test_prometheus_reads_the_figures(running: Running) -> None:
    async with running.http() as http, running.client() as engine:
        before = figures((await http.get("/metrics")).text)
        await engine.create("counted")
        await engine.act("counted", PUT)
        with pytest.raises(ActionFailed):
            await engine.act("counted", {"type": "fail", "key": "x"})
        with anyio.fail_after(PATIENCE_S):
            now = before
            while now[FAILED] <= before.get(FAILED, 0):  # what is journaled is counted a little later
                now = figures((await http.get("/metrics")).text)
                now.setdefault(FAILED, 0)
    serving_now = 'statefork_environments{phase="serving"}'
    assert now[serving_now] == before[serving_now] + 1
    made = 'statefork_generations_total{operation="create"}'
    assert now[made] == before.get(made, 0) + 1
    asked = 'statefork_http_requests_total{method="POST",route="/v1/environments/{env}/actions",status="409"}'
    assert now[asked] == before.get(asked, 0) + 1


FAILED = 'statefork_actions_total{outcome="failed"}'


def figures(text: str) -> dict[str, float]:
    """What Prometheus' own parser makes of it."""
    return {
        sample.name + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items())) + "}": (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_sandbox_is_forked_as_elsewhere(running: Running) -> None:
    async with running.http() as http, running.client() as engine:
        await engine.create("box")
        answer = await http.post("/sandboxes/box/fork", json={"count": 2, "timeout": 0.01})
        assert answer.status_code == 201
        assert [one["sandbox"]["sandboxID"] for one in answer.json()] == ["box-f1", "box-f2"]
        with anyio.fail_after(PATIENCE_S):
            while {"box-f1", "box-f2"} & {one.name for one in running.engine.environments()}:
                await anyio.lowlevel.checkpoint()  # they have had their time; the engine tells nobody

        async def fails_once(call: Any) -> None:
            if call.method == "branch" and call.env == "box-f4":
                raise OSError("no room")

        running.world.hook = fails_once
        try:
            answer = await http.post("/sandboxes/box/fork", json={"count": 2})
        finally:
            running.world.hook = None
        good, bad = answer.json()
        assert good["sandbox"]["sandboxID"] == "box-f3"
        assert (bad["error"]["code"], bad["error"]["error_code"]) == (409, "transition_aborted")
        assert (await http.post("/sandboxes/nobody/fork")).json()["error_code"] == "unknown_environment"
        assert (await http.post("/sandboxes/box/fork", json={"timeout": 0})).json()["error_code"] == "usage"


FORKS = """
import json, sys
from e2b.api.client.api.sandboxes.post_sandboxes_sandbox_id_fork import sync_detailed
from e2b.api.client.client import AuthenticatedClient
from e2b.api.client.models.sandbox_fork_request import SandboxForkRequest

url, token, name = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token)
body = SandboxForkRequest(count=2, timeout=600)
forked = sync_detailed(name, client=client, body=body).parsed
nobody = sync_detailed("nobody", client=client, body=body).parsed
print(json.dumps([[one.sandbox.sandbox_id for one in forked], nobody.code, nobody.error_code]))
"""


async def test_the_sdk_of_e2b_understands_a_fork(running: Running, tmp_path: Path) -> None:
    python = await anyio.to_thread.run_sync(venv_of, Path(__file__).parent / "venvs" / "e2b.txt")
    async with running.client() as engine:
        await engine.create("sdk")
    command = [str(python), "-c", FORKS, running.url, TOKEN, "sdk"]
    done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    assert json.loads(done.stdout) == [["sdk-f1", "sdk-f2"], 404, "unknown_environment"]
