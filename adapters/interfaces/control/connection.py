"""One client's connection to the control door: its requests, one after the other."""

from __future__ import annotations

import math
import select
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import anyio
import anyio.abc
import h11
import msgspec

from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Refused
from statefork.adapters.interfaces.gateway.wire import Gone, Wire

LIMITS = Limits()
_CHUNK_BYTES = 65_536
LOOK_EVERY_S = 1.0
"""How often it is looked whether a client is still there that has said that it says no more."""
_PATIENT = msgspec.structs.replace(LIMITS, idle_s=math.inf)
T = TypeVar("T")


class Asked(NamedTuple):
    """A request that was read to its end."""

    method: str
    path: str
    body: bytes


class Answer(NamedTuple):
    """What is sent for it."""

    status: int
    body: bytes
    media_type: str = "application/json"


class Connection:
    """Reads requests and sends what ``answer`` gives for each. A client that is silent in the middle of a request, or
    does not read what it asked for, is left after the gateway's deadlines, and holds up nobody."""

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        answer: Callable[[Connection, Asked], Awaitable[Answer]],
        refuse: Callable[[Refused], Answer],
    ) -> None:
        self._wire = Wire(stream, h11.SERVER, LIMITS)
        self._answer = answer
        self._refuse = refuse
        self._listening: anyio.CancelScope | None = None
        self._leaving = False
        self.lent: list[str] = []  # environments that live no longer than this

    def lend(self, env: str) -> None:
        """An environment that its client has as long as it holds the connection, however silent it is."""
        self.lent.append(env)
        self._wire.limits = _PATIENT

    def leave(self) -> None:
        """Take no more requests: one that is being answered is the last."""
        self._leaving = True
        if self._listening is not None:
            self._listening.cancel()

    async def serve(self) -> None:
        """Answer requests until the client goes, or ``leave`` is called."""
        try:
            while not self._leaving and await self._serve_one():
                self._wire.http.start_next_cycle()
        except Gone:
            pass  # there is nobody to tell; what was asked for has been done
        finally:
            with anyio.CancelScope(shield=True):
                await self._wire.close()

    async def _serve_one(self) -> bool:
        try:
            with anyio.CancelScope() as self._listening:
                asked = await self._read()
            if self._listening.cancelled_caught or asked is None:
                return False
        except Refused as refused:
            await self._send(self._refuse(refused))
            return False
        finally:
            self._listening = None
        await self._send(await self._answer(self, asked))
        return self._wire.http.our_state is h11.DONE and self._wire.http.their_state is h11.DONE

    async def while_there(self, work: Callable[[], Awaitable[T]]) -> T:
        """What the work gives. It is cancelled when the client goes: nobody waits for it. Raises Gone then."""
        done: list[T] = []
        failed: Exception | None = None  # also where the work was cancelled
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_gone, tasks.cancel_scope)
            try:
                done.append(await work())
            except Exception as error:  # noqa: BLE001 - raised again below, alone
                failed = error
            tasks.cancel_scope.cancel()
        if done:
            return done[0]
        raise failed or Gone("the client went before it was answered")

    async def _until_gone(self, work: anyio.CancelScope) -> None:
        """Cancel the work when the client has closed its end both ways; one that only says no more still listens."""
        with suppress(Gone):
            while data := await self._wire.receive(math.inf, "idle_s"):
                self._wire.http.receive_data(data)
        raw: int = self._wire.stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno()
        poll = select.poll()
        poll.register(raw, select.POLLHUP)
        while not poll.poll(0):  # noqa: ASYNC110 - no event tells of it
            await anyio.sleep(LOOK_EVERY_S)
        work.cancel()

    async def _read(self) -> Asked | None:
        """The next request; None when there is none. Raises Refused, Gone."""
        request = await self._wire.request()
        if request is None:
            return None
        if self._wire.http.they_are_waiting_for_100_continue:
            await self._wire.send(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
        body = bytearray()
        try:
            while isinstance(event := await self._wire.next_event(LIMITS.stall_s, "stall_s"), h11.Data):
                body += event.data
                if len(body) > LIMITS.body_bytes_max:
                    limit = f"body_bytes_max is {LIMITS.body_bytes_max}"
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "limit_exceeded", limit)
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, "usage", str(error)) from None
        path = request.target.decode("ascii", "replace").partition("?")[0]
        return Asked(request.method.decode(), path, bytes(body))

    async def _send(self, answer: Answer) -> None:
        """Send it in pieces, so that a slow reader has the deadline for each. Raises Gone."""
        http = self._wire.http
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise Gone("the client has broken the protocol")
        headers = [
            (b"Content-Type", answer.media_type.encode()),
            (b"Content-Length", str(len(answer.body)).encode()),
        ]
        if self._leaving or http.their_state is not h11.DONE:
            headers.append((b"Connection", b"close"))
        await self._wire.send(h11.Response(status_code=answer.status, headers=headers))
        for at in range(0, len(answer.body), _CHUNK_BYTES):
            await self._wire.send(h11.Data(data=answer.body[at : at + _CHUNK_BYTES]))
        await self._wire.send(h11.EndOfMessage())
