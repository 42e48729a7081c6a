"""What an executor is told, and how it gives inputs again. It has nothing that could hold a recorded observation."""

from __future__ import annotations

import typing
from collections.abc import Mapping

import httpx
import msgspec
import pytest

from statefork.journal.blobs import MemoryBlobs
from statefork.journal.values import Binding, Conditions, Identity, Observation
from statefork.replay.lineage import Act, Given, Witnessed
from statefork.replay.script import Do, Executor, Give, Played, Script, Skip
from statefork.replay.stage import EngineStage, script_of

pytestmark = pytest.mark.anyio


class Doors:
    """As much of a kernel as giving an input needs: where the environment's sites are."""

    def __init__(self, **sites: str) -> None:
        self.sites = sites
        self.activated: list[str] = []
        self.conditioning = self
        self.given: list[tuple[str, Conditions | None]] = []

    def give(self, env: str, conditions: Conditions | None) -> None:
        self.given.append((env, conditions))

    async def activate(self, env: str) -> None:
        self.activated.append(env)

    def bindings(self, env: str) -> Mapping[str, Binding]:
        identity = Identity(env=env, epoch=1, activation=1)
        return {
            name: Binding(
                journal="j",
                resource=name,
                adapter="web",
                branch="b",
                identity=identity,
                address={"host": f"{name}.example", "base_url": url},
            )
            for name, url in self.sites.items()
        }


def stage(doors: Doors, received: list[httpx.Request], status: int = 201) -> EngineStage:
    """A stage whose sites record what they are sent."""

    def answer(request: httpx.Request) -> httpx.Response:
        received.append(request)
        return httpx.Response(status)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return EngineStage(doors, "child", client)  # type: ignore[arg-type]  # only the doors are used here


def test_a_script_is_made_of_actions_and_inputs_and_never_of_what_was_seen() -> None:
    reached = {Script, Do, Give, Skip}
    for kind in reached:
        hints = typing.get_type_hints(kind)
        assert not any(Observation in typing.get_args(hint) or hint is Observation for hint in hints.values())
    recorded = set(Witnessed.__struct_fields__)
    assert not recorded & {field for kind in (Do, Give, Skip) for field in kind.__struct_fields__}


def test_bodies_are_fetched_before_the_executor_begins() -> None:
    blobs = MemoryBlobs()
    steps = (
        Act(number=1, action={"type": "goto", "url": "http://shop.example/"}),
        Given(after=1, method="POST", url="http://shop.example/poll", body=blobs.put(b"tea=1")),
        Given(after=1, method="POST", url="http://shop.example/lost", body="0" * 64),
        Act(number=2, action={"type": "opaque"}),
    )
    first, second, third, fourth = script_of(steps, blobs).cues
    assert isinstance(first, Do)
    assert isinstance(second, Give)
    assert second.body == b"tea=1"
    assert isinstance(third, Skip)
    assert "lost" in third.why
    assert isinstance(fourth, Skip)


async def test_an_input_is_given_through_the_private_door_as_it_came() -> None:
    received: list[httpx.Request] = []
    doors = Doors(shop="http://127.0.0.1:5000")
    give = Give(
        after=1,
        method="POST",
        url="http://shop.example/basket?add=tea",
        headers={"content-type": "text/plain", "Connection": "close", "Host": "shop.example", "Content-Length": "99"},
        body=b"tea",
        conditions=Conditions(seed="ab", now=5.0),
    )
    played = await stage(doors, received).give(give)
    assert (played.outcome, played.status) == ("ok", 201)
    (request,) = received
    assert str(request.url) == "http://127.0.0.1:5000/basket?add=tea"
    assert (request.method, request.content, request.headers["content-type"]) == ("POST", b"tea", "text/plain")
    assert request.headers["content-length"] == "3"
    assert request.headers["host"] == "127.0.0.1:5000"
    assert doors.activated == ["child"]
    assert doors.conditioning.given == [("child", give.conditions)]


async def test_an_input_for_a_host_without_a_door_is_skipped() -> None:
    received: list[httpx.Request] = []
    give = Give(after=0, method="POST", url="http://elsewhere.example/", headers={})
    played = await stage(Doors(shop="http://127.0.0.1:5000"), received).give(give)
    assert played.outcome == "skipped"
    assert not received


async def test_an_executor_goes_on_only_when_it_is_told_to() -> None:
    class Note:
        done: typing.ClassVar[list[object]] = []

        async def act(self, action: Mapping[str, object], conditions: object = None) -> Played:
            self.done.append(action)
            return Played(outcome="ok")

        async def give(self, cue: Give) -> Played:
            raise AssertionError(cue)

    script = Script(cues=(Do(number=1, action={"type": "back"}), Skip(name="page", why="raw")))
    executor = Executor(script, Note())
    assert Note.done == []
    assert await executor.step() == Played(outcome="ok")
    skipped = await executor.step()
    assert skipped is not None
    assert msgspec.to_builtins(skipped)["outcome"] == "skipped"
    assert await executor.step() is None
    assert Note.done == [{"type": "back"}]
