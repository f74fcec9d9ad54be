"""Many arrays as one, for the way between processes: Flower's server pays by the array, not by its size.

A model of 122 arrays is 250 objects there, each fetched, signed and stored by itself; bundled it is a handful.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cofal.federation.messages import ARRAYS, read_array

BUNDLE = "bundle"  # the record that says how to take a bundle apart, and the name of its one array
_FEWEST = 2  # arrays that are worth it


def is_bundled(content: RecordDict) -> bool:
    return BUNDLE in content


def bundle(content: RecordDict, made: dict[int, RecordDict] | None = None) -> RecordDict:
    """The same content with its arrays as one; what has few arrays stays as it is.

    `made` keeps the bundles of one sending, so that a model for all sites is bundled once.
    """
    record = content.array_records.get(ARRAYS)
    if record is None or len(record) < _FEWEST:
        return content
    known = {} if made is None else made
    if id(record) not in known:
        arrays = dict(record.items())
        layout = [[name, each.dtype, list(each.shape), each.stype, len(each.data)] for name, each in arrays.items()]
        joined = np.frombuffer(b"".join(each.data for each in arrays.values()), dtype=np.uint8)
        parts = RecordDict()
        parts[ARRAYS] = ArrayRecord({BUNDLE: Array(joined)})
        parts[BUNDLE] = ConfigRecord({"layout": json.dumps(layout, separators=(",", ":"))})
        known[id(record)] = parts
    bundled = RecordDict({name: each for name, each in content.items() if name != ARRAYS})
    for name, each in known[id(record)].items():
        bundled[name] = each
    return bundled


def unbundle(content: RecordDict) -> RecordDict:
    """The content as it was before `bundle`; ValueError if the parts do not make up the whole."""
    if not is_bundled(content):
        return content
    joined = read_array(content.array_records[ARRAYS][BUNDLE])
    if joined.dtype != np.uint8 or joined.ndim != 1:
        raise ValueError("a bundle is no row of bytes")
    layout = json.loads(str(content.config_records[BUNDLE]["layout"]))
    arrays: dict[str, Array] = {}
    start = 0
    for name, kind, shape, form, size in _checked(layout):
        if start + size > len(joined):
            break
        arrays[name] = Array(kind, tuple(shape), form, joined[start : start + size].tobytes())
        start += size
    if start != len(joined) or len(arrays) != len(layout):
        raise ValueError("the arrays of a bundle do not make up the whole")
    whole = RecordDict({name: each for name, each in content.items() if name not in (ARRAYS, BUNDLE)})
    whole[ARRAYS] = ArrayRecord(arrays)
    return whole


def _checked(layout: Any) -> list[tuple[str, str, list[int], str, int]]:
    if not isinstance(layout, list):
        raise ValueError("the layout of a bundle is no list")
    for part in layout:
        name, kind, shape, form, size = part
        texts = all(isinstance(each, str) for each in (name, kind, form))
        if not texts or not all(isinstance(each, int) and each >= 0 for each in [*shape, size]):
            raise ValueError("the layout of a bundle cannot be read")
    return [tuple(part) for part in layout]
