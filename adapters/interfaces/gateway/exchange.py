"""One request from a client through admission to an upstream and back, and the connection that carries it."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import IO, Any

import anyio
import anyio.abc
import h11
import msgspec

from statefork.adapters.interfaces.gateway import heads, messages
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Refused, refusal_of
from statefork.adapters.interfaces.gateway.wire import Gone, Wire, connect
from statefork.engine.errors import LeaseRevoked
from statefork.engine.ports import Admission, AdmissionRequest, RequestLease, Route
from statefork.engine.tickets import TICKET_HEADER, sign
from statefork.journal.errors import StateforkError

_SPOOL_BYTES = 1024 * 1024  # of a recorded body kept in memory; the rest waits in a temporary file
_LINGER_S = 1.0
_RECORDED_HEADERS = frozenset({"content-type", "accept", "cookie", "authorization", "x-requested-with", "x-csrftoken"})


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passed the rules of heads.py."""

    request: h11.Request
    method: str
    host: str  # the canonical authority
    path: bytes
    url: str
    length: int | None  # None = chunked
    route: Route

    def admission(self, door: Any, kind: str, pinned_epoch: int | None = None) -> AdmissionRequest:
        """How the kernel is asked for this request, or for a message of it."""
        return AdmissionRequest(
            identity=door.identity,
            env=door.env,
            method=self.method,
            url=self.url,
            kind=kind,
            pinned_epoch=pinned_epoch,
        )


class Opened(msgspec.Struct, kw_only=True):
    """A response that lives on after its request's lease: an event stream, or a WebSocket."""

    upstream: Wire
    lease: RequestLease  # of the request that opened it; ended, but it knows where the connection belongs
    websocket: bool

    @property
    def name(self) -> str:
        """What a person would call it."""
        return "WebSocket" if self.websocket else "event stream"


