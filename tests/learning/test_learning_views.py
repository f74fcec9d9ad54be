import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kornia.enhance import (
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
)

from cofal.errors import UserError
from cofal.learning import views
from cofal.learning.views import make_augmentation, make_views
from cofal.rng import torch_generator

CASES = [("natural", 32, 3), ("natural", 64, 3), ("natural", 32, 1), ("glyph", 8, 1), ("glyph", 28, 3)]


def photos(count, channels, size, seed=0):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=torch_generator(seed))


@pytest.mark.parametrize(("name", "size", "channels"), CASES)
def test_two_different_views_in_range_from_the_generator_alone(name, size, channels):
    images = photos(6, channels, size)
    kept, before = images.clone(), torch.get_rng_state()
    make = make_views(name, size, channels)
    first, second = make(images, torch_generator(5))
    again = make(images, torch_generator(5))
    other = make(images, torch_generator(6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, kept)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, other[0])
    for view in (first, second):
        assert view.shape == images.shape
        assert view.dtype == torch.float32
        assert 0 <= view.min() <= view.max() <= 1
    assert ((first - second).abs().amax(dim=(1, 2, 3)) > 0.01).all()  # for every image


@pytest.mark.parametrize(("name", "size", "channels"), CASES)
def test_each_image_of_a_batch_is_changed_in_its_own_way(name, size, channels):
    images = photos(1, channels, size).expand(8, -1, -1, -1)
    for batch in (*make_views(name, size, channels)(images, torch_generator(1)),):
        assert len({image.numpy().tobytes() for image in batch}) == 8


@pytest.mark.parametrize("make", [make_views, make_augmentation])
def test_unit_floats_are_taken_as_they_are(make):
    images = photos(4, 3, 32)
    as_bytes = make("natural", 32, 3)(images, torch_generator(0))
    as_floats = make("natural", 32, 3)(images.float() / 255, torch_generator(0))
    torch.testing.assert_close(as_bytes, as_floats)


def test_images_of_another_shape_come_out_square_at_the_size_asked_for():
    images = torch.randint(0, 256, (3, 3, 40, 56), dtype=torch.uint8)
    first, _ = make_views("natural", 32, 3)(images, torch_generator(0))
    assert first.shape == (3, 3, 32, 32)


def test_a_crop_is_the_window_it_names():
    images = photos(2, 1, 8).float() / 255
    upper_right = [torch.full((2,), value) for value in (4.0, 0.0, 4.0, 4.0)]
    maps = views._windows(*upper_right, mirror=torch.tensor([False, True]), size=4)
    quarter = views._warp(images, maps, 4, "border")
    torch.testing.assert_close(quarter[0, 0], images[0, 0, :4, 4:])
    torch.testing.assert_close(quarter[1, 0], images[1, 0, :4, 4:].flip(1))


def test_crops_stay_inside_the_image_and_half_are_mirrored():
    images, size = torch.zeros(2000, 1, 20, 30), 16
    maps = views._resized_crop(images, 0.2, size, torch_generator(0))
    corners = torch.tensor([[-0.5, -0.5, 1.0], [size - 0.5, size - 0.5, 1.0]]).T  # edges of the view
    x, y = (torch.linalg.inv(maps) @ corners)[:, :2].unbind(1)
    assert x.min() >= -0.5 - 1e-3
    assert x.max() <= 29.5 + 1e-3
    assert y.min() >= -0.5 - 1e-3
    assert y.max() <= 19.5 + 1e-3
    area = (x[:, 1] - x[:, 0]).abs() * (y[:, 1] - y[:, 0]) / 600
    assert 0.19 < area.min() < 0.25
    assert area.max() <= 1 + 1e-5
    assert 0.45 < (x[:, 1] < x[:, 0]).float().mean() < 0.55


