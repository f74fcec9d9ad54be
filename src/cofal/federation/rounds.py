"""Federated rounds: one loop for every phase that trains, around any Flower strategy, with checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
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
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

logging.getLogger("flwr").setLevel(logging.WARNING)


def make_strategy(name: str, options: Mapping[str, float], sites: int) -> flower.FedAvg:
    """Flower's strategy of that name, asking all `sites` in every round."""
    kind = _STRATEGIES[name]
    whole = {"num_malicious_nodes", "num_nodes_to_select"}
    arguments: dict[str, Any] = {key: int(value) if key in whole else value for key, value in options.items()}
    try:
        return kind(
            fraction_train=1.0, min_train_nodes=sites, min_available_nodes=sites,
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
    checkpoints; 0 writes one every round. The order of answers changes no bit.
    """
    done = 0
    if checkpoint.exists():
        saved, done = _load(checkpoint, strategy)
        arrays = {name: saved[name] for name in arrays}  # in the model's own order, which a file does not keep
    on_resume(done)
    kinds = {name: array.dtype for name, array in arrays.items()}
    saved_at = time.monotonic()
    for number in range(done + 1, rounds + 1):
        if hasattr(strategy, "current_arrays"):
            strategy.current_arrays = None  # taken anew from what is sent, so that a resumed run computes the same bits
        outgoing = strategy.configure_train(
            number, m.to_arrayrecord(arrays), ConfigRecord(dict(config(number))), fleet.grid
        )
        replies = [
            reply for reply in fleet.exchange_round(list(outgoing)) if m.metrics_of(reply.content)[m.EXAMPLES] > 0
        ]
        if not replies:
            raise CofalError("no site has a sample to train on yet; label some of the asked samples first")
        buffers = _mean_buffers(
            [(r.content.array_records[m.ARRAYS], m.metrics_of(r.content)[m.EXAMPLES]) for r in replies]
        )
        merged, metrics = strategy.aggregate_train(number, replies)
        if merged is None:
            raise CofalError(f"round {number} could not be aggregated; see the log")
        arrays = _cast({**_plain(merged), **buffers}, kinds)
        on_round(number, arrays, dict(metrics or {}))
        if number == rounds or time.monotonic() - saved_at >= pause:
            _save(checkpoint, strategy, arrays, number)
            saved_at = time.monotonic()
    return arrays


def _plain(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _mean_buffers(states: list[tuple[ArrayRecord, float]]) -> Arrays:
    """BatchNorm statistics by the weighted mean: no server optimiser or vote makes sense for a running variance."""
    names = [name for name in states[0][0] if name.rpartition(".")[2] in _BUFFERS]
    total = sum(weight for _, weight in states)
    return {
        name: np.asarray(sum(record[name].numpy().astype(np.float64) * (weight / total) for record, weight in states))
        for name in names
    }


def _cast(arrays: Arrays, kinds: Mapping[str, np.dtype]) -> Arrays:
    """Back to the model's own types; averaged counters are rounded."""
    return {
        name: (np.rint(arrays[name]) if np.issubdtype(kind, np.integer) else arrays[name]).astype(kind)
        for name, kind in kinds.items()
    }


# The state of Flower's server optimisers that a resumed run needs: dicts of arrays, or a list of them.
_OPTIMISER_STATE = ("m_t", "v_t", "momentum_vector")


def _save(path: Path, strategy: flower.FedAvg, arrays: Arrays, number: int) -> None:
    tensors = {f"model/{name}": array for name, array in arrays.items()}
    for attribute in _OPTIMISER_STATE:
        held = getattr(strategy, attribute, None) or {}
        entries = held.items() if isinstance(held, dict) else enumerate(held)
        tensors.update({f"{attribute}/{key}": value for key, value in entries})
    save_arrays(path, tensors, {"round": str(number)})


def _load(path: Path, strategy: flower.FedAvg) -> tuple[Arrays, int]:
    tensors, metadata = load_arrays(path)
    for attribute in _OPTIMISER_STATE:
        held = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{attribute}/")}
        if held:
            # safetensors sorts its keys: a list is put back by its numbers
            as_list = attribute == "momentum_vector"
            setattr(strategy, attribute, [held[str(i)] for i in range(len(held))] if as_list else held)
    arrays = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith("model/")}
    return arrays, int(metadata["round"])
