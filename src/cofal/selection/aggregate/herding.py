"""The coordinator's own greedy on kernel coverage: weighted landmarks stand for the rows it never sees.

A pick is known by a direction c and its cosine a to it. With t the cosine of a row x to c, the pick's cosine to x is
about a t (what is left of both beside c is nearly orthogonal in many dimensions), so its kernel value is about
exp(-(2 - 2 a t) / s^2). Landmarks are means of unit rows, so the same formula holds for them on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NONE = -2.0  # in place of a cosine: there is no sample


class Herd:
    """Gains of candidate directions over landmarks, and which client can offer a sample there.

    The gains from landmarks are scaled to the true ones whenever those are told: what is foreseen between two tellings
    is only how much a gain shrinks.
    """

    def __init__(
        self,
        candidates: np.ndarray,
        landmarks: np.ndarray,
        weights: np.ndarray,
        offers: np.ndarray,
        budgets: Sequence[int],
        lengthscale: float,
    ) -> None:
        """candidates (m, d) unit; landmarks (l, d) of `weights` (l,); offers (clients, m, depth) falling cosines."""
        self._cosines = (landmarks @ candidates.T).astype(np.float32)  # (l, m)
        self._weights = weights.astype(np.float32)
        self._sharpness = np.float32(2 / lengthscale**2)
        clients, m, _ = offers.shape
        self._offers = np.concatenate([offers, np.full((clients, m, 1), NONE, np.float32)], axis=2)
        self._used = np.zeros((clients, m), np.int64)  # offers of a client at a candidate that are taken up
        self.left = np.array(budgets, np.int64)
        self._best = np.zeros(len(landmarks), np.float32)  # kernel value of the best pick so far
        self._scale = np.ones(m)
        self.offered = np.zeros(m, np.float32)
        self._values = np.zeros_like(self._cosines)  # (l, m) kernel values if the candidate's offer were picked
        self._gains = np.zeros(m)
        self._renew(np.arange(m))

    def cover(self, candidate: int, cosine: float) -> None:
        """A sample of this cosine to the candidate covers its surroundings."""
        values = self._kernel(self._cosines[:, candidate], np.float32(cosine))
        raised = np.flatnonzero(values > self._best)
        before, after = self._best[raised][:, None], values[raised][:, None]
        lost = np.maximum(self._values[raised], before) - np.maximum(self._values[raised], after)
        lost += after - before  # a value below the old best lost nothing
        self._gains -= (self._weights[raised] @ lost).astype(np.float64)
        self._best[raised] = values[raised]

    def correct(self, true_gains: np.ndarray) -> None:
        """The gains of all candidates over all rows, as they are now."""
        known = np.maximum(self._gains, 0)
        self._scale = np.where(known > 0, true_gains / np.where(known > 0, known, 1), 0)

    def pick(self) -> tuple[int, int, float] | None:
        """(client, candidate, cosine) of the next pick, or nothing when no client with budget left offers a sample.

        Of clients that offer the same, the one with the most budget left is taken: cosines are told coarsely.
        """
        gains = np.where(self.offered > NONE, self._gains * self._scale, -np.inf)
        candidate = int(gains.argmax())
        if self.offered[candidate] == NONE:
            return None
        cosine = float(self.offered[candidate])
        equal = self._heads(np.array([candidate]))[:, 0] == self.offered[candidate]
        client = int(np.where(equal, self.left, 0).argmax())
        self.cover(candidate, cosine)
        self._used[client, candidate] += 1
        self.left[client] -= 1
        self._renew(np.array([candidate]) if self.left[client] else np.arange(len(self.offered)))
        return client, candidate, cosine

    def _renew(self, candidates: np.ndarray) -> None:
        """Find the best offer at these candidates, and what it would gain."""
        self.offered[candidates] = self._heads(candidates).max(0)
        values = self._kernel(self._cosines[:, candidates], self.offered[candidates])
        self._values[:, candidates] = values
        self._gains[candidates] = self._weights @ np.maximum(values - self._best[:, None], 0)

    def _heads(self, candidates: np.ndarray) -> np.ndarray:
        """(clients, candidates) the best cosine that each client with budget left still has to offer."""
        heads = np.take_along_axis(self._offers[:, candidates], self._used[:, candidates, None], axis=2)[:, :, 0]
        return np.where(self.left[:, None] > 0, heads, np.float32(NONE))

    def _kernel(self, cosines: np.ndarray, offered: np.ndarray | np.float32) -> np.ndarray:
        values: np.ndarray = np.exp(
            self._sharpness * np.minimum(offered * cosines - 1, 0)
        )  # above 0 only where NONE is
        return values.astype(np.float32)
