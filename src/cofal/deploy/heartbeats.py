"""A site's heartbeats, in a thread of their own, so that a long computation does not look like a lost site."""

from __future__ import annotations

import threading

from cofal.deploy.fleet_api import HEARTBEAT, FleetConnection, Unreachable
from cofal.errors import CofalError


class Heartbeats:
    """Sent as long as the block lasts; `failure` is what the server said instead of taking one."""

    def __init__(self, connection: FleetConnection):
        self._connection, self._over = connection, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self.failure: CofalError | None = None

    def __enter__(self) -> Heartbeats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=6.0)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT * 0.5):
            try:
                self._connection.heartbeat()
            except Unreachable:
                continue  # the main thread meets the same and says so
            except CofalError as error:
                self.failure = error
                return
