"""Arrays bundled for their way between processes arrive as they were; a damaged bundle is an error, never a crash."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cofal.federation import messages as m
from cofal.federation.bundle import BUNDLE, bundle, is_bundled, unbundle

kinds = st.sampled_from([np.dtype(kind) for kind in ("f4", "f8", "i8", "u1", "bool")])
arrays = st.dictionaries(
    st.text(max_size=8), hnp.arrays(kinds, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), max_size=6
)


@given(arrays)
def test_what_was_bundled_arrives_as_it_was(given_arrays):
    content = m.pack(arrays=given_arrays, config={"a": 1}, metrics={"b": 2.0})
    travelling = bundle(content)
    assert is_bundled(travelling) == (len(given_arrays) >= 2)
    assert len(travelling.array_records[m.ARRAYS]) == (1 if is_bundled(travelling) else len(given_arrays))
    arrived = unbundle(travelling)
    assert set(arrived) == set(content)
    assert m.config_of(arrived) == {"a": 1}
    found = m.arrays_of(arrived)
    assert list(found) == list(given_arrays)
    for name, array in given_arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_a_model_for_all_sites_is_bundled_once():
    content = m.pack(arrays={name: np.ones(5) for name in "abcd"})
    told, made = m.with_config(content, site="north"), {}
    first, second = bundle(content, made), bundle(told, made)
    assert first.array_records[m.ARRAYS] is second.array_records[m.ARRAYS]
    assert m.config_of(unbundle(second)) == {"site": "north"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda layout: layout[:-1],
        lambda layout: [*layout, layout[0]],
        lambda layout: [[*layout[0][:4], 10**9], *layout[1:]],
        lambda layout: [[*layout[0][:4], -1], *layout[1:]],
        lambda layout: {"a": 1},
        lambda layout: [1, 2, 3],
        lambda layout: [[1, 2, 3, 4, 5]],
        lambda layout: [["a", "f8", [10**12], "numpy.ndarray", layout[0][4]], *layout[1:]],
    ],
)
def test_a_damaged_bundle_is_an_error(damage):
    content = bundle(m.pack(arrays={name: np.ones(3) for name in "abcd"}))
    layout = json.loads(content.config_records[BUNDLE]["layout"])
    content[BUNDLE] = ConfigRecord({"layout": json.dumps(damage(layout))})
    with pytest.raises((ValueError, TypeError)):
        m.arrays_of(unbundle(content))
