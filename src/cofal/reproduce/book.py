"""The records of one table or figure, looked up by set, split and system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cofal.evaluation.curves import Curves, coordination_gap, gap_over_seeds
from cofal.evaluation.statistics import Estimate
from cofal.reproduce.grid import Experiment
from cofal.reproduce.naming import method_of
from cofal.reproduce.records import Record
from cofal.reproduce.scales import Scale


class Book:
    """An experiment with all its records."""

    def __init__(self, experiment: Experiment, scale: Scale, records: Sequence[Record]):
        self.experiment, self.scale, self.records = experiment, scale, list(records)
        self.sets = _in_order(record.cell.set for record in records)
        self.splits = _in_order(record.cell.on.name for record in records)
        self.systems = _in_order(record.cell.system for record in records)
        self.methods = _in_order(map(method_of, self.systems))
        self._lines: dict[tuple[str, str, str], list[Record]] = {}
        for record in sorted(records, key=lambda each: each.cell.seed):
            line = (record.cell.set, record.cell.on.name, record.cell.system)
            self._lines.setdefault(line, []).append(record)

    def of(self, set_name: str, split: str, system: str, clients: int | None = None) -> list[Record]:
        """The records of one line of a table, in the order of the seeds."""
        chosen = self._lines.get((set_name, split, system), [])
        return [record for record in chosen if clients in (None, record.cell.clients)]

    def curves(self, set_name: str, split: str, system: str) -> Curves | None:
        """Accuracy in percent by seed and budget; None where the grid has no such cells."""
        found = self.of(set_name, split, system)
        if not found:
            return None
        return Curves(list(found[0].cell.budgets), [[100 * value for value in record.accuracy] for record in found])

    def gap(self, set_name: str, split: str, better: str, other: str) -> Estimate | None:
        """The empirical coordination gap (%) over seeds."""
        first, second = self.curves(set_name, split, better), self.curves(set_name, split, other)
        return None if first is None or second is None else gap_over_seeds(first, second)

    def gaps(self, set_name: str, split: str, better: str, other: str) -> list[float]:
        """The empirical coordination gap (%) of each seed."""
        first, second = self.curves(set_name, split, better), self.curves(set_name, split, other)
        if first is None or second is None:
            return []
        return [coordination_gap(first.budgets, a, b) for a, b in zip(first.accuracy, second.accuracy)]

    def title(self, set_name: str) -> str:
        """What the set is called, and how many of its rows are looked at if not all."""
        plan = self.scale.sets[set_name]
        rows = next((each.cell.rows for each in self.records if each.cell.set == set_name), None) or plan.limit
        return f"{plan.title}, {rows:,} rows" if rows else plan.title

    def paper_set(self, set_name: str) -> str:
        return self.scale.sets[set_name].paper

    def pair(self, method: str) -> tuple[str, str]:
        """The two systems that a gap is taken between, for one selector."""
        better, other = (system.replace("{method}", method) for system in self.experiment.pair)
        return better, other


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
