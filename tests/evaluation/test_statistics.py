"""Means, intervals and paired comparisons over seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from cofal.errors import UserError
from cofal.evaluation.curves import Curves, gap_over_seeds
from cofal.evaluation.statistics import compare, estimate
from cofal.rng import generator


def test_an_estimate_is_scipys():
    x = generator(0, "estimate").normal(size=5)
    found = estimate(x.tolist())
    assert (found.mean, found.standard_error, found.n) == (pytest.approx(x.mean()), pytest.approx(stats.sem(x)), 5)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, x.mean(), stats.sem(x)))


def test_a_comparison_is_the_paired_t_test():
    rng = generator(1, "compare")
    a, b = rng.normal(size=6), rng.normal(size=6)
    found = compare(a.tolist(), b.tolist())
    assert found.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert found.significant == (found.p_value < 0.05)


def test_the_interval_holds_the_mean_as_often_as_it_says():
    rng = generator(2, "coverage")
    held = [(e := estimate(rng.normal(size=3).tolist())).low <= 0 <= e.high for _ in range(2000)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


def test_one_seed_leaves_the_error_open_and_equal_values_are_no_difference():
    lone = estimate([0.5])
    assert math.isnan(lone.standard_error)
    assert (lone.low, lone.high) == (-math.inf, math.inf)
    assert not compare([0.5], [0.1]).significant
    assert compare([1, 2, 3], [1, 2, 3]).p_value == 1
    constant = compare([1.5, 2.5], [1, 2])
    assert (constant.p_value, constant.significant) == (0, True)


def test_curves_are_paired_seed_by_seed():
    central = Curves([10, 20], [[0.8, 0.8], [0.6, 0.6]])
    alone = Curves([10, 20], [[0.6, 0.6], [0.3, 0.3]])
    assert gap_over_seeds(central, alone).mean == pytest.approx((25 + 50) / 2)
    assert central.versus(alone).difference.mean == pytest.approx(0.25)
    assert central.at(1).mean == pytest.approx(0.7)
    with pytest.raises(UserError, match="cannot be paired"):
        gap_over_seeds(central, Curves([10, 30], alone.accuracy))


@pytest.mark.parametrize("bad", [lambda: estimate([]), lambda: compare([1], [1, 2]), lambda: estimate([1, 2], 1.5)])
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        bad()
