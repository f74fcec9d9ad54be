import pytest
import torch

from cofal.errors import UserError
from cofal.learning.encoders import ENCODERS, build_encoder
from cofal.learning.state import arrays_to_state, state_to_arrays
from cofal.rng import torch_generator

SIZES = {"resnet18": 32, "resnet18-imagenet": 64, "resnet-small": 32, "resnet-tiny": 8}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_finite_and_of_the_stated_width(name, channels):
    encoder = build_encoder(name, channels, torch_generator(0)).eval()
    images = torch.randint(0, 256, (2, channels, SIZES[name], SIZES[name]), dtype=torch.uint8)
    with torch.no_grad():
        features = encoder(images)
    assert features.shape == (2, encoder.feature_dim)
    assert torch.isfinite(features).all()


def test_weights_come_from_the_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (build_encoder("resnet-tiny", 1, torch_generator(seed)).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


def test_weights_loaded_into_a_model_that_drew_none_are_the_same_model():
    drawn, loaded = (
        build_encoder("resnet-tiny", 1, torch_generator(1)).eval(),
        build_encoder("resnet-tiny", 1, None).eval(),
    )
    arrays_to_state(loaded, state_to_arrays(drawn))
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(drawn(images), loaded(images))
    for mine, other in zip(loaded.parameters(), drawn.parameters(), strict=True):
        assert mine.stride() == other.stride()
        assert mine.requires_grad


def test_bytes_and_unit_floats_are_the_same_image():
    encoder = build_encoder("resnet-tiny", 3, torch_generator(0)).eval()
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    kept = images.clone()
    with torch.no_grad():
        floats = images.float() / 255
        untouched = floats.clone()
        torch.testing.assert_close(encoder(images), encoder(floats))
    assert torch.equal(images, kept)
    assert torch.equal(floats, untouched)


def test_published_sizes():
    sizes = {name: sum(p.numel() for p in build_encoder(name, 3, torch_generator(0)).parameters()) for name in ENCODERS}
    assert sizes["resnet18"] == 11_168_832  # ResNet-18 with a 3x3 stem, without its classifier
    assert sizes["resnet18-imagenet"] == 11_176_512  # torchvision's resnet18 without fc
    assert 1_100_000 < sizes["resnet-small"] < 1_300_000


@pytest.mark.parametrize(("name", "channels"), [("resnet-18", 3), ("resnet18", 4)])
def test_wrong_names_and_channels_are_refused(name, channels):
    with pytest.raises(UserError, match=r"resnet-tiny|not 4"):
        build_encoder(name, channels, torch_generator(0))
