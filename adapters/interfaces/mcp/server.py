"""A server of the Model Context Protocol over some tools, on standard input and output or over HTTP."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp

from statefork.adapters.interfaces.cli.faults import InternalError
from statefork.adapters.interfaces.control.protocol import error_object
from statefork.adapters.interfaces.http.app import Drained
from statefork.adapters.interfaces.http.guard import App, Guard
from statefork.adapters.interfaces.http.serving import Place, Served, served
from statefork.adapters.interfaces.mcp.tools import Plain, Tool, by_name
from statefork.journal.errors import StateforkError

_log = logging.getLogger(__name__)
PATH = "/mcp"
TOLD_CHARS_MAX = 200_000
"""How much text one answer has: more of a page or of a difference would push the rest out of a model's view."""

Context = ServerRequestContext[Any, Any]


def make_server(name: str, instructions: str, tools: Iterable[Tool]) -> Server[Any]:
    """The server."""
    known = by_name(tools)

    async def list_tools(context: Context, asked: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in known.values()])

    async def call_tool(context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in known:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {asked.name!r}. There are: {', '.join(known)}")
        return await _called(known[asked.name], asked.arguments)

    def schema_of(tool: str) -> Plain | None:
        return known[tool].schema if tool in known else None

    return Server(
        name,
        version=version("statefork"),
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schema_of,
    )


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not tool.changes)
    return types.Tool(name=tool.name, description=tool.about, input_schema=tool.schema, annotations=hints)


async def _called(tool: Tool, arguments: Plain | None) -> types.CallToolResult:
    """What came of it. An error is a result, which the model reads; who cancels leaves what was begun to its end."""
    try:
        answer = await anyio.to_thread.run_sync(tool.call, arguments, abandon_on_cancel=True)
    except StateforkError as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001 -- whoever called hears of it, the server goes on
        _log.exception("%s failed", tool.name)
        return _failed(InternalError(f"{type(error).__name__}: {error}"))
    if tool.looks:
        return _seen(answer)
    text = json.dumps(answer, default=str, ensure_ascii=False)
    return types.CallToolResult(content=[_text(text)], structured_content=json.loads(text))


def _failed(error: StateforkError) -> types.CallToolResult:
    told = json.loads(json.dumps(error_object(error), default=str))
    return types.CallToolResult(
        content=[_text(f"error[{error.code}]: {error}")], structured_content=told, is_error=True
    )


def _seen(seen: Plain) -> types.CallToolResult:
    """What an agent sees: where it is, what is there, and what the action itself returned."""
    value = "" if seen["value"] is None else f"\nvalue: {json.dumps(seen['value'], ensure_ascii=False, default=str)}"
    where = f"{seen['title']}\n{seen['url']}\n" if seen["url"] or seen["title"] else ""
    content: list[Any] = [_text(f"{where}{seen['text']}{value}")]
    if seen["png"]:
        data = base64.b64encode(seen["png"]).decode()
        content.append(types.ImageContent(type="image", data=data, mime_type="image/png"))
    told = {name: seen[name] for name in ("url", "title", "value", "digest")}
    return types.CallToolResult(content=content, structured_content=told)


def _text(text: str) -> types.TextContent:
    if len(text) > TOLD_CHARS_MAX:
        text = f"{text[:TOLD_CHARS_MAX]}\n… and {len(text) - TOLD_CHARS_MAX} characters more"
    return types.TextContent(type="text", text=text)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve the client at standard input and output, until it goes."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(
    server: Server[Any], place: Place, token: str | None, *, task_status: anyio.abc.TaskStatus[Served]
) -> None:
    """Serve over HTTP at ``/mcp``, until it is cancelled. ``token`` None: nobody needs one."""
    app = server.streamable_http_app(streamable_http_path=PATH, host=place.host)
    guarded = Drained(cast(ASGIApp, Guard(cast(App, app), token=token)))
    async with app.router.lifespan_context(app), served(guarded, place) as address:
        task_status.started(address)
        await anyio.sleep_forever()
