"""HTTP for large bodies: httpx's requests over the standard library's connections.

httpx reads a body in pieces through a parser written in Python; a plain reader takes a quarter of its time for 24 MB
over TLS, and a model passes six readers of a round with three sites.
"""

from __future__ import annotations

import http.client
import select
import ssl
from collections import deque

import httpx

ANSWER = 64 << 20  # bytes of one response, if nothing else is said; parts of messages are at most 24 MB


class PlainTransport(httpx.BaseTransport):
    """Connections to one server, kept and used again, each by one thread at a time; bodies are read whole."""

    def __init__(self, address: str, context: ssl.SSLContext, *, most: int = ANSWER):
        """`address` HOST:PORT, `most` bytes of one response."""
        self._origin, self._context, self._most = httpx.URL(f"https://{address}"), context, most
        self._idle: deque[http.client.HTTPSConnection] = deque()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if (url.scheme, url.host, url.port) != (self._origin.scheme, self._origin.host, self._origin.port):
            raise httpx.UnsupportedProtocol(f"only {self._origin} is spoken to here", request=request)
        connection = self._connection(request)
        try:
            response = self._exchange(connection, request)
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # http.client closes it where the server has said so
            self._idle.append(connection)
        return response

    def close(self) -> None:
        while (connection := self._kept()) is not None:
            connection.close()

    def _kept(self) -> http.client.HTTPSConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connection(self, request: httpx.Request) -> http.client.HTTPSConnection:
        """A connection that was used before and that the server has not closed, or a new one."""
        while (connection := self._kept()) is not None:
            if not _readable(connection):
                return connection
            connection.close()
        seconds = request.extensions["timeout"]["connect"]
        connection = http.client.HTTPSConnection(
            self._origin.host, self._origin.port or 443, timeout=seconds, context=self._context
        )
        try:
            connection.connect()
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time", request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return connection

    def _exchange(self, connection: http.client.HTTPSConnection, request: httpx.Request) -> httpx.Response:
        limits = request.extensions["timeout"]
        try:
            connection.sock.settimeout(limits["write"])
            path = request.url.raw_path.decode()
            connection.putrequest(request.method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.raw:
                connection.putheader(name, value)
            connection.endheaders(request.read())
        except TimeoutError as error:
            raise httpx.WriteTimeout("the server takes nothing", request=request) from error
        except OSError as error:
            raise httpx.WriteError("the connection broke while it was written to", request=request) from error
        try:
            connection.sock.settimeout(limits["read"])
            response = connection.getresponse()
            if (length := response.length) is None:  # in pieces of unknown number
                content = response.read(self._most + 1)
                length = len(content)
            else:
                content = response.read() if length <= self._most else b""
            response.close()
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time", request=request) from error
        except http.client.HTTPException as error:
            raise httpx.RemoteProtocolError("the answer is cut short, or there is none", request=request) from error
        except OSError as error:
            raise httpx.ReadError("the connection broke before the answer was there", request=request) from error
        if length > self._most:
            raise httpx.RemoteProtocolError(
                f"the server sent more than {self._most >> 20} MB in one answer", request=request
            )
        return httpx.Response(response.status, headers=response.getheaders(), stream=httpx.ByteStream(content))


def _readable(connection: http.client.HTTPSConnection) -> bool:
    """Has something come that nobody asked for? On an idle connection that is its end."""
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))
