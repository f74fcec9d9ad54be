"""What noised counts have cost in privacy so far, kept in a site's file, and the halt when the budget is spent."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.files import read_json
from cofal.privacy.counting_noise import GAUSSIAN, LAPLACE, LARGEST
from cofal.privacy.policy import CountNoise
from cofal.privacy.private_files import locked, write_private

# What leaves with the counts and has no part in their guarantee; docs/secure-sums.md says more.
UNCOVERED = (
    *("centroids and means of cells", "sums, and which are zeros", "distances and cosines", "gains", "radius and blur"),
    *("the number of samples", "the encoder", "which samples are picked"),
)
SECRET = "noise.json"  # beside the account: what the noise of all answers is drawn from
_CHARGE = ("answer", "mechanism", "parameter", "times")
LEAST_DELTA = 1e-12  # below it, rounding in the composition would weigh as much as delta itself
_LOST = "restore it from a backup: deleting it would forget what was spent"
MEANINGLESS = 100.0  # epsilon: from here on a coarse bound will do, and exact losses would overflow


class Accountant:
    """Counts the cost of every noised count against a budget (epsilon, delta).

    Two data sets are neighbours if one has one sample more. That sample changes a count by one, and `times` is how many
    noised counts it can change in all: 1 in a table of cluster sizes, the number of balls it may lie in where balls
    overlap, and twice that if neighbours shall be data sets in which one sample was replaced by another. It holds only
    if clusters and balls are given, not found from the samples, and if nothing is done to the counts before the noise.
    """

    def __init__(self, file: Path | str, *, epsilon: float, delta: float):
        self.file, self.epsilon, self.delta = Path(file), float(epsilon), float(delta)
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"privacy budget epsilon = {epsilon} must be above 0; 1 is a usual choice")
        if self.delta != 0 and not LEAST_DELTA <= self.delta < 1:
            raise UserError(
                f"privacy budget delta = {delta} must be 0, or {LEAST_DELTA:g} to 1; 1e-6 is a usual choice"
            )

    def spend(self, mechanism: str, parameter: float, times: int = 1, *, answer: str = "") -> None:
        """Charge for an answer before it is given; raises, and charges nothing, if the budget does not suffice.

        `answer` names it: that name is charged once, so that an answer repeated byte for byte costs nothing more.
        """
        if mechanism not in (LAPLACE, GAUSSIAN):
            raise UserError(f"unknown noise {mechanism!r}; known: {LAPLACE}, {GAUSSIAN}")
        if not (0 < parameter <= LARGEST and times >= 1):
            raise UserError(
                f"noise {parameter} on {times} counts: give a parameter above 0, up to {LARGEST}, and 1 or more"
            )
        new = {"answer": answer, "mechanism": mechanism, "parameter": float(parameter), "times": int(times)}
        with locked(self.file.parent):
            entries = self._entries()
            before = [entry for entry in entries if answer and entry["answer"] == answer]
            if before:
                if before[0] != new:
                    raise UserError(f"answer {answer!r} was given before with other noise; ask under a new name")
                return
            cost = _epsilon(_grouped([*entries, new]), self.delta)
            if cost > self.epsilon:
                raise UserError(
                    f"privacy budget spent: this answer would bring epsilon to {cost:.4g} at delta {self.delta:g}, "
                    f"above the budget of {self.epsilon:g}; the site's owner may raise it, or ask with more noise"
                )
            write_private(self.file, {"answers": [*entries, new]})

    def spent(self) -> float:
        """Epsilon of all answers so far, at the budget's delta."""
        return _epsilon(_grouped(self._entries()), self.delta)

    def kinds(self) -> list[dict[str, Any]]:
        """What was charged, by kind of noise: mechanism, parameter, answers, and the counts a sample could change."""
        entries = self._entries()
        return [
            {
                "mechanism": mechanism,
                "parameter": parameter,
                "answers": sum((e["mechanism"], e["parameter"]) == (mechanism, parameter) for e in entries),
                "times": times,
            }
            for mechanism, parameter, times in _grouped(entries)
        ]

    def _entries(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            if self.file.with_name(SECRET).exists():  # it is made after the first charge: there was one
                raise UserError(f"{self.file} is gone, and with it what was spent; restore it from a backup")
            return []
        try:
            found = [{key: entry[key] for key in _CHARGE} for entry in read_json(self.file, _LOST)["answers"]]
        except (KeyError, TypeError):
            raise UserError(f"{self.file} is no list of answers; {_LOST}") from None
        return found


def site_account(folder: Path, noise: CountNoise) -> Accountant:
    """The account of the counts that left the site in `folder`, against the budget of its policy."""
    return Accountant(Path(folder) / "privacy" / "spent.json", epsilon=noise.epsilon, delta=noise.delta)


Spending = tuple[tuple[str, float, int], ...]  # mechanism, parameter, how many counts


def _grouped(entries: list[dict[str, Any]]) -> Spending:
    counted: dict[tuple[str, float], int] = {}
    for entry in entries:
        kind = (entry["mechanism"], entry["parameter"])
        counted[kind] = counted.get(kind, 0) + entry["times"]
    return tuple((*kind, times) for kind, times in sorted(counted.items()))


@lru_cache(maxsize=64)
def _epsilon(spending: Spending, delta: float) -> float:
    """An upper bound, within about 1e-3 of its value, on epsilon at `delta` of all this noise together.

    The distribution of the privacy loss is composed numerically. The discrete Laplace needs it as it is: at sensitivity
    one its loss is always +-1/scale, more than the continuous one's, so formulas for the latter would be too kind.
    """
    if not spending:
        return 0.0
    bound = _closed_bound(spending, delta)
    if delta == 0 or bound > MEANINGLESS:
        return bound
    from dp_accounting.pld import privacy_loss_distribution as losses  # slow to import, and needed only here

    # Rounded up to a grid: a step in proportion to the result bounds time and memory, whatever the noise.
    options: dict[str, Any] = {"value_discretization_interval": 1e-4 * bound, "use_connect_dots": True}
    together = losses.identity(value_discretization_interval=1e-4 * bound)
    for mechanism, parameter, times in spending:
        if mechanism == LAPLACE:
            one = losses.from_discrete_laplace_mechanism(1 / parameter, **options)
        else:
            one = losses.from_discrete_gaussian_mechanism(parameter, **options)
        together = together.compose(one.self_compose(times))
    return min(bound, float(together.get_epsilon_for_delta(delta)))


def _closed_bound(spending: Spending, delta: float) -> float:
    """Epsilon by adding up: pure privacy of Laplace noise, or concentrated privacy of both kinds, whichever is less."""
    pure = sum(times / parameter if mechanism == LAPLACE else math.inf for mechanism, parameter, times in spending)
    if delta == 0:
        return pure
    rho = sum(times / (2 * parameter**2) for _, parameter, times in spending)
    return min(pure, rho + 2 * math.sqrt(rho * math.log(1 / delta)))