class Client:
    """A client's connection to a door: its requests, one after the other."""

    def __init__(self, stream: anyio.abc.ByteStream, door: Any, admission: Admission, limits: Limits) -> None:
        self.wire = Wire(stream, h11.SERVER, limits)
        self.door = door
        self.admission = admission
        self.limits = limits
        self.tunnel: str | None = None  # the authority of an accepted CONNECT

    async def serve(self) -> None:
        """Answer requests until the client goes or something can't be answered in order."""
        try:
            while await self._serve_one():
                self.wire.http.start_next_cycle()
        except Gone:
            pass  # the client has gone, or takes nothing: there is nobody to tell
        finally:
            with anyio.CancelScope(shield=True):
                await self.wire.close()

    async def _serve_one(self) -> bool:
        """Whether the connection can carry another request."""
        asked: Asked | None = None
        try:
            request = await self.wire.request()
            if request is None:
                return False
            if request.method == b"CONNECT":
                return await self._connect(request)
            asked = self._vet(request)
            await self._admit_and_forward(asked)
        except Refused as refused:
            return await self._refuse(refused, asked)
        return self._in_step()

    def _in_step(self) -> bool:
        """Whether both sides have finished this request and may begin another."""
        states: set[Any] = {self.wire.http.our_state, self.wire.http.their_state}
        return states == {h11.DONE}

    # -- rules ------------------------------------------------------------------------------------------------

    def _vet(self, request: h11.Request) -> Asked:
        authority, path = heads.split_target(request.target)
        length = heads.check_framing(request, self.limits)
        host_header = next((value for name, value in request.headers if name == b"host"), b"")
        host, route = self.door.find(authority, host_header, self.tunnel)
        return Asked(
            request=request,
            method=request.method.decode(),
            host=host,
            path=path,
            url=f"http://{host}{path.decode('ascii', 'replace')}"[: self.limits.url_chars_max],
            length=length,
            route=route,
        )

    async def _connect(self, request: h11.Request) -> bool:
        """CONNECT to a host of the world: we are that host, so the tunnel ends here and nothing is tunnelled."""
        authority = heads.canonical(request.target)
        if self.tunnel is not None or not self.door.tunnels:
            raise Refused(400, "bad_request", "no CONNECT here", close=True)
        heads.find_route(self.door.routes, authority)
        await self.wire.next_event(self.limits.stall_s, "stall_s")  # the (empty) body of the request
        await self.wire.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        trailing, _ = self.wire.http.trailing_data
        self.wire = Wire(self.wire.stream, h11.SERVER, self.limits)
        if trailing:
            self.wire.http.receive_data(trailing)
        self.tunnel = authority
        return await self._serve_in_tunnel()

    async def _serve_in_tunnel(self) -> bool:
        while await self._serve_one():
            self.wire.http.start_next_cycle()
        return False

    # -- refusing ---------------------------------------------------------------------------------------------

    async def _refuse(self, refused: Refused, asked: Asked | None) -> bool:
        """Journal and answer; whether the connection can be used on."""
        if not refused.journaled:
            self._journal(refused, asked)
        http = self.wire.http
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False  # in the middle of a response: an abrupt end is the only honest one left
        headers, body = refused.answer()
        if asked is not None and asked.length == 0 and http.their_state is h11.SEND_BODY:
            http.next_event()  # the end of an empty body: the connection can be used on
        unread = http.their_state is h11.SEND_BODY
        if unread and not refused.close:
            headers.append((b"Connection", b"close"))
        reason = HTTPStatus(refused.status).phrase.encode()
        await self.wire.send(h11.Response(status_code=refused.status, headers=headers, reason=reason))
        if not (asked and asked.method == "HEAD"):
            await self.wire.send(h11.Data(data=body))
        await self.wire.send(h11.EndOfMessage())
        if unread or refused.close or http.their_state is h11.ERROR:
            await self._linger()
            return False
        return self._in_step()

    async def refuse_connection(self) -> None:
        """Turn the whole connection away: its door is full."""
        limit = f"connections_max is {self.limits.connections_max}"
        try:
            await self._refuse(Refused(503, "limit_exceeded", limit, close=True), None)
        except Gone:
            pass
        finally:
            with anyio.CancelScope(shield=True):
                await self.wire.close()

    def _journal(self, refused: Refused, asked: Asked | None) -> None:
        request = AdmissionRequest(
            identity=self.door.identity,
            env=self.door.env,
            method=asked.method if asked else "",
            url=asked.url if asked else "",
            kind="request",
        )
        self.admission.refuse(request, status=refused.status, code=refused.code, detail=refused.message)

    async def _linger(self) -> None:
        """Let the client read the answer before its unread body makes the kernel reset the connection."""
        with anyio.move_on_after(_LINGER_S):
            await self.wire.stream.send_eof()
            try:
                while await self.wire.receive(_LINGER_S, "linger"):
                    pass
            except Gone:
                pass

    # -- forwarding -------------------------------------------------------------------------------------------

    async def _admit_and_forward(self, asked: Asked) -> None:
        opened: Opened | None = None
        began = False
        async with AsyncExitStack() as stack:
            try:
                async with self.admission.admit(asked.admission(self.door, "request")) as lease:
                    began = True
                    opened = await Exchange(self, asked, lease, stack).run()
            except LeaseRevoked as revoked:
                raise Gone(str(revoked)) from None  # closes the client's side; the stack closes the upstream's
            except StateforkError as error:
                if began:
                    raise
                raise refusal_of(error) from None
            if opened is not None:
                await self._carry(asked, opened)

    async def _carry(self, asked: Asked, opened: Opened) -> None:
        relay = messages.relay_websocket if opened.websocket else messages.relay_events
        name = f"{opened.name} {asked.url}"
        with opened.lease.carry(name), self.door.carrying(opened.lease.identity) as carried:
            await relay(self, asked, opened)
        if carried.ended_by:
            request = asked.admission(self.door, "request")
            self.admission.refuse(request, status=409, code="stale_generation", detail=f"{name}: {carried.ended_by}")


class Exchange:
    """One admitted request. Everything here runs under its lease."""

    def __init__(self, client: Client, asked: Asked, lease: RequestLease, stack: AsyncExitStack) -> None:
        self.client = client
        self.asked = asked
        self.lease = lease
        self.limits = client.limits
        self._stack = stack  # closes the upstream of a response that lives on after the lease
        self._status = 0
        self._record: IO[bytes] | None = None
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
                self._write_down(self._record)

    async def _run(self) -> Opened | None:
        try:
            upstream = await connect(self.asked.route.upstream_host, self.asked.route.upstream_port, self.limits)
        except Gone as gone:
            raise Refused(502, "upstream_failed", str(gone)) from None
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
        if self.client.wire.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self._client_left:
            raise Gone(str(self._fault))
        if isinstance(self._fault, Refused):
            raise self._fault
        raise Refused(502, "upstream_failed", str(self._fault))

    def _request(self, websocket: bool) -> h11.Request:
        asked = self.asked
        key = asked.route.ticket_key
        ticket = (TICKET_HEADER, sign(key, self.lease.identity)) if key else None
        headers = heads.request_headers(asked.request, asked.length, asked.route.host, ticket)
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
        events = heads.is_event_stream(head) and self.asked.method != "HEAD"
        headers = self.client.door.outward(heads.response_headers(head.headers))
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

    def _write_down(self, record: IO[bytes]) -> None:
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in self.asked.request.headers
            if name.decode() in _RECORDED_HEADERS
        }
        with record:
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
