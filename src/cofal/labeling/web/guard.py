"""What every request passes before a handler sees it (Host, origin, size), and the headers that every answer bears."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 64 << 10  # bytes; the largest honest request is a few hundred

# `default-src 'none'` and no inline script: text that slipped in as markup could still load and run nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",  # nothing of the site stays on the disk of the machine that looked
}


class Guard:
    """ASGI middleware. `names` are the host names (lower case, no port) under which the page may be asked for."""

    def __init__(self, app: ASGIApp, names: Iterable[str], port: int, tls: bool):
        self._app, self._names, self._port, self._tls = app, frozenset(names), port, tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self._tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal:
            status, text = refusal
            return await PlainTextResponse(text + "\n", status)(scope, receive, send_with_headers)
        return await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._known(host):
            # A page of another site whose name was made to point at this machine (DNS rebinding) ends here.
            return 421, f"this page is not served under the name {host[:100]!r}"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "only GET and POST are served"
        scheme = "https" if self._tls else "http"
        if headers.get("origin", f"{scheme}://{host}") != f"{scheme}://{host}":
            return 403, "requests from other pages are refused"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "requests from other pages are refused"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return 415, "send JSON"  # a form of another page cannot
        length = headers.get("content-length", "")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return 413, f"send at most {LARGEST_BODY} bytes"
        return None

    def _known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        except ValueError:
            return False
        if parts.netloc != host or port != self._port:
            return False
        wildcard = "*." + name.partition(".")[2]
        return name in self._names or (wildcard in self._names and not _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
