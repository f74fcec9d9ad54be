"""Areas and gaps of accuracy-budget curves."""

import pytest

from cofal.errors import UserError
from cofal.evaluation.curves import area, coordination_gap, mean_height


def test_area_is_the_trapezoid_rule():
    assert area([10, 20, 40], [0.5, 0.7, 0.9]) == pytest.approx(10 * 0.6 + 20 * 0.8)


def test_mean_height_of_a_flat_curve_is_its_height():
    assert mean_height([1, 5, 100], [0.4, 0.4, 0.4]) == pytest.approx(0.4)
    assert mean_height([10], [0.3]) == 0.3


def test_gap_is_relative_to_the_central_area():
    assert coordination_gap([0, 1], [0.8, 0.8], [0.6, 0.6]) == pytest.approx(25)
    assert coordination_gap([0, 1], [0.6, 0.6], [0.8, 0.8]) < 0


@pytest.mark.parametrize(("x", "y"), [([1], [1]), ([2, 1], [0, 0]), ([1, 2], [0])])
def test_nonsense_is_refused(x, y):
    with pytest.raises(UserError):
        area(x, y)
