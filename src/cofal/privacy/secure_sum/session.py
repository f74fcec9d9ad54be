"""A client's part in sums of which the server learns only the total: keys, shares, masked numbers, unmasking.

All state is in the session's folder, so that any process of the site may answer the next message. What is about to be
answered is on the disk before the answer is given; the same request gets the same answer, another one is refused.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.files import read_json
from cofal.privacy.private_files import locked, settle, write_private
from cofal.privacy.secure_sum import envelope, identity, lanes, masks, shamir
from cofal.privacy.secure_sum.masks import KEY
from cofal.privacy.secure_sum.roster import Roster

_FOLDER, _SECRET, _ROSTER, _INBOX, _CLOSED = "secure-sums", "secret.json", "roster.json", "inbox.json", "closed.json"


@dataclass(frozen=True)
class Session:
    """One client's side of one session: a fixed roster of clients and up to `rounds` sums.

    `signer` (the site's Ed25519 private key) signs this client's session key. `peers` (name to Ed25519 public key) are
    the only clients this one will sum with, each vouched for by its signature; None trusts the server for that.
    """

    folder: Path  # of this session
    id: str
    name: str
    root: bytes = field(repr=False)  # every secret of this client in this session derives from it
    signer: bytes | None = field(default=None, repr=False)
    peers: Mapping[str, bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: Path | str,
        session: str,
        name: str,
        *,
        signer: bytes | None = None,
        peers: Mapping[str, bytes] | None = None,
    ) -> Session:
        """Open the session called `session` in the site's `folder`, with fresh secrets if it is new."""
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", session):
            raise UserError(f"session name {session!r} is not allowed; use up to 100 letters, digits, '-', '_' and '.'")
        own = Path(folder) / _FOLDER / session
        if (own / _CLOSED).exists():
            raise _over(session, name)
        stands = settle(own / _SECRET, {"name": name, "root": secrets.token_hex(KEY)})
        if stands["name"] != name:
            raise UserError(f"session {session} was started here by {stands['name']!r}, not {name!r}; use a new name")
        return cls(own, session, name, bytes.fromhex(stands["root"]), signer, peers)

    # --- set-up: two round trips a session

    def keys(self) -> bytes:
        """This client's public key for the session (32 bytes), and its signature (64 more) if there is a signer."""
        public = masks.public_key(self._private)
        return public + (identity.sign(self.signer, self.id, self.name, public) if self.signer else b"")

    def shares(self, keys: Mapping[str, bytes], rounds: int) -> dict[str, bytes]:
        """Accept the roster (`keys()` of every client, this one included) for `rounds` sums.

        Returns, for every other client, its shares of this client's own masks, which only that client can read.
        """
        self._check(Roster(self.id, int(rounds), keys))
        said = {"rounds": int(rounds), "keys": {name: bytes(keys[name]).hex() for name in sorted(keys)}}
        self._once(_ROSTER, said, f"session {self.id} already has another list of clients; start one under a new name")
        every = self._own_shares(range(self._roster.rounds))
        return {
            other: envelope.seal(self._share_key(self.name, other), share.tobytes(), self.id, self.name, other)
            for other, share in zip(self._roster.names, every)
            if other != self.name
        }

    def receive(self, sealed: Mapping[str, bytes]) -> None:
        """Keep what the other clients' `shares` gave for this one; of a sender left out, no sum can be unmasked."""
        for sender, content in sealed.items():
            if sender == self.name or sender not in self._roster.keys:
                raise UserError(f"client {sender!r} is no other client of session {self.id}; relay the roster's shares")
            if self._opened(sender, content) is None:
                raise UserError(
                    f"the shares from client {sender!r} do not open at {self.name!r}; start a new session without it"
                )
        said = {sender: bytes(sealed[sender]).hex() for sender in sorted(sealed)}
        self._once(_INBOX, said, f"client {self.name!r} already has other shares in session {self.id}; start a new one")

    # --- each sum: two round trips

    def masked(self, round: int, arrays: Mapping[str, np.ndarray], question: str = "") -> np.ndarray:
        """(words + 1,) uint64: the int32 `arrays` under this round's masks; uniformly random to who lacks the masks.

        Masks cancel between clients that were asked the same `question`, and answer with the same names and shapes. The
        last word counts clients, so that the server notices masks that do not.
        """
        self._in_range(round)
        plain = np.append(lanes.pack(arrays), np.uint64(1))
        layout = lanes.layout({name: array.shape for name, array in arrays.items()}, question)
        # Keyed, since a plain digest of a few counts could be guessed by who reads the record.
        digest = masks.derive(self.root, "input", round, layout, hashlib.sha256(plain.tobytes()).digest()).hex()
        self._once(
            f"masked-{round}.json",
            {"input": digest},
            f"client {self.name!r} has already answered round {round} of session {self.id} with other numbers: "
            "two answers under one mask would tell their difference; ask in a new round",
        )
        total: np.ndarray = plain + self._mask(self._self_seed(round), round, layout, len(plain))
        for other in self._pairs:
            shared = self._mask(self._pair_seed(other, round), round, layout, len(plain))
            total = total + shared if self.name < other else total - shared
        return total

    def unmask(self, round: int, survivors: Sequence[str]) -> bytes:
        """What removes the masks of the sum over `survivors`: readable once a majority was told the same survivors.

        Inside are this client's shares of the survivors' own masks, and the masks it has in common with the others.
        """
        self._in_range(round)
        roster, told = self._roster, sorted(survivors)
        strangers = [name for name in told if name not in roster.keys]
        if strangers or len(set(told)) != len(told) or self.name not in told:
            wrong = (
                f"name {strangers[0]!r}" if strangers else "lack itself" if self.name not in told else "repeat a name"
            )
            raise UserError(
                f"the survivors of round {round} told to client {self.name!r} {wrong}; name those who answered"
            )
        if len(told) < roster.threshold:
            raise UserError(
                f"only {len(told)} of {len(roster.names)} clients survive round {round} and {roster.threshold} must; "
                "repeat the sum in a new round"
            )
        if not (self.folder / f"masked-{round}.json").exists():
            raise UserError(f"client {self.name!r} gave no numbers in round {round}; it cannot be among the survivors")
        inbox = read_json(self.folder / _INBOX) if (self.folder / _INBOX).exists() else {}
        held = {name: self._held_share(name, round, inbox) for name in told}
        self._once(
            f"unmask-{round}.json",
            {"survivors": told},
            f"client {self.name!r} has already unmasked round {round} of session {self.id} for other survivors: "
            "two sets would tell their difference; ask in a new round",
        )
        lost = [self._pair_seed(name, round) for name in roster.names if name not in held]
        request = masks.encode(self.id, round, *told)
        return envelope.close(
            b"".join([*held.values(), *lost]),
            key=masks.derive(self.root, "reply", request),
            request=request,
            name=self.name,
            pairs={name: pair for name, pair in self._pairs.items() if name in held},
            needed=roster.threshold - 1,
        )

    def close(self) -> None:
        """Forget the session's secrets: nobody, this site included, can unmask or answer anything of it again."""
        with locked(self.folder):
            write_private(self.folder / _CLOSED, {"name": self.name})
            for file in self.folder.glob("*.json"):
                if file.name != _CLOSED:
                    file.unlink()

    # --- what derives from the root and the roster

    @cached_property
    def _roster(self) -> Roster:
        if not (self.folder / _ROSTER).exists():
            raise UserError(
                f"client {self.name!r} has no list of clients for session {self.id}; send it the keys first"
            )
        said = read_json(self.folder / _ROSTER)
        keys = {name: bytes.fromhex(key) for name, key in said["keys"].items()}
        if self.peers is not None:  # once more: who is pinned may have changed since
            identity.check(self.peers, self.id, keys)
        return Roster(self.id, said["rounds"], keys)

    @property
    def _private(self) -> bytes:
        return masks.derive(self.root, "x25519")

    @cached_property
    def _pairs(self) -> dict[str, bytes]:
        return masks.agree(self._private, self._roster.points, self.name, self._roster.digest)

    def _share_key(self, sender: str, receiver: str) -> bytes:
        return masks.derive(self._pairs[receiver if sender == self.name else sender], "shares", sender, receiver)

    def _pair_seed(self, other: str, round: int) -> bytes:
        return masks.derive(self._pairs[other], "pair seed", round)

    def _self_seed(self, round: int) -> bytes:
        return masks.derive(self.root, "self seed", self._roster.digest, round)

    def _own_shares(self, rounds: Sequence[int]) -> np.ndarray:
        """(clients, rounds, 32) uint8: every client's share of this client's own seed of each of these rounds."""
        roster, degree = self._roster, self._roster.threshold - 1
        seeds = np.frombuffer(b"".join(map(self._self_seed, rounds)), dtype=np.uint8).reshape(-1, KEY)
        keys = [masks.derive(self.root, "coefficients", roster.digest, round) for round in rounds]
        coefficients = np.stack([masks.stream(key, degree * KEY).reshape(degree, KEY) for key in keys], axis=1)
        return shamir.split(seeds, coefficients, len(roster.names))

    def _opened(self, sender: str, sealed: bytes) -> bytes | None:
        opened = envelope.unseal(self._share_key(sender, self.name), sealed, self.id, sender, self.name)
        return opened if opened is not None and len(opened) == KEY * self._roster.rounds else None

    def _held_share(self, sender: str, round: int, inbox: Mapping[str, str]) -> bytes:
        """This client's share of `sender`'s own seed of the round; `inbox` is what was received."""
        if sender == self.name:
            own: bytes = self._own_shares([round])[self._roster.names.index(sender)].tobytes()
            return own
        opened = self._opened(sender, bytes.fromhex(inbox[sender])) if sender in inbox else None
        if opened is None:
            raise UserError(f"client {self.name!r} holds no shares from {sender!r}; relay them before unmasking")
        return opened[KEY * round : KEY * (round + 1)]

    def _mask(self, seed: bytes, round: int, layout: bytes, words: int) -> np.ndarray:
        return masks.mask(seed, self.id, round, layout, words)

    # --- what is refused

    def _once(self, file: str, said: Any, refusal: str) -> None:
        """Put on record what is about to be answered; refuse if something else stands there."""
        if settle(self.folder / file, said) != said:
            raise UserError(refusal)
        if (self.folder / _CLOSED).exists():  # closed by another process, which took the records with it
            raise _over(self.id, self.name)

    def _in_range(self, round: int) -> None:
        if not 0 <= round < self._roster.rounds:
            raise UserError(
                f"round {round} is not among the {self._roster.rounds} of session {self.id}; start a new session"
            )

    def _check(self, roster: Roster) -> None:
        """What only this client can see of a roster: its own key, the signatures, keys that give no secret."""
        if self.name not in roster.keys:
            raise UserError(f"the list of clients lacks {self.name!r}, who is asked to take part; send the whole list")
        # Without the signature, which only the others need: an earlier version of this site gave none.
        if roster.points[self.name] != masks.public_key(self._private):
            raise UserError(f"the list of clients has another key for {self.name!r} than it gave; relay keys unchanged")
        if self.peers is not None:
            identity.check(self.peers, self.id, roster.keys)
        masks.agree(self._private, roster.points, self.name, roster.digest)


def _over(session: str, name: str) -> UserError:
    return UserError(f"session {session} is over at client {name!r}; start one under a new name")
