"""The document that describes this interface (OpenAPI 3.1), made from the types that decode and encode it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import msgspec

from statefork.adapters.interfaces.http.answers import ANSWERS, Audited, Environments, Log
from statefork.adapters.interfaces.http.events import EventsAsked
from statefork.adapters.interfaces.http.looking import AuditAsked, LogAsked
from statefork.adapters.interfaces.http.names import IDEMPOTENCY_HEADER, LAST_ID_HEADER
from statefork.adapters.interfaces.http.problems import MEDIA_TYPE, Problem
from statefork.adapters.interfaces.http.routes import EXPORT, IMPORT, ROUTES, Route
from statefork.adapters.interfaces.http.sandboxes import Asked as SandboxForkAsked
from statefork.adapters.interfaces.http.sandboxes import Forked

_JSON = "application/json"
_BYTES = "application/octet-stream"
_ABOUT = {
    "env": "Name of the environment.",
    "ref": "A moment: shop, shop@7, shop@7+3, shop#42 (# is written %23).",
    "task": "A name of the asker's choice.",
    "digest": "SHA-256 of the bytes, in hex.",
    "id": "Name of the environment.",
}

Paths = dict[str, dict[str, Any]]


class Schemas:
    """The schemas of all types that occur, each once."""

    def __init__(self, types: list[type]) -> None:
        found, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        self._of = dict(zip(types, found, strict=True))

    def __getitem__(self, kind: type) -> dict[str, Any]:
        return self._of[kind]


def document() -> dict[str, Any]:
    """The whole document."""
    schemas = Schemas([*_types()])
    paths: Paths = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    _add_files(paths, schemas)
    _add_others(paths, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "statefork",
            "version": version("statefork"),
            "summary": "Environments that are forked, restored, replayed and audited",
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done, or went wrong; `code` says how. See docs/reference/errors.md.",
                    "content": {MEDIA_TYPE: {"schema": schemas[Problem]}},
                }
            },
        },
    }


def _types() -> Iterator[type]:
    yield from {route.others for route in (*ROUTES, EXPORT, IMPORT) if route.has_body}
    yield from dict.fromkeys(ANSWERS.values())
    yield from (Problem, Environments, Log, Audited, AuditAsked, SandboxForkAsked)
    yield list[Forked]


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    answer = ANSWERS.get(route.verb_name)
    made: dict[str, Any] = {
        "operationId": _id(route.method, route.path),
        "summary": route.about,
        "description": inspect.cleandoc(route.verb.request.__doc__ or ""),
        "parameters": _parameters(route),
        "responses": _responses(route.status, schemas[answer] if answer else {"type": "object"}),
    }
    if route.has_body:
        made["requestBody"] = _body(_JSON, schemas[route.others])
    return made


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = _in_path(route.path)
    if not route.has_body:
        found += _in_query(route.others)
    if route.keyed and "key" not in route.leaves_out:
        about = "The same command with the same key is answered again, and not done again."
        found.append({"name": IDEMPOTENCY_HEADER, "in": "header", "description": about, "schema": {"type": "string"}})
    return found


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": _ABOUT[name], "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _in_query(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    whole = msgspec.json.schema(kind)
    properties = whole["$defs"][kind.__name__]["properties"] if "$defs" in whole else whole["properties"]
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in properties.items()
    ]


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": False, "content": {media_type: {"schema": schema}}}


def _responses(status: int, schema: dict[str, Any], media_type: str = _JSON) -> dict[str, Any]:
    done = {"description": "It was done.", "content": {media_type: {"schema": schema}}}
    return {str(status): done, "default": {"$ref": "#/components/responses/Problem"}}


def _id(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1").replace("{", "by_"))
    return "_".join((method.lower(), *words))


def _add_files(paths: Paths, schemas: Schemas) -> None:
    paths[EXPORT.path] = {
        "post": {
            "operationId": "export",
            "summary": EXPORT.about,
            "requestBody": _body(_JSON, schemas[EXPORT.others]),
            "responses": _responses(200, {}, _BYTES),
        }
    }
    paths[IMPORT.path] = {
        "post": {
            "operationId": "import",
            "summary": IMPORT.about,
            "parameters": _in_query(IMPORT.others),
            "requestBody": _body(_BYTES, {}),
            "responses": _responses(IMPORT.status, schemas[ANSWERS["import"]]),
        }
    }


def _add_others(paths: Paths, schemas: Schemas) -> None:
    def add(method: str, path: str, about: str, responses: dict[str, Any], **more: Any) -> None:
        made = {"operationId": _id(method, path), "summary": about, "parameters": _in_path(path)}
        made["parameters"] += more.pop("query", [])
        paths.setdefault(path, {})[method] = {**made, "responses": responses, **more}

    anything, text = {"type": "object"}, {"type": "string"}
    add("get", "/v1/environments", "Every environment that is not retired", _responses(200, schemas[Environments]))
    add("get", "/v1/moments/{ref}", "A generation, an action or an environment", _responses(200, anything))
    add("get", "/v1/log", "Journaled events", _responses(200, schemas[Log]), query=_in_query(LogAsked))
    add("get", "/v1/blobs/{digest}", "The bytes of a blob", _responses(200, {}, _BYTES))
    audit = _body(_JSON, schemas[AuditAsked])
    add(
        "post",
        "/v1/audits",
        "Is the history what it claims to be?",
        _responses(200, schemas[Audited]),
        requestBody=audit,
    )
    again = {"name": LAST_ID_HEADER, "in": "header", "schema": {"type": "integer"}}
    stream = _responses(200, text, "text/event-stream")
    add("get", "/events", "The journal as it grows", stream, query=[*_in_query(EventsAsked), again])
    add("get", "/metrics", "Figures for Prometheus", _responses(200, text, "text/plain"))
    add("get", "/openapi.json", "This document", _responses(200, anything))
    add("get", "/health", "Whether it answers; needs no token", _responses(200, anything), security=[])
    fork = _body(_JSON, schemas[SandboxForkAsked])
    error = {"type": "object", "required": ["code", "message"]}
    forked = _responses(201, schemas[list[Forked]])
    forked["default"] = {"description": "Nothing was begun.", "content": {_JSON: {"schema": error}}}
    add("post", "/sandboxes/{id}/fork", "Children of the present", forked, requestBody=fork)
