"""Answers as they are sent."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from statefork.adapters.interfaces.http.problems import MEDIA_TYPE, problem
from statefork.journal.errors import StateforkError


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON; what JSON has no form for is written as text, as the control door does."""
    return Response(json.dumps(value, default=str), status, media_type="application/json")


def problem_response(error: StateforkError, status: int | None = None) -> Response:
    """An error in its form, with its own status unless another is given. Who must say who it is hears how."""
    told = problem(error)
    if status is not None:
        told = msgspec.structs.replace(told, status=status)
    headers = {"WWW-Authenticate": 'Bearer realm="statefork"'} if told.status == HTTPStatus.UNAUTHORIZED else {}
    return Response(msgspec.json.encode(told), told.status, headers, media_type=MEDIA_TYPE)