def naive_colour(image, brightness, contrast, saturation, angle):
    """One image (3, h, w), pixel by pixel: chroma turned and scaled, then gain, then contrast about the mean grey."""
    turned = []
    for r, g, b in image.flatten(1).T.tolist():
        y = 0.299 * r + 0.587 * g + 0.114 * b
        u, v = -0.147 * r - 0.289 * g + 0.436 * b, 0.615 * r - 0.515 * g - 0.1 * b
        u, v = (
            saturation * (u * math.cos(angle) - v * math.sin(angle)),
            saturation * (u * math.sin(angle) + v * math.cos(angle)),
        )
        turned.append([brightness * value for value in (y + 1.1398 * v, y - 0.3946 * u - 0.5805 * v, y + 2.032 * u)])
    grey = sum(0.299 * r + 0.587 * g + 0.114 * b for r, g, b in turned) / len(turned)
    clipped = [[min(1.0, max(0.0, grey + contrast * (value - grey))) for value in pixel] for pixel in turned]
    return torch.tensor(clipped).T.reshape(image.shape)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_colour_of_a_batch_equals_pixel_by_pixel(seed):
    images = torch.rand(3, 3, 4, 5, generator=torch_generator(seed))
    fused = views._colour(images, 0.4, 0.8, 0.2, torch_generator(seed, "colour"))
    again = torch_generator(seed, "colour")  # the parameters, drawn as the function draws them
    on = (torch.rand(3, generator=again) < 0.8).float()
    brightness, contrast, saturation = 1 + on * (torch.rand((3, 3), generator=again) * 0.8 - 0.4)
    angle = on * (torch.rand(3, generator=again) * 0.4 - 0.2) * math.pi
    saturation[torch.rand(3, generator=again) < 0.2] = 0.0
    for k in range(3):
        slow = naive_colour(images[k], *(each[k].item() for each in (brightness, contrast, saturation, angle)))
        torch.testing.assert_close(fused[k], slow, atol=2e-3, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_gain_contrast_and_saturation_are_those_of_kornia(seed, monkeypatch):
    monkeypatch.setattr(views.math, "pi", 0.0)  # no change of hue
    images = torch.rand(4, 3, 6, 6, generator=torch_generator(seed)) * 0.2 + 0.4  # far from the clipped ends
    ours = views._colour(images, 0.3, 1.0, 0.0, torch_generator(seed, "colour"))
    again = torch_generator(seed, "colour")
    torch.rand(4, generator=again)
    brightness, contrast, saturation = 1 + torch.rand((3, 4), generator=again) * 0.6 - 0.3
    theirs = adjust_saturation_with_gray_subtraction(images, saturation)
    theirs = adjust_brightness_accumulative(theirs, brightness)
    theirs = adjust_contrast_with_mean_subtraction(theirs, contrast)
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)


def test_grey_images_stay_grey_and_some_become_grey():
    grey = torch.rand(20, 1, 6, 6, generator=torch_generator(0)).expand(-1, 3, -1, -1)
    changed = views._colour(grey, 0.4, 0.8, 0.0, torch_generator(1))
    torch.testing.assert_close(changed, changed.mean(1, keepdim=True).expand_as(changed), atol=1e-3, rtol=0)
    colourful = torch.rand(20, 3, 6, 6, generator=torch_generator(2))
    made_grey = views._colour(colourful, 0.4, 0.8, 1.0, torch_generator(3))
    torch.testing.assert_close(made_grey, made_grey.mean(1, keepdim=True).expand_as(made_grey), atol=1e-3, rtol=0)


def test_blur_keeps_flat_images_and_smooths_noise():
    flat = torch.full((4, 3, 64, 64), 0.4)
    torch.testing.assert_close(views._blur(flat, 1.0, torch_generator(0)), flat)
    noise = torch.rand(32, 3, 96, 96, generator=torch_generator(1))
    blurred = views._blur(noise, 1.0, torch_generator(2))
    assert (blurred.std(dim=(1, 2, 3)) <= noise.std(dim=(1, 2, 3)) + 1e-6).all()
    assert blurred.std(dim=(1, 2, 3)).min() < 0.6 * noise.std()


def test_glyphs_are_never_mirrored():
    ramp = torch.linspace(0, 1, 28).expand(64, 1, 28, 28)  # dark left, bright right
    for view in make_views("glyph", 28, 1)(ramp, torch_generator(0)):
        left, right = view[..., 8:14].mean(dim=(1, 2, 3)), view[..., 14:20].mean(dim=(1, 2, 3))
        assert (right > left).all()


def test_views_run_under_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        for name, size, channels in (("natural", 64, 3), ("glyph", 8, 1)):
            images, views = photos(2, channels, size), make_views(name, size, channels)
            first, again = views(images, torch_generator(0)), views(images, torch_generator(0))
            assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("make", [make_views, make_augmentation])
@pytest.mark.parametrize(
    ("arguments", "told"), [(("nature", 32, 3), "nature"), (("natural", 0, 3), "0"), (("glyph", 8, 2), "2")]
)
def test_bad_arguments_are_named(make, arguments, told):
    with pytest.raises(UserError, match=told):
        make(*arguments)
