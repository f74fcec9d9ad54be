"""What crosses the line between server and clients: record names, message types, packing into Flower records."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from cofal.privacy.policy import Kind

# Record names; Flower's strategies expect the first two under these names.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
EGRESS = "egress"  # what kind of content a reply carries, as the site declared and recorded it
# The weight of a reply in an average.
EXAMPLES = "num-examples"

_NPY = "numpy.ndarray"  # Flower's name for an array in numpy's file format

# Codes of error replies: Flower's own for an exception in a ClientApp, and ours for a request the site refuses.
CLIENT_RAISED, REFUSED = 2, 1002
# ... and Flower's own for a question or an answer that was lost with the client: it may be asked again.
UNAVAILABLE = 3
LOST = frozenset({UNAVAILABLE, 4, 5})

# Message types. Flower's strategies send plain "train" and "evaluate"; `config["job"]` says what to train or evaluate.
TRAIN, EVALUATE = "train", "evaluate"
DESCRIBE = "query.describe"  # who are you, how many samples, which classes
EMBED = "query.embed"  # embed your images with this encoder; share the embeddings or only keep them
PICK = "query.pick"  # select alone, at the site
ASSIGN = "query.assign"  # these of your samples are to be labelled
PROGRESS = "query.progress"  # how many were asked, labelled, skipped
AGGREGATE = "query.aggregate"  # one question of an aggregate selection; under masks if it names a session
SUM_KEYS = "query.keys"  # a session of secure sums begins: your public key
SUM_SHARES = "query.shares"  # everyone's keys: your sealed shares for the others
SUM_UNMASK = "query.unmask"  # these sites answered: what removes the masks of their sum
SUM_CLOSE = "query.close"  # the session is over: forget its secrets


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


def with_config(content: RecordDict, **more: Any) -> RecordDict:
    """The same content, told more; its arrays are not copied."""
    told = RecordDict(dict(content))
    told[CONFIG] = ConfigRecord({**config_of(content), **more})
    return told


def to_arrayrecord(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    """The arrays of a message, read-only: they are views of what arrived."""
    record = content.array_records.get(ARRAYS)
    return {name: read_array(array) for name, array in record.items()} if record is not None else {}


def read_array(array: Array) -> np.ndarray:
    """The numbers in a Flower array, read-only and without a copy; never unpickles.

    The sender declares type and shape twice, in the record and in its bytes; what does not fit what really arrived
    raises ValueError before anything is allocated.
    """
    if array.stype != _NPY:
        raise ValueError(f"arrays come as {_NPY}, not {array.stype[:80]!r}")
    file = io.BytesIO(array.data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    if kind.hasobject or kind.kind not in "biuf":
        raise ValueError(f"an array of type {str(kind)[:80]} holds no plain numbers")
    arrived = len(array.data) - file.tell()
    if any(side < 0 for side in shape) or math.prod(shape) * kind.itemsize != arrived:
        raise ValueError(f"an array declares shape {shape} of {kind}, but {arrived} bytes arrived")
    if (str(kind), tuple(shape)) != (array.dtype, tuple(array.shape)):
        raise ValueError(f"an array is announced as {array.dtype[:80]} {array.shape} and comes as {kind} {shape}")
    numbers = np.frombuffer(array.data, dtype=kind, offset=file.tell()) if arrived else np.empty(0, dtype=kind)
    return numbers.reshape(shape, order="F" if fortran else "C")


def config_of(content: RecordDict) -> dict[str, Any]:
    record = content.config_records.get(CONFIG)
    return dict(record) if record is not None else {}


def metrics_of(content: RecordDict) -> dict[str, Any]:
    record = content.metric_records.get(METRICS)
    return dict(record) if record is not None else {}


def kind_of(reply: Message) -> str:
    """What a reply carries, by the site's own declaration; `refused` or `failed` for an error reply."""
    if reply.has_error():
        return "refused" if reply.error.code == REFUSED else "failed"
    record = reply.content.config_records.get(EGRESS)
    kind = str(record.get("kind", "")) if record is not None else ""
    return kind if kind in {each.value for each in Kind} else "undeclared"


def name_of(reply: Message) -> str:
    """The name that an answer to the roll call gives; empty if it gives none."""
    return str(config_of(reply.content).get("name", ""))[:64] if reply.has_content() else ""


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def content_bytes(message: Message) -> int:
    """The payload of a message in bytes: array data and the text of its config and metrics."""
    if not message.has_content():
        return 0
    arrays, others = _parts(message.content)
    return sum(len(array.data) for _, array in arrays) + sum(len(name) + _value_bytes(value) for name, value in others)


def fields_of(content: RecordDict) -> list[dict[str, Any]]:
    """Name, type, shape and payload bytes of everything in a message; the bytes add up to `content_bytes`."""
    arrays, others = _parts(content)
    found: list[dict[str, Any]] = [
        {"name": name, "dtype": array.dtype, "shape": list(array.shape), "bytes": len(array.data)}
        for name, array in arrays
    ]
    for name, value in others:
        several = isinstance(value, list)
        kind = type(value[0] if several and value else value).__name__
        shape = [len(value)] if several else []
        found.append({"name": name, "dtype": kind, "shape": shape, "bytes": len(name) + _value_bytes(value)})
    return found


def _parts(content: RecordDict) -> tuple[list[tuple[str, Array]], list[tuple[str, Any]]]:
    """Names and values of all arrays, and of all else; one pass, since Flower copies its records on every access."""
    arrays: list[tuple[str, Array]] = []
    others: list[tuple[str, Any]] = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            arrays += record.items()
        else:
            others += record.items()
    return arrays, others


def _value_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_value_bytes(item) for item in value)
    return len(value) if isinstance(value, (str, bytes)) else 8
