import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    images = photos(1, 1, 8).float() / 255
    theta = torch.tensor([[[-0.5, 0.0, 0.5], [0.0, 0.5, -0.5]]])  # upper right quarter, mirrored
    quarter = views._resample(images, theta, 4, "border")
    torch.testing.assert_close(quarter[0, 0], images[0, 0, :4, 4:].flip(1))


def test_crops_stay_inside_the_image_and_half_are_mirrored():
    theta = views._resized_crop(2000, 0.2, torch_generator(0))
    reach = theta[:, [0, 1], [0, 1]].abs() + theta[:, :, 2].abs()
    assert reach.max() <= 1 + 1e-6
    area = theta[:, 0, 0].abs() * theta[:, 1, 1]
    assert 0.19 < area.min() < 0.25
    assert area.max() <= 1
    assert 0.45 < (theta[:, 0, 0] < 0).float().mean() < 0.55


def naive_colour(pixel_rows, matrix, contrast):
    """One image (3, hw): matrix on each pixel, contrast about the mean grey, clip."""
    mapped = [[sum(matrix[i][j] * pixel[j] for j in range(3)) for i in range(3)] for pixel in pixel_rows.T.tolist()]
    grey = sum(0.299 * r + 0.587 * g + 0.114 * b for r, g, b in mapped) / len(mapped)
    clipped = [[min(1.0, max(0.0, grey + contrast * (v - grey))) for v in pixel] for pixel in mapped]
    return torch.tensor(clipped).T


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_fused_colour_map_equals_pixel_by_pixel(seed):
    generator = torch_generator(seed)
    images = torch.rand(3, 3, 4, 5, generator=generator)
    maps, contrast = views._colour_maps(3, 0.4, 0.8, 0.2, generator)
    fused = views._colour(images, maps, contrast)
    for k in range(3):
        slow = naive_colour(images[k].reshape(3, -1), maps[k].tolist(), contrast[k].item())
        torch.testing.assert_close(fused[k].reshape(3, -1), slow, atol=1e-5, rtol=0)


def test_colour_maps_keep_grey_pixels_grey_and_make_grey_images():
    maps, _ = views._colour_maps(50, 0.4, 0.8, 0.0, torch_generator(0))
    grey_pixel = maps @ torch.ones(3, 1)
    torch.testing.assert_close(grey_pixel, grey_pixel.mean(1, keepdim=True).expand_as(grey_pixel), atol=1e-4, rtol=0)
    maps, _ = views._colour_maps(50, 0.4, 0.0, 1.0, torch_generator(0))
    assert (maps - maps[:, :1]).abs().max() < 1e-5  # every output channel is the same mixture


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
