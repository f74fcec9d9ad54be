"""What a phase exchanged, counted at the server: bytes, messages, round trips, by site and kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Traffic:
    """What a phase exchanged, seen from the server: payload bytes and round trips.

    `left`: site -> kind of what it sent, by its own declaration -> messages, bytes up, bytes down.
    """

    up: int = 0
    down: int = 0
    round_trips: int = 0
    left: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    def add(self, site: str, kind: str, **numbers: int) -> None:
        """Count what one site sent of one kind."""
        counted = self.left.setdefault(site, {}).setdefault(kind, {"messages": 0, "up": 0, "down": 0})
        for name, value in numbers.items():
            counted[name] += value

    def count_on(self, earlier: Mapping[str, Any]) -> None:
        """Add what an earlier process of the same run had counted."""
        for name in ("up", "down", "round_trips"):
            setattr(self, name, getattr(self, name) + earlier[name])
        for site, kinds in earlier.get("left", {}).items():
            for kind, counted in kinds.items():
                self.add(site, kind, **counted)
