"""The answers of one training round: checked as they arrive, kept on disk where they are large, read in name order."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from cofal.errors import CofalError
from cofal.federation import messages as m
from cofal.federation.fleet import Unusable
from cofal.files import write_fault

Arrays = dict[str, np.ndarray]

IN_MEMORY = 32 * 2**20  # bytes of answers of one round beyond which they wait in a file
# How far the norm of all weights may grow in one round. Honest training stays within a few times; what is sent to spoil
# the model and stays below this is for a robust strategy to outvote.
GROWTH = 30.0
STATISTICS_GROWTH = 1e4  # BatchNorm's statistics start at 0 and 1 and may move far in the first round
_USUAL_WEIGHT = 0.1  # a model of zeros may grow to GROWTH times weights of this size

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_statistic(name: str) -> bool:
    """Is this array one of BatchNorm's buffers?"""
    return name.rpartition(".")[2] in _STATISTICS


@dataclass(frozen=True)
class Answer:
    """One site's answer: its weight in an average, its metrics, and where its arrays are."""

    examples: int
    metrics: dict[str, float]
    start: int  # position of its first array in the file


class Answers:
    """Collects a round. `take` is what `Fleet.ask` reads each answer with; the rest is for when all are in.

    Sums are taken over the sites in the order of their names, array by array, so that neither the order of arrival nor
    what is kept where changes a bit, and so that no more than one array a site is in memory.
    """

    def __init__(self, sent: Arrays, samples: Mapping[str, int], folder: Path):
        self._sent, self._samples, self._folder = sent, samples, folder
        self._limits = {
            statistic: _limit(sent, statistic) for statistic in (False, True)
        }  # largest norms of weights and statistics
        self._offsets: dict[str, int] = {}
        self._size = 0
        for name, array in sent.items():
            self._offsets[name] = self._size
            self._size += array.nbytes
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder))  # noqa: SIM115  (see close)
        self._kept: dict[str, Answer] = {}
        self._end = 0

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, name: str, content: RecordDict) -> Answer:
        """Check an answer and keep it; raises `Unusable` with what is wrong with it."""
        answer = Answer(*_numbers(m.metrics_of(content), self._samples[name]), self._end)
        record = content.array_records.get(m.ARRAYS)
        if record is None or set(record) != set(self._sent):
            raise Unusable("it does not hold the arrays of the model")
        squares = {False: 0.0, True: 0.0}
        try:
            self._file.seek(self._end)
            for key, sent in self._sent.items():
                array = m.read_array(record[key])
                squares[is_statistic(key)] += _checked(key, array, sent)
                self._file.write(np.ascontiguousarray(array).data if array.size else b"")
        except OSError as error:
            raise write_fault(self._folder, error) from error
        for statistic, square in squares.items():
            if not math.sqrt(square) <= self._limits[statistic]:
                what = "statistics" if statistic else "weights"
                raise Unusable(
                    f"its {what} have norm {math.sqrt(square):.3g}, above {self._limits[statistic]:.3g}, the most that "
                    "one round may bring"
                )
        if answer.examples > 0:
            self._kept[name] = answer
            self._end += self._size
        return answer

    @property
    def names(self) -> list[str]:
        """The sites that had samples to train on, sorted."""
        return sorted(self._kept)

    def mean(self, keys: list[str]) -> Arrays:
        """The means of these arrays over the sites, weighted by examples: weights in their own type, statistics in
        float64."""
        total = sum(answer.examples for answer in self._kept.values())
        found = {}
        for key in keys:
            summed: Any = None
            for name in self.names:
                array = self._read(name, key)
                part = (array.astype(np.float64) if is_statistic(key) else array) * (self._kept[name].examples / total)
                summed = part if summed is None else np.add(summed, part, out=summed if summed.ndim else None)
            found[key] = np.asarray(summed)
        return found

    def mean_metrics(self) -> dict[str, float]:
        total = sum(answer.examples for answer in self._kept.values())
        found: dict[str, float] = {}
        for name in self.names:
            answer = self._kept[name]
            for key, value in answer.metrics.items():
                found[key] = found.get(key, 0.0) + value * (answer.examples / total)
        return found

    def as_one(self, means: Arrays) -> Message:
        """`means` as if one site had sent them: all that a strategy which starts there needs."""
        total = sum(answer.examples for answer in self._kept.values())
        return _message(means, {m.EXAMPLES: total, **self.mean_metrics()})

    def each(self) -> Iterator[Message]:
        """Every site's answer, in name order, for a strategy that needs them all."""
        for name in self.names:
            answer = self._kept[name]
            yield _message(
                {key: self._read(name, key) for key in self._sent}, {m.EXAMPLES: answer.examples, **answer.metrics}
            )

    def _read(self, name: str, key: str) -> np.ndarray:
        kind, shape = self._sent[key].dtype, self._sent[key].shape
        self._file.seek(self._kept[name].start + self._offsets[key])
        content = self._file.read(self._sent[key].nbytes)
        if len(content) != self._sent[key].nbytes:
            raise CofalError(f"the file that keeps a round's answers in {self._folder} was cut short; run again")
        return np.frombuffer(content, dtype=kind).reshape(shape)


def _message(arrays: Arrays, metrics: Mapping[str, float]) -> Message:
    return Message(m.pack(arrays=arrays, metrics=metrics), dst_node_id=1, message_type=m.TRAIN)


def _limit(sent: Arrays, statistic: bool) -> float:
    arrays = [
        array for name, array in sent.items() if is_statistic(name) == statistic and array.dtype.kind == "f"
    ]  # counters may be as large as they like
    norm = math.sqrt(sum(_square(array) for array in arrays))
    size = math.sqrt(sum(array.size for array in arrays))
    return STATISTICS_GROWTH * max(norm, size) if statistic else GROWTH * max(norm, _USUAL_WEIGHT * size)


def _square(array: np.ndarray) -> float:
    """The sum of squares, in float64, or inf."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        return float(
            sum(np.square(flat[start : start + 65536], dtype=np.float64).sum() for start in range(0, flat.size, 65536))
        )


def _checked(key: str, array: np.ndarray, sent: np.ndarray) -> float:
    """The array's sum of squares, if it is what was asked for; counters count nothing."""
    if array.shape != sent.shape or array.dtype != sent.dtype:
        raise Unusable(f"{key} is {array.dtype} {array.shape}, not {sent.dtype} {sent.shape}")
    if array.dtype.kind != "f":
        if array.size and int(array.min()) < 0:
            raise Unusable(f"{key} counts below zero")
        return 0.0
    if not np.isfinite(array).all():
        raise Unusable(f"{key} holds NaN or infinite values")
    if key.endswith("running_var") and array.size and float(array.min()) < 0:
        raise Unusable(f"{key} holds a negative variance")
    return _square(array)


def _numbers(metrics: Mapping[str, Any], samples: int) -> tuple[int, dict[str, float]]:
    """The weight of an answer and its other metrics."""
    examples = metrics.get(m.EXAMPLES)
    if not isinstance(examples, int) or not 0 <= examples <= samples:
        raise Unusable(f"it says it trained on {str(examples)[:40]} samples; the site has {samples}")
    loss = metrics.get("loss")
    if set(metrics) != {m.EXAMPLES, "loss"} or not isinstance(loss, (int, float)) or not math.isfinite(loss):
        raise Unusable(f"its loss is {str(loss)[:40]}")
    return examples, {"loss": float(loss)}
