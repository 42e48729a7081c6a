"""One admitted request: from the client to an upstream and back, under its lease."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from typing import IO, TYPE_CHECKING

import anyio
import h11

from statefork.adapters.interfaces.gateway import heads, messages
from statefork.adapters.interfaces.gateway.asked import Asked, Opened
from statefork.adapters.interfaces.gateway.refusals import Refused
from statefork.adapters.interfaces.gateway.wire import Gone, Wire, connect
from statefork.engine.ports import RequestLease
from statefork.engine.tickets import CONDITIONS_HEADER, LOST_HEADER, TICKET_HEADER, sign

if TYPE_CHECKING:
    from statefork.adapters.interfaces.gateway.client import Client

_SPOOL_BYTES = 1024 * 1024  # of a recorded body kept in memory; the rest waits in a temporary file
_RECORDED_HEADERS = frozenset(  # what a re-execution must send again for the application to answer the same
    {
        "accept",
        "authorization",
        "content-type",
        "cookie",
        "origin",
        "referer",
        "x-csrftoken",
        "x-requested-with",
    }
)


class Exchange:
    """One admitted request. Everything here runs under its lease."""

    def __init__(self, client: Client, asked: Asked, lease: RequestLease, stack: AsyncExitStack) -> None:
        self.client = client
        self.asked = asked
        self.lease = lease
        self.limits = client.limits
        self._stack = stack  # closes the upstream of a response that lives on after the lease
        self._status = 0
        self._record: IO[bytes] | None = None  # None: there is nothing to write down, or it is written
        self._uploaded = False
        self._fault: Refused | Gone | None = None
        self._client_left = False

    async def run(self) -> Opened | None:
        """Forward; what lives on after the lease, if anything. Raises Refused before the response began, else Gone."""
        if self.asked.method in heads.SAFE_METHODS or not self.lease.root:
            return await self._run()
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as self._record:
            try:
                return await self._run()
            finally:
                self._write_down()

    async def _run(self) -> Opened | None:
        try:
            host, port, network = self.client.door.upstream(self.asked.route, self.lease.identity)
            upstream = await connect(host, port, self.limits, network)
        except Gone as gone:
            raise self._failed(gone) from None
        opened: Opened | None = None
        try:
            opened = await self._forward(upstream)
        except anyio.get_cancelled_exc_class():
            await _close(self.client.wire)  # revoked: both sides end before the lease does
            raise
        finally:
            if opened is None:
                await _close(upstream)
            else:
                self._stack.push_async_callback(_close, upstream)
        return opened

    async def _forward(self, upstream: Wire) -> Opened | None:
        websocket = self.client.door.websockets and heads.is_websocket(self.asked.request)
        if websocket and self.asked.length != 0:
            raise Refused(400, "bad_request", "a WebSocket handshake has no body", close=True)
        opened: Opened | None = None
        try:
            async with anyio.create_task_group() as tasks:
                await upstream.send(self._request(websocket))
                if websocket:
                    await self._upload(upstream)
                else:
                    tasks.start_soon(self._upload_and_watch, upstream, tasks.cancel_scope)
                opened = await self._download(upstream, websocket)
                tasks.cancel_scope.cancel()
        except* (h11.ProtocolError, Gone) as group:
            self._fault = self._fault or Gone(str(group.exceptions[0]))
        if self._fault is None:
            return opened
        if self._client_left:
            raise Gone(str(self._fault))
        if self.client.wire.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._failed(self._fault)  # in the middle of its answer
            raise Gone(str(self._fault))
        if isinstance(self._fault, Refused):
            raise self._fault
        raise self._failed(self._fault)

    def _failed(self, fault: Exception) -> Refused:
        """The server has failed, not the world: whoever caused the request must not take our answer for the shop's."""
        self.lease.spoil(f"{self.asked.method} {self.asked.url}: {fault}")
        return Refused(502, "upstream_failed", str(fault))

    def _request(self, websocket: bool) -> h11.Request:
        asked = self.asked
        key = asked.route.ticket_key
        ours = [(TICKET_HEADER, sign(key, self.lease.identity))] if key else []
        conditions = self.client.door.conditions or self.lease.conditions
        if key and conditions:
            ours.append((CONDITIONS_HEADER, conditions))
        headers = heads.request_headers(asked.request, asked.length, asked.route.host, ours)
        headers = self.client.door.inward(headers)
        if websocket:
            headers = messages.handshake_headers(headers)
        return h11.Request(method=asked.request.method, target=asked.path, headers=headers)

    async def _upload_and_watch(self, upstream: Wire, scope: anyio.CancelScope) -> None:
        """The client's body to the upstream; then end the exchange when the client leaves."""
        try:
            await self._upload(upstream)
            data = await self.client.wire.receive(float("inf"), "client")
            if data:
                self.client.wire.http.receive_data(data)  # sent ahead: kept for the next request, once
                return
            self._client_left = True
            self._fault = Gone("the client closed the connection before the response ended")
        except Refused as refused:
            self._fault = refused
        except Gone as gone:
            self._client_left = True
            self._fault = gone
        scope.cancel()

    async def _upload(self, upstream: Wire) -> None:
        """The client's body to the upstream. Raises Refused for a body that breaks a rule, Gone when it breaks off."""
        wire = self.client.wire
        size = 0
        if wire.http.they_are_waiting_for_100_continue:
            await wire.send(h11.InformationalResponse(status_code=100, headers=[]))
        listening = True
        while True:
            try:
                event = await wire.next_event(self.limits.stall_s, "stall_s")
            except h11.RemoteProtocolError as error:
                raise Refused(400, "bad_request", str(error), close=True) from None
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > self.limits.body_bytes_max:
                    raise Refused(413, "limit_exceeded", f"body_bytes_max is {self.limits.body_bytes_max}", close=True)
                if self._record is not None:
                    self._record.write(event.data)
            elif not isinstance(event, h11.EndOfMessage):
                raise Gone("the client left in the middle of its request")
            if listening:
                try:
                    await upstream.send(event if isinstance(event, h11.Data) else h11.EndOfMessage())
                except Gone:
                    listening = False  # it may have answered already; reading its response decides
            if isinstance(event, h11.EndOfMessage):
                self._uploaded = True
                return

    async def _download(self, upstream: Wire, websocket: bool) -> Opened | None:
        """The upstream's response to the client."""
        while True:
            try:
                head = await upstream.next_event(self.limits.response_s, "response_s")
            except h11.RemoteProtocolError:
                if upstream.http.trailing_data[1]:
                    raise Gone("the upstream closed the connection without a response") from None
                raise
            if isinstance(head, h11.InformationalResponse):
                if head.status_code == 101 and websocket:
                    self._status = 101
                    await messages.accept_handshake(self.client.wire, self.asked.request, head)
                    return Opened(upstream=upstream, lease=self.lease, websocket=True)
                continue
            break
        self._status = head.status_code
        if self.asked.route.ticket_key and (lost := dict(head.headers).get(LOST_HEADER.lower().encode())):
            self._fault = self._failed(Gone(lost.decode("latin-1")))
            raise Gone(str(self._fault))
        events = heads.is_event_stream(head) and self.asked.method != "HEAD"
        headers = self.client.door.outward(heads.response_headers(head.headers))
        if self._uploaded:  # before the client can know that it is done, and do what comes after it
            self._write_down()
        await self.client.wire.send(h11.Response(status_code=head.status_code, headers=headers, reason=head.reason))
        if events:
            return Opened(upstream=upstream, lease=self.lease, websocket=False)
        await self._body(upstream)
        return None

    async def _body(self, upstream: Wire) -> None:
        while True:
            event = await upstream.next_event(self.limits.response_s, "response_s")
            if isinstance(event, h11.Data):
                await self.client.wire.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self.client.wire.send(h11.EndOfMessage())
                return
            else:
                raise Gone("the upstream ended in the middle of its response")

    def _write_down(self) -> None:
        record, self._record = self._record, None
        if record is None:
            return
        received = self.client.door.inward(
            list(self.asked.request.headers)
        )  # as the application's own host would see them
        headers = {
            name.decode(): value.decode("latin-1") for name, value in received if name.decode() in _RECORDED_HEADERS
        }
        record.seek(0)
        self.client.admission.record_input(
            self.lease,
            method=self.asked.method,
            url=self.asked.url,
            headers=headers,
            body=record.read(),
            status=self._status,
        )


async def _close(wire: Wire) -> None:
    with anyio.CancelScope(shield=True):
        await wire.close()
