"""Flower's SuperLink, made fit for large models; `python -m cofal.deploy.superlink` takes flower-superlink's arguments.

A model passes the SuperLink some ten times a round. Flower hands each 64 kB of a request through a stack of middleware
that starts tasks for every one of them, and an SQLite that is built to do so (Debian's is) writes zeros over all that
is deleted. This is the one other module that looks inside flwr; tests/deploy/test_superlink_parts.py tells what moved.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from flwr.supercore import sql_mixin
from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.superlink import main as superlink_main
from flwr.superlink.cli import flower_superlink
from flwr.superlink.routers.control.middlewares import (
    ControlAuthenticationMiddleware,
    ControlEventLogMiddleware,
    ControlLicenseMiddleware,
    ControlSensitiveResponseMiddleware,
)
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class WholeBody:
    """Outermost of all: collects the body of a request and hands it on in one piece."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        pieces: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the sender is gone
                return None
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        waiting: list[Message] = [{"type": "http.request", "body": b"".join(pieces), "more_body": False}]
        pieces.clear()

        async def whole() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, whole, send)


class OnlyFor:
    """Middleware that has work to do below one path alone: requests to others go past it."""

    def __init__(self, app: ASGIApp, path: str, layer: Middleware):
        self._app, self._path = app, path
        self._layer = layer.cls(app, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        concerned = scope["type"] != "http" or scope["path"].startswith(self._path)
        await (self._layer if concerned else self._app)(scope, receive, send)


# What the middleware of flwr.superlink.main has work to do for; what is not named here sees all requests.
CONCERNS = {
    ControlSensitiveResponseMiddleware: "/v1/control/",
    ControlAuthenticationMiddleware: "/v1/control/",
    ControlLicenseMiddleware: "/v1/control/",
    ControlEventLogMiddleware: "/v1/control/",
    NodeAuthMiddleware: "/v1/fleet/",
}
SWITCHES = {  # a variable of the environment, an argument: without it the layer hands everything on
    RuntimeTracingMiddleware: "FLWR_TRACING_ENABLED",
    FleetEventLogMiddleware: "--enable-event-log",
}


def lean(layers: list[Middleware]) -> list[Middleware]:
    """The same middleware in the same order, each where it has work to do, with bodies collected first."""
    found = [Middleware(WholeBody)]
    for layer in layers:
        kind: Any = layer.cls
        if kind in CONCERNS:
            found.append(Middleware(OnlyFor, CONCERNS[kind], layer))
        elif kind not in SWITCHES or os.getenv(SWITCHES[kind]) or SWITCHES[kind] in sys.argv:
            found.append(layer)
    return found


def main() -> None:
    layers = superlink_main._get_middleware
    superlink_main._get_middleware = lambda: lean(layers())
    pragmas: Any = sql_mixin
    pragmas.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("secure_delete", "FAST"))
    flower_superlink()


if __name__ == "__main__":
    main()
