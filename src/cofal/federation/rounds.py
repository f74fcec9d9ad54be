"""Federated rounds: one loop for every phase that trains, around any Flower strategy, with checkpoints."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation.answers import Answers, is_statistic
from cofal.federation.fleet import Fleet
from cofal.learning.state import load_arrays, save_arrays

Arrays = dict[str, np.ndarray]

_STRATEGIES: dict[str, type[flower.FedAvg]] = {
    "fedavg": flower.FedAvg,
    "fedprox": flower.FedProx,
    "fedavgm": flower.FedAvgM,
    "fedadagrad": flower.FedAdagrad,
    "fedadam": flower.FedAdam,
    "fedyogi": flower.FedYogi,
    "fedmedian": flower.FedMedian,
    "fedtrimmedavg": flower.FedTrimmedAvg,
    "krum": flower.Krum,
    "multikrum": flower.MultiKrum,
    "bulyan": flower.Bulyan,
}
# These see every site's answer and decide by vote; the others start from the weighted mean, and need only that.
_VOTING = (flower.FedMedian, flower.FedTrimmedAvg, flower.MultiKrum, flower.Bulyan)

_PORTION = 2**20  # bytes of a model that a server optimiser works on at once: its steps take many copies
_SPEAK = 5.0  # seconds between two lines of the log

log = logging.getLogger("cofal")
logging.getLogger("flwr").setLevel(logging.WARNING)


def make_strategy(name: str, options: Mapping[str, float]) -> flower.FedAvg:
    """Flower's strategy of that name, asking all sites that are there in every round."""
    kind = _STRATEGIES[name]
    whole = {"num_malicious_nodes", "num_nodes_to_select"}
    arguments: dict[str, Any] = {key: int(value) if key in whole else value for key, value in options.items()}
    try:
        return kind(
            fraction_train=1.0, min_train_nodes=1, min_available_nodes=1,
            arrayrecord_key=m.ARRAYS, configrecord_key=m.CONFIG, weighted_by_key=m.EXAMPLES, **arguments,
        )  # fmt: skip
    except TypeError as error:
        raise UserError(f"strategy {name} does not take {dict(options)}: {error}") from None


def train_rounds(
    fleet: Fleet,
    strategy: flower.FedAvg,
    arrays: Arrays,
    *,
    rounds: int,
    config: Callable[[int], Mapping[str, Any]],
    checkpoint: Path,
    pause: float = 0.0,
    on_resume: Callable[[int], None] = lambda last: None,
    on_round: Callable[[int, Arrays, dict[str, Any]], None] = lambda number, arrays, metrics: None,
) -> Arrays:
    """Run rounds 1..`rounds` from `arrays`, or go on from `checkpoint`; returns the final arrays.

    `config(r)` is what the clients are told in round r. `on_round(r, arrays, metrics)` sees every finished round before
    its checkpoint is written, `on_resume(last)` the round to go on from (0 at the start). `pause`: seconds between two
    checkpoints; 0 writes one every round. The order of answers changes no bit. A site that comes late, or comes back,
    takes part from the next round on.
    """
    done = 0
    if checkpoint.exists():
        saved, done = _load(checkpoint, strategy)
        arrays = {name: saved[name] for name in arrays}  # in the model's own order, which a file does not keep
    on_resume(done)
    kinds = {name: array.dtype for name, array in arrays.items()}
    saved_at = spoken = time.monotonic()
    for number in range(done + 1, rounds + 1):
        clock = time.monotonic()
        fleet.muster()
        arrays, metrics = _round(fleet, strategy, arrays, number, config(number), checkpoint.parent)
        arrays = _cast(arrays, kinds)
        on_round(number, arrays, metrics)
        if number == rounds or time.monotonic() - saved_at >= pause:
            _save(checkpoint, strategy, arrays, number)
            saved_at = time.monotonic()
        seconds = time.monotonic() - clock
        fleet.standing.round(number, rounds, seconds)
        if number == rounds or time.monotonic() - spoken >= _SPEAK:
            spoken, left = time.monotonic(), (rounds - number) * seconds
            log.info("round %d of %d, loss %.3f, about %.0f s left", number, rounds, metrics.get("loss", 0.0), left)
    return arrays


def _round(
    fleet: Fleet, strategy: flower.FedAvg, arrays: Arrays, number: int, config: Mapping[str, Any], folder: Path
) -> tuple[Arrays, dict[str, Any]]:
    """What the strategy makes of the sites' answers to `arrays`, and their mean metrics."""
    if hasattr(strategy, "current_arrays"):
        strategy.current_arrays = None  # taken anew from what is sent, so that a resumed run computes the same bits
    members = fleet.members.values()
    outgoing = strategy.configure_train(
        number,
        m.to_arrayrecord(arrays),
        ConfigRecord(dict(config)),
        cast(Grid, _Roster([each.node for each in members])),
    )
    if isinstance(getattr(strategy, "current_arrays", None), dict):
        strategy.current_arrays = arrays  # type: ignore[attr-defined]  # instead of Flower's copy of them
    contents = {message.metadata.dst_node_id: message.content for message in outgoing}
    with Answers(arrays, {each.name: each.samples for each in members}, folder) as answers:
        fleet.ask(m.TRAIN, {each.name: contents[each.node] for each in members}, answers.take)
        del contents, outgoing
        if sum(array.nbytes for array in arrays.values()) > _PORTION:
            gc.collect()  # Flower's records hold each other: the model as it was sent would stay
        if not answers.names:
            raise CofalError("no site has a sample to train on yet; label some of the asked samples first")
        metrics = answers.mean_metrics()
        if isinstance(strategy, _VOTING):  # also on BatchNorm's statistics: a hostile variance spoils a model as well
            return _merged(strategy, number, list(answers.each())), metrics
        if type(strategy) in (flower.FedAvg, flower.FedProx):
            return answers.mean(list(arrays)), metrics
        return _optimised(strategy, number, arrays, answers), metrics


