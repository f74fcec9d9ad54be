"""The only port of the server that others can reach: TLS ends here, and nothing but signed Fleet requests goes on.

Flower's SuperLink answers its Control API on the same port as the Fleet API and asks nobody who they are. So it listens
on loopback alone, and this relay stands in front: it reads heads with a strict parser, rebuilds them, and passes bodies
of a declared and bounded length.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import h11

from cofal.deploy import fleet_api
from cofal.deploy.admission import Admission, Refused
from cofal.deploy.server_folder import ServerFolder, ServerSettings

log = logging.getLogger("cofal")

_FLEET = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_ANSWERS = b"/v1/fleet/push-messages"  # envelopes of answers, without their content
_ENVELOPE = 8 << 20  # bytes of such a request, which is read before it is passed on
_HEAD = 16 << 10  # bytes of a request's head
_PIECE = 256 << 10  # bytes relayed at a time
_IDLE = 75.0  # seconds a connection may wait between two requests
_ANSWER = 120.0  # seconds the SuperLink may take
_LINGER = 2.0  # seconds that a refused sender's further bytes are read and thrown away
_STALE = 3.0  # seconds after which the SuperLink may have closed a connection: a new one is opened
# Headers that belong to one connection, or that we set ourselves.
_OWN = {b"host", b"connection", b"keep-alive", b"content-length", b"te", b"trailer", b"upgrade", b"expect"}
_OWN |= {b"proxy-authorization", b"proxy-connection", b"forwarded", b"x-forwarded-for", b"server", b"date"}


class _Reject(Exception):
    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class _Upstream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: float = 0.0


class PublicPort:
    """The relay; `start` opens the port, `stop` closes it with all its connections."""

    def __init__(self, folder: ServerFolder):
        self._settings: ServerSettings = folder.settings()
        self._admission = Admission(folder.enrolled)
        self._tls = _server_tls(folder.certificate, folder.key)
        self._inside = ssl.create_default_context(cafile=str(folder.authority))
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._accept,
            self._settings.listen,
            self._settings.port,
            ssl=self._tls,
            ssl_handshake_timeout=self._settings.patience,
            limit=_PIECE,
            backlog=128,
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = (writer.get_extra_info("peername") or ("?",))[0]
        if len(self._open) >= self._settings.max_connections:
            log.warning("connection from %s refused: %d are open", peer, len(self._open))
            writer.transport.abort()
            return
        self._open.add(task)
        upstream: _Upstream | None = None
        try:
            while True:
                upstream = await self._exchange(reader, writer, upstream)
        except _Reject as rejected:
            log.warning("request from %s refused: %s", peer, rejected.reason)
            with suppress(OSError, TimeoutError):
                await self._answer(reader, writer, rejected)
        except TimeoutError:
            log.warning("connection from %s cut off: too slow", peer)
        except (OSError, EOFError, asyncio.LimitOverrunError, h11.ProtocolError, asyncio.CancelledError):
            pass  # the other side is gone, or speaks no HTTP
        except Exception:
            log.exception("a request from %s failed", peer)
        finally:
            self._open.discard(task)
            for each in filter(None, (writer, upstream.writer if upstream else None)):
                each.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream | None
    ) -> _Upstream:
        """One request and its answer."""
        patience = self._settings.patience
        async with asyncio.timeout(_IDLE):
            head = await reader.readexactly(1)
        async with asyncio.timeout(patience):
            head += await reader.readuntil(b"\r\n\r\n")
        request, length = self._admit(head)
        if upstream is None or time.monotonic() - upstream.used > _STALE or upstream.reader.at_eof():
            upstream = await self._connect(upstream)
        body = b""
        if request.target == _ANSWERS:
            async with asyncio.timeout(patience):
                body = await reader.readexactly(length)
            if not fleet_api.speaks_for_itself(body):
                raise _Reject(403, "a site answers for itself alone")
        headers = [(name, value) for name, value in request.headers if name not in _OWN]
        upstream.writer.write(_head(b"POST " + request.target + b" HTTP/1.1\r\nhost: localhost", length, headers))
        upstream.writer.write(body)
        slowest = patience + length / (self._settings.min_rate_kb << 10)
        async with asyncio.timeout(slowest):
            await self._relay(reader, upstream.writer, length - len(body))
        try:
            async with asyncio.timeout(_ANSWER):
                answer = await upstream.reader.readuntil(b"\r\n\r\n")
        except (EOFError, OSError, TimeoutError):
            raise _Reject(503, "the server is busy or starting; try again") from None
        parsed = h11.Connection(h11.CLIENT)
        parsed.send(h11.Request(method="POST", target="/", headers=[("host", "localhost"), ("content-length", "0")]))
        parsed.send(h11.EndOfMessage())
        parsed.receive_data(answer)
        response = parsed.next_event()
        if not isinstance(response, h11.Response):
            raise _Reject(502, "the server's answer cannot be read")
        size = _length(response.headers)
        if size is None:
            raise _Reject(502, "the server's answer has no length")
        kept = [(name, value) for name, value in response.headers if name not in _OWN]
        writer.write(_head(b"HTTP/1.1 %d %s" % (response.status_code, response.reason), size, kept))
        async with asyncio.timeout(patience + size / (self._settings.min_rate_kb << 10)):
            await self._relay(upstream.reader, writer, size)
            await writer.drain()
        upstream.used = time.monotonic()
        return upstream

    def _admit(self, head: bytes) -> tuple[h11.Request, int]:
        """The parsed request and the length of its body, or a refusal."""
        if len(head) > _HEAD:
            raise _Reject(431, "the head of the request is too large")
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        parser.receive_data(head)
        try:
            request = parser.next_event()
        except h11.RemoteProtocolError:
            raise _Reject(400, "not a request that can be read") from None
        if not isinstance(request, h11.Request):
            raise _Reject(400, "not a request that can be read")
        if not _FLEET.fullmatch(request.target):
            raise _Reject(404, "nothing is here but the fleet")
        if request.method != b"POST" or request.http_version != b"1.1":
            raise _Reject(405, "fleet requests are POST, HTTP/1.1")
        length = _length(request.headers)
        if length is None:
            raise _Reject(411, "a request must state its length")
        most = _ENVELOPE if request.target == _ANSWERS else self._settings.max_body_mb << 20
        if length > most:
            raise _Reject(413, f"a request may have {most >> 20} MB")
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        try:
            self._admission.check(plain)
        except Refused as refused:
            raise _Reject(401, str(refused)) from None
        return request, length

    async def _connect(self, old: _Upstream | None) -> _Upstream:
        if old is not None:
            old.writer.close()
        try:
            streams = await asyncio.open_connection(
                "127.0.0.1", self._settings.control_port, ssl=self._inside, server_hostname="localhost", limit=_PIECE
            )
        except OSError:
            raise _Reject(503, "the server is starting; try again") from None
        return _Upstream(*streams)

    async def _relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, length: int) -> None:
        while length:
            async with asyncio.timeout(self._settings.patience):
                piece = await source.read(min(length, _PIECE))
            if not piece:
                raise EOFError
            target.write(piece)
            await target.drain()
            length -= len(piece)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rejected: _Reject) -> None:
        text = rejected.reason.encode("ascii", "replace")
        kind = [
            (b"content-type", b"text/plain"),
            (b"date", formatdate(usegmt=True).encode()),  # a site with a wrong clock takes it from here
            (b"connection", b"close"),
        ]
        writer.write(_head(b"HTTP/1.1 %d refused" % rejected.status, len(text), kind) + text)
        async with asyncio.timeout(_LINGER):  # closed at once, with bytes unread, the answer would be lost on its way
            await writer.drain()
            while await reader.read(_PIECE):
                pass


def _server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _head(first: bytes, length: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join(
        [first, b"content-length: %d" % length, *(name + b": " + value for name, value in headers), b"", b""]
    )


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The declared length of a body; None if there is none, or if it comes in an undeclared way."""
    found = dict(headers)
    if b"transfer-encoding" in found or b"content-length" not in found:
        return None
    return int(found[b"content-length"])
