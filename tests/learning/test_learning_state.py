import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cofal.errors import UserError
from cofal.learning.embed import embed
from cofal.learning.encoders import ENCODERS, build_encoder
from cofal.learning.head import build_head, predict_proba
from cofal.learning.state import (
    arrays_to_state,
    encoder_digest,
    load_arrays,
    load_encoder,
    load_head,
    save_arrays,
    save_encoder,
    save_head,
    state_to_arrays,
)
from cofal.rng import generator, torch_generator


def trained(name="resnet-tiny", channels=1, seed=0):
    """An encoder whose BatchNorm statistics have moved off their initial values."""
    encoder = build_encoder(name, channels, torch_generator(seed)).train()
    encoder(torch.rand(4, channels, 32, 32, generator=torch_generator(seed, "pixels")))
    return encoder


def test_the_state_holds_everything_in_a_fixed_order_as_copies():
    encoder = trained()
    arrays = state_to_arrays(encoder)
    assert list(arrays) == list(encoder.state_dict())
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        assert any(key.endswith(buffer) for key in arrays)
    arrays["stem.0.weight"][:] = 0
    assert encoder.stem[0].weight.abs().sum() > 0


@pytest.mark.parametrize("name", ENCODERS)
def test_round_trip_through_arrays(name):
    source, target = trained(name, 3), build_encoder(name, 3, torch_generator(9))
    arrays_to_state(target, state_to_arrays(source))
    assert encoder_digest(state_to_arrays(target)) == encoder_digest(state_to_arrays(source))


def test_averaged_states_load_with_their_counters_rounded():
    encoder = trained()
    arrays = {
        key: value * 0.5 + value * 0.5 + (0.4 if value.dtype == np.int64 else 0.0)
        for key, value in state_to_arrays(encoder).items()
    }
    arrays_to_state(encoder, arrays)
    assert encoder.stem[1].num_batches_tracked == 1
    assert encoder.stem[1].num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda a: a.pop("stem.1.running_var"), "stem.1.running_var"),
        (lambda a: a.update(extra=np.zeros(1)), "extra"),
        (lambda a: a.update({"stem.0.weight": np.zeros((1, 2))}), r"stem\.0\.weight.*\(1, 2\)"),
    ],
)
def test_a_state_that_does_not_fit_names_the_key_and_changes_nothing(spoil, told):
    encoder = trained()
    arrays = state_to_arrays(trained(seed=1))
    spoil(arrays)
    before = encoder_digest(state_to_arrays(encoder))
    with pytest.raises(UserError, match=told):
        arrays_to_state(encoder, arrays)
    assert encoder_digest(state_to_arrays(encoder)) == before


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        arrays_of.arrays(
            st.sampled_from([np.float32, np.int64, np.float64]),
            arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            elements=st.integers(-100, 100),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_files_give_back_every_bit(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("state") / "a.safetensors"
    strided = {key: np.array(value, order="F") for key, value in arrays.items()}
    save_arrays(path, strided, {"note": "x"})
    back, metadata = load_arrays(path)
    assert metadata["note"] == "x"
    assert back.keys() == arrays.keys()
    for key in arrays:
        assert back[key].dtype == arrays[key].dtype
        np.testing.assert_array_equal(back[key], arrays[key])
    assert encoder_digest(back) == encoder_digest(arrays)


def test_the_digest_sees_names_values_types_and_shapes():
    a = {"w": np.arange(4, dtype=np.float32), "b": np.zeros(1, dtype=np.float32)}
    different = [
        {**a, "w": a["w"] + 1},
        {**a, "w": a["w"].astype(np.float64)},
        {**a, "w": a["w"].reshape(2, 2)},
        {"v": a["w"], "b": a["b"]},
    ]
    assert encoder_digest(dict(reversed(a.items()))) == encoder_digest(a)
    assert len({encoder_digest(a), *map(encoder_digest, different)}) == 5


def test_an_encoder_file_is_all_that_is_needed(tmp_path):
    encoder = trained("resnet-small", 3)
    path = tmp_path / "deep" / "encoder.safetensors"
    save_encoder(path, encoder, image_size=32)
    loaded = load_encoder(path)
    assert (loaded.name, loaded.channels, loaded.image_size) == ("resnet-small", 3, 32)
    images = generator(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(embed(loaded, images), embed(encoder, images))
    assert [p.name for p in path.parent.iterdir()] == ["encoder.safetensors"]


def test_a_head_file_keeps_the_classes(tmp_path):
    head = build_head(6, 5, 3, torch_generator(0))
    save_head(tmp_path / "head.safetensors", head, {"names": "a,b,c"})
    loaded, metadata = load_head(tmp_path / "head.safetensors")
    x = generator(0).normal(size=(4, 6)).astype(np.float32)
    np.testing.assert_array_equal(predict_proba(loaded, x), predict_proba(head, x))
    assert metadata["names"] == "a,b,c"


def test_files_that_are_no_encoder_say_so(tmp_path):
    with pytest.raises(UserError, match=r"absent\.safetensors"):
        load_encoder(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("not a model")
    with pytest.raises(UserError, match=r"text\.safetensors"):
        load_encoder(tmp_path / "text.safetensors")
    save_encoder(tmp_path / "whole.safetensors", trained(), 8)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.safetensors"):
        load_encoder(tmp_path / "cut.safetensors")
    save_head(tmp_path / "head.safetensors", build_head(2, 2, 2, torch_generator(0)))
    with pytest.raises(UserError, match="no encoder"):
        load_encoder(tmp_path / "head.safetensors")
    with pytest.raises(UserError, match="no classifier head"):
        load_head(tmp_path / "whole.safetensors")
    with pytest.raises(UserError, match=r"cannot read|no model|not a whole"):
        load_arrays(tmp_path)
