"""What Prometheus is told: the engine's state when it asks, and what was counted since this interface began."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statefork.adapters.interfaces.http.asking import CLIENT_GONE
from statefork.adapters.interfaces.http.events import Streams
from statefork.adapters.interfaces.python import Engine
from statefork.engine.capsule import Phase
from statefork.journal.events import ActionEnded, GenerationPublished, RequestRefused, TransitionAborted
from statefork.journal.log import Recorded

_OTHER = "(other)"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics:
    """The figures of one interface."""

    def __init__(self, engine: Engine, streams: Streams) -> None:
        self._engine = engine
        self._registry = registry = CollectorRegistry()
        self._registry.register(_State(engine, streams))
        self.asked = Counter(
            "statefork_http_requests", "Requests that were answered.", ("method", "route", "status"), registry=registry
        )
        self.took = Histogram(
            *("statefork_http_request_seconds", "From a request's head to the end of its answer.", ("method", "route")),
            registry=registry,
            buckets=_SECONDS,
        )
        self._events = Counter("statefork_events", "Events that were journaled.", ("type",), registry=registry)
        self._actions = Counter("statefork_actions", "Actions that ended.", ("outcome",), registry=registry)
        self._action_s = Histogram(
            "statefork_action_seconds", "How long actions took.", registry=registry, buckets=_SECONDS
        )
        self._published = Counter("statefork_generations", "Published generations.", ("operation",), registry=registry)
        self._aborted = Counter(
            "statefork_aborts", "Transitions that were given up.", ("operation",), registry=registry
        )
        self._parts_s = Summary(
            *("statefork_transition_seconds", "How long the parts of transitions took.", ("operation", "part")),
            registry=registry,
        )
        self._refused = Counter(
            "statefork_refused_requests", "Requests that the gateway refused.", ("code",), registry=registry
        )

    def count(self, recorded: Recorded) -> None:
        """Take in one journaled event."""
        event = recorded.event
        self._events.labels(str(event.__struct_config__.tag)).inc()
        match event:
            case ActionEnded():
                self._actions.labels(event.outcome).inc()
                self._action_s.observe(event.elapsed_ms / 1000)
            case GenerationPublished():
                self._published.labels(event.op).inc()
                for part, ms in event.timings_ms.items():
                    self._parts_s.labels(event.op, part).observe(ms / 1000)
            case TransitionAborted():
                self._aborted.labels(event.op).inc()
            case RequestRefused():
                self._refused.labels(event.code).inc()
            case _:
                pass

    async def endpoint(self, request: Request) -> Response:
        """All of it, as text."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class _State(Collector):
    """Read when it is asked for."""

    def __init__(self, engine: Engine, streams: Streams) -> None:
        self._engine = engine
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        phases = Tally(capsule.phase for capsule in self._engine.capsules.values())
        environments = GaugeMetricFamily("statefork_environments", "Environments by phase.", labels=("phase",))
        for phase in Phase:
            environments.add_metric((phase.value,), phases[phase])
        yield environments
        slots = self._engine.kernel.slots
        yield GaugeMetricFamily("statefork_slots", "Slots that there are; 0: no limit.", value=slots.limit)
        yield GaugeMetricFamily("statefork_slots_taken", "Slots that are taken.", value=len(tuple(slots.taken)))
        yield GaugeMetricFamily("statefork_slot_queue", "Who waits for a slot.", value=len(tuple(slots.queue)))
        yield GaugeMetricFamily(
            "statefork_event_clients", "Clients that listen to events.", value=self._streams.listening
        )


class Measured:
    """Counts what is asked of the application behind it, and how long that took."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: list[BaseRoute]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = CLIENT_GONE, time.perf_counter()

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, tell)
        finally:
            method, route = self._named(scope)
            self._metrics.asked.labels(method, route, str(status)).inc()
            self._metrics.took.labels(method, route).observe(time.perf_counter() - began)

    def _named(self, scope: Scope) -> tuple[str, str]:
        """The method and the route's path, never what a client made up: figures are kept for each."""
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return scope["method"], str(getattr(route, "path", _OTHER))
        return _OTHER, _OTHER
