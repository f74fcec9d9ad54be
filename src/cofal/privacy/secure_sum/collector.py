"""The server's part in secure sums: relay keys and shares, say who survived, take the masks off the total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cofal.errors import EnvironmentFault
from cofal.privacy.secure_sum import envelope, lanes, masks, shamir
from cofal.privacy.secure_sum.masks import KEY
from cofal.privacy.secure_sum.roster import Roster


class SumFailed(EnvironmentFault):
    """This round's total is lost, since too few clients answered; the same sum may be asked in a new round."""


class Collector:
    """What the server holds of a session: the public roster. It has no secrets, and no state between rounds."""

    def __init__(self, session: str, keys: Mapping[str, bytes], rounds: int = 64):
        self.roster = Roster(session, rounds, keys)

    def inbox(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
        """What to relay to client `name` of the `Session.shares` of each sender (shares[sender][receiver])."""
        return {sender: given[name] for sender, given in shares.items() if name in given}

    def survivors(self, masked: Iterable[str]) -> list[str]:
        """The clients whose masked numbers arrived, as every one of them is to be told for unmasking."""
        arrived, roster = sorted(masked), self.roster
        if len(arrived) < roster.threshold:
            raise SumFailed(
                f"{len(arrived)} of {len(roster.names)} clients gave their numbers and {roster.threshold} must; "
                "repeat the sum in a new round"
            )
        return arrived

    def total(
        self,
        round: int,
        masked: Mapping[str, np.ndarray],
        unmasked: Mapping[str, bytes],
        shapes: lanes.Shapes,
        question: str = "",
    ) -> dict[str, np.ndarray]:
        """The sum of the survivors' arrays, int64 by name, exact while each total is below 2^31 in absolute value.

        masked: `Session.masked` of each survivor, all asked the same `question`. unmasked: `Session.unmask` of those of
        them that answered again.
        """
        roster, survivors = self.roster, self.survivors(masked)
        layout, words = lanes.layout(shapes, question), lanes.words(shapes) + 1
        for name, array in masked.items():
            if array.shape != (words,) or array.dtype != np.uint64:
                raise SumFailed(
                    f"client {name!r} sent {array.dtype} {array.shape}, not uint64 ({words},); its shapes differ"
                )
        seeds, pair_seeds = self._revealed(round, survivors, unmasked)
        total = np.zeros(words, dtype=np.uint64)
        for name, array in masked.items():
            total += array
            total -= masks.mask(seeds[name], roster.session, round, layout, words)
        for (name, lost), seed in pair_seeds.items():
            shared = masks.mask(seed, roster.session, round, layout, words)
            total = total - shared if name < lost else total + shared
        if total[-1] != len(survivors):
            raise SumFailed(
                f"the masks of round {round} do not cancel: the clients were asked different things, summed arrays of "
                "different shapes, or one sent something else than it was asked for; repeat the sum in a new round, "
                "with the same cofal everywhere"
            )
        return lanes.unpack(total[:-1], shapes)

    def _revealed(
        self, round: int, survivors: list[str], unmasked: Mapping[str, bytes]
    ) -> tuple[dict[str, bytes], dict[tuple[str, str], bytes]]:
        """Each survivor's own seed, and the seed of each pair (survivor, lost client)."""
        roster = self.roster
        lost = [name for name in roster.names if name not in survivors]
        opened = envelope.open_together(
            {name: reply for name, reply in unmasked.items() if name in survivors},
            request=masks.encode(roster.session, round, *survivors),
            survivors=survivors,
            needed=roster.threshold - 1,
            size=KEY * len(roster.names),
        )
        contents = {
            name: np.frombuffer(content, dtype=np.uint8).reshape(-1, KEY)
            for name, content in sorted(opened.items())
            if content is not None
        }
        if len(contents) < roster.threshold:
            spoiled = "" if len(opened) < roster.threshold else " and not all open"
            raise SumFailed(
                f"{len(opened)} of {len(survivors)} clients unmasked round {round}, {roster.threshold} must{spoiled}; "
                "repeat the sum in a new round"
            )
        silent = [name for name in survivors if name not in contents]
        if lost and silent:
            raise SumFailed(
                f"client {lost[0]!r} was lost before the sum and {silent[0]!r} within it: nobody can remove the mask "
                "they have in common; repeat the sum in a new round"
            )
        holders = list(contents)[: roster.threshold]
        points = [roster.names.index(name) for name in holders]
        shares = np.stack([contents[name][: len(survivors)] for name in holders])
        seeds = dict(zip(survivors, (row.tobytes() for row in shamir.join(points, shares))))
        pairs = {
            (name, other): row.tobytes()
            for name, content in contents.items()
            for other, row in zip(lost, content[len(survivors) :])
        }
        return seeds, pairs
