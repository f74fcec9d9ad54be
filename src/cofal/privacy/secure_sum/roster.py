"""Who takes part in a session of secure sums: names, public keys, rounds, and how many must answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cofal.errors import UserError
from cofal.privacy.secure_sum import shamir
from cofal.privacy.secure_sum.identity import SIGNATURE
from cofal.privacy.secure_sum.masks import KEY, encode

FEWEST, MOST, MOST_ROUNDS = 3, shamir.MOST, 256


@dataclass(frozen=True)
class Roster:
    """The clients of a session, checked for what both the server and a client can see of them."""

    session: str
    rounds: int
    keys: Mapping[str, bytes]  # by name: 32 bytes, or 96 with a signature

    def __post_init__(self) -> None:
        count = len(self.keys)
        if count < FEWEST:
            raise UserError(
                f"a secure sum needs at least {FEWEST} clients, and {count} take part: fewer would tell each other "
                "what they hold; add clients or switch secure sums off"
            )
        if count > MOST:
            raise UserError(f"a secure sum takes at most {MOST} clients, not {count}; sum groups of them")
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise UserError(f"{self.rounds} rounds in a session; choose 1 to {MOST_ROUNDS}")
        for name, key in self.keys.items():
            if len(key) not in (KEY, KEY + SIGNATURE):
                raise UserError(
                    f"the key of client {name!r} has {len(key)} bytes; {KEY} are due, or {KEY + SIGNATURE} if signed"
                )

    @cached_property
    def names(self) -> list[str]:
        return sorted(self.keys)

    @cached_property
    def points(self) -> dict[str, bytes]:
        """The public keys without signatures."""
        return {name: bytes(self.keys[name][:KEY]) for name in self.names}

    @property
    def threshold(self) -> int:
        """How many clients must answer: a majority, so that two different sets of survivors never both get answers."""
        return len(self.keys) // 2 + 1

    @cached_property
    def digest(self) -> bytes:
        """Goes into every pair key: clients that were told different rosters do not understand one another."""
        listed = [part for item in self.points.items() for part in item]
        return hashlib.sha256(encode("cofal roster 1", self.session, self.rounds, *listed)).digest()
