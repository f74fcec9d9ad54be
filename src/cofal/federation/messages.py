"""What crosses the line between server and clients: record names, message types, packing into Flower records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

# Record names; Flower's strategies expect the first two under these names.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
# The weight of a reply in an average.
EXAMPLES = "num-examples"

# Codes of error replies: Flower's own for an exception in a ClientApp, and ours for a request the site refuses.
CLIENT_RAISED, REFUSED = 2, 1002

# Message types. Flower's strategies send plain "train" and "evaluate"; `config["job"]` says what to train or evaluate.
TRAIN, EVALUATE = "train", "evaluate"
DESCRIBE = "query.describe"  # who are you, how many samples, which classes
EMBED = "query.embed"  # embed your images with this encoder; share the embeddings or only keep them
PICK = "query.pick"  # select alone, at the site
ASSIGN = "query.assign"  # these of your samples are to be labelled


def pack(
    arrays: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float | int] | None = None,
) -> RecordDict:
    """Plain values as Flower records; config values that Flower cannot carry (nested ones) go as JSON text."""
    content = RecordDict()
    if arrays is not None:
        content[ARRAYS] = to_arrayrecord(arrays)
    if config is not None:
        content[CONFIG] = ConfigRecord(dict(config))
    if metrics is not None:
        content[METRICS] = MetricRecord(dict(metrics))
    return content


def to_arrayrecord(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    """The arrays of a message; Flower reads them without unpickling."""
    record = content.array_records.get(ARRAYS)
    return {name: array.numpy() for name, array in record.items()} if record is not None else {}


def config_of(content: RecordDict) -> dict[str, Any]:
    record = content.config_records.get(CONFIG)
    return dict(record) if record is not None else {}


def metrics_of(content: RecordDict) -> dict[str, Any]:
    record = content.metric_records.get(METRICS)
    return dict(record) if record is not None else {}


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def content_bytes(message: Message) -> int:
    """The payload of a message in bytes: array data and the text of its config and metrics."""
    if not message.has_content():
        return 0
    content = message.content
    total = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    texts = [dict(record) for record in content.config_records.values()]
    texts += [dict(record) for record in content.metric_records.values()]
    return total + sum(len(key) + _value_bytes(value) for text in texts for key, value in text.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_value_bytes(item) for item in value)
    return len(value) if isinstance(value, (str, bytes)) else 8