def _optimised(strategy: flower.FedAvg, number: int, arrays: Arrays, answers: Answers) -> Arrays:
    """A server optimiser's step from the mean of the answers, a portion at a time: it works number by number.

    Not on BatchNorm's statistics: no such step makes sense for a running variance, so the mean stands.
    """
    weights = {name: array for name, array in arrays.items() if not is_statistic(name)}
    found = answers.mean([name for name in arrays if is_statistic(name)])
    found |= {name: np.empty_like(array) for name, array in weights.items()}
    as_records = isinstance(strategy.current_arrays, ArrayRecord)  # type: ignore[attr-defined]
    state: dict[str, Arrays] = {attribute: getattr(strategy, attribute) or {} for attribute in _state_of(strategy)}
    first = {attribute for attribute, held in state.items() if not held}
    means: Arrays = {}
    for portion in _portions(weights):
        if portion.keys() != means.keys():
            means = answers.mean(list(portion))
        sent = _part(weights, portion)
        strategy.current_arrays = m.to_arrayrecord(sent) if as_records else sent  # type: ignore[attr-defined]
        for attribute, held in state.items():
            part = {} if attribute in first else _part(held, portion)
            setattr(strategy, attribute, (list(part.values()) if attribute in _LISTS else part) or None)
        merged = _merged(strategy, number, [answers.as_one(_part(means, portion))])
        for name, span in portion.items():
            found[name].reshape(-1)[span] = merged[name]
        for attribute, held in state.items():
            made = getattr(strategy, attribute) or {}
            for name, values in zip(portion, made) if isinstance(made, list) else made.items():
                whole = held.setdefault(name, np.empty(weights[name].shape, dtype=values.dtype))
                whole.reshape(-1)[portion[name]] = values
    for attribute, held in state.items():
        setattr(strategy, attribute, held)
    return found


def _portions(arrays: Arrays) -> Iterator[dict[str, slice]]:
    """All numbers of the arrays in portions of bounded size: several small arrays, or a stretch of a large one."""
    small: dict[str, slice] = {}
    for name, array in arrays.items():
        if array.nbytes > _PORTION:
            step = _PORTION // array.itemsize
            yield from ({name: slice(start, start + step)} for start in range(0, array.size, step))
            continue
        small[name] = slice(None)
        if sum(arrays[each].nbytes for each in small) > _PORTION:
            yield small
            small = {}
    if small:
        yield small


def _part(arrays: Arrays, portion: Mapping[str, slice]) -> Arrays:
    return {name: arrays[name].reshape(-1)[span] for name, span in portion.items()}


def _merged(strategy: flower.FedAvg, number: int, replies: list[Message]) -> Arrays:
    merged, _ = strategy.aggregate_train(number, replies)
    if merged is None:
        raise CofalError(f"round {number} could not be aggregated from {len(replies)} answers; see the log")
    return {name: m.read_array(array) for name, array in merged.items()}


class _Roster:
    """The part of a Grid that a strategy looks at: who is there. The sites are the fleet's, not all that connected."""

    def __init__(self, nodes: list[int]):
        self._nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self._nodes


def _cast(arrays: Arrays, kinds: Mapping[str, np.dtype]) -> Arrays:
    """Back to the model's own types; averaged counters are rounded."""
    return {
        name: (np.rint(arrays[name]) if np.issubdtype(kind, np.integer) else arrays[name]).astype(kind, copy=False)
        for name, kind in kinds.items()
    }


# The state of Flower's server optimisers that a resumed run needs, between rounds by the names of the arrays; while
# Flower works on it, that of _LISTS is a list.
_OPTIMISER_STATE = ("m_t", "v_t", "momentum_vector")
_LISTS = ("momentum_vector",)


def _state_of(strategy: flower.FedAvg) -> list[str]:
    return [attribute for attribute in _OPTIMISER_STATE if hasattr(strategy, attribute)]


def _save(path: Path, strategy: flower.FedAvg, arrays: Arrays, number: int) -> None:
    tensors = {f"model/{name}": array for name, array in arrays.items()}
    for attribute in _state_of(strategy):
        held = getattr(strategy, attribute) or {}
        tensors.update({f"{attribute}/{key}": value for key, value in held.items()})
    save_arrays(path, tensors, {"round": str(number)})


def _load(path: Path, strategy: flower.FedAvg) -> tuple[Arrays, int]:
    tensors, metadata = load_arrays(path)
    for attribute in _OPTIMISER_STATE:
        held = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{attribute}/")}
        if held:
            setattr(strategy, attribute, held)
    arrays = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith("model/")}
    return arrays, int(metadata["round"])
