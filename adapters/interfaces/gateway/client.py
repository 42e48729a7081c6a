"""A client's connection to a door: it reads requests, asks for their admission, and answers what is refused."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from typing import Any

import anyio
import anyio.abc
import h11
from anyio.streams.tls import TLSStream

from statefork.adapters.interfaces.gateway import heads, messages
from statefork.adapters.interfaces.gateway.asked import Asked, Opened
from statefork.adapters.interfaces.gateway.exchange import Exchange
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.outside import OutsideExchange, outside_of
from statefork.adapters.interfaces.gateway.refusals import Refused, refusal_of
from statefork.adapters.interfaces.gateway.wire import Gone, Wire
from statefork.engine.errors import LeaseRevoked
from statefork.engine.ports import Admission, AdmissionRequest
from statefork.journal.errors import StateforkError

_LINGER_S = 1.0


class Client:
    """A client's connection to a door: its requests, one after the other."""

    def __init__(self, stream: anyio.abc.ByteStream, door: Any, admission: Admission, limits: Limits) -> None:
        self.wire = Wire(stream, h11.SERVER, limits)
        self.door = door
        self.admission = admission
        self.limits = limits
        self.tunnel: str | None = None  # the authority of an accepted CONNECT
        self.secure = False  # there is TLS in the tunnel

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
        if self.secure and b":" not in host_header:
            host_header += b":443"
        host, route = self.door.find(authority, host_header, self.tunnel)
        origin = outside_of(route, secure=self.secure)
        return Asked(
            request=request,
            method=request.method.decode(),
            host=host,
            path=path,
            url=f"{origin or f'http://{host}'}{path.decode('ascii', 'replace')}"[: self.limits.url_chars_max],
            length=length,
            route=route,
            origin=origin,
        )

    async def _connect(self, request: h11.Request) -> bool:
        """CONNECT to a host of the world: we are that host, so the tunnel ends here and nothing is tunnelled."""
        authority = heads.canonical(request.target)
        if self.tunnel is not None or not self.door.tunnels:
            raise Refused(400, "bad_request", "no CONNECT here", close=True)
        route = heads.find_route(self.door.routes, authority)
        await self.wire.next_event(self.limits.stall_s, "stall_s")  # the (empty) body of the request
        await self.wire.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        trailing, _ = self.wire.http.trailing_data
        self.secure = route.outside == "https"
        stream = await self._secured(trailing) if self.secure else self.wire.stream
        self.wire = Wire(stream, h11.SERVER, self.limits)
        if trailing:
            self.wire.http.receive_data(trailing)
        self.tunnel = authority
        return await self._serve_in_tunnel()

    async def _secured(self, sent_ahead: bytes) -> TLSStream:
        """Our end of TLS, instead of the host's."""
        if sent_ahead:
            raise Gone("the client began TLS before the tunnel was there")
        try:
            with anyio.fail_after(self.limits.head_s):
                return await TLSStream.wrap(
                    self.wire.stream, server_side=True, ssl_context=self.door.certified, standard_compatible=False
                )
        except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise Gone(f"no TLS: {error}") from None

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
        with anyio.move_on_after(_LINGER_S), suppress(Gone, OSError, anyio.BrokenResourceError):  # it has left
            if not self.secure:  # TLS has no half that could be closed alone
                await self.wire.stream.send_eof()
            while await self.wire.receive(_LINGER_S, "linger"):
                pass

    # -- forwarding -------------------------------------------------------------------------------------------

    async def _admit_and_forward(self, asked: Asked) -> None:
        opened: Opened | None = None
        began = False
        async with AsyncExitStack() as stack:
            try:
                async with self.admission.admit(asked.admission(self.door, "request")) as lease:
                    began = True
                    if asked.origin is not None:
                        await OutsideExchange(self, asked, lease).run()
                    else:
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
