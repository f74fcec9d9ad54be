"""A brake on guessing: after some wrong tries within a minute, the next has to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from cofal.errors import CofalError

WINDOW = 60.0  # seconds for which a wrong try counts
_MOST_KEYS = 10_000  # a flood of made-up names must not fill the memory


class TooMany(CofalError):
    """Too many wrong tries; `seconds` until the next is taken."""

    def __init__(self, seconds: float):
        self.seconds = max(1, round(seconds))
        super().__init__(f"too many wrong tries; try again in {self.seconds} s")


class Brake:
    """Wrong tries of late, by key: an address, a name. In memory only; a restart forgets a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._tries: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def check(self, allowed: Mapping[str, int]) -> None:
        """Raise TooMany if any key has reached the number allowed to it."""
        with self._lock:
            now = self._clock()
            for key, most in allowed.items():
                recent = self._recent(key, now)
                if len(recent) >= most:
                    raise TooMany(recent[-most] + WINDOW - now)

    def failed(self, keys: Mapping[str, int]) -> None:
        with self._lock:
            now = self._clock()
            for key in keys:
                recent = self._recent(key, now)
                self._tries.pop(key, None)
                self._tries[key] = [*recent, now]  # the key tried last is also the last in the dictionary
            while len(self._tries) > _MOST_KEYS:
                del self._tries[next(iter(self._tries))]

    def _recent(self, key: str, now: float) -> list[float]:
        return [moment for moment in self._tries.get(key, []) if moment > now - WINDOW]
