"""The redundancy theory: each function against the paper's own formula, Proposition 1 and both corollaries."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cofal.errors import UserError
from cofal.evaluation import theory
from cofal.rng import generator

CHANCES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1, allow_subnormal=False))


def tables(clients=(1, 5), cells=(1, 6)):
    shape = st.tuples(st.integers(*clients), st.integers(*cells))
    return shape.flatmap(lambda s: hnp.arrays(np.float64, s, elements=CHANCES))


def literal_gap(a):
    """Eq. (app-redundancy), as it is printed."""
    return sum(sum(a[:, m]) - (1 - math.prod(1 - a[:, m])) for m in range(a.shape[1]))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_the_gap_is_the_papers_equation_and_the_difference_of_coverages(a):
    assert theory.redundancy_gap(a) == pytest.approx(literal_gap(a), abs=1e-12)
    assert theory.redundancy_gap(a) == pytest.approx(theory.local_coverage(a) - theory.expected_coverage(a), abs=1e-12)


def test_small_probabilities_keep_their_digits():
    a = np.full((2, 1), 1e-12)
    assert theory.redundancy_gap(a) == pytest.approx(1e-24, rel=1e-9)  # a^2; the printed difference gives rounding only


@settings(max_examples=60, deadline=None)
@given(tables())
def test_both_parts_of_the_coordination_gap_add_up(a):
    best = 7.5
    assert sum(theory.gap_parts(best, a)) == pytest.approx(best - theory.expected_coverage(a))


@settings(max_examples=60, deadline=None)
@given(tables(clients=(2, 5)), st.randoms(use_true_random=False))
def test_proposition_1_part_1_disjoint_clients_lose_nothing(a, random):
    owner = np.array([random.randrange(len(a)) for _ in range(a.shape[1])])
    disjoint = np.where(np.arange(len(a))[:, None] == owner, a, 0.0)
    assert theory.redundancy_gap(disjoint) == 0


@settings(max_examples=60, deadline=None)
@given(tables(clients=(2, 5)))
def test_proposition_1_part_2_the_slope(a):
    slope = theory.redundancy_slope(a)
    for j, m in itertools.product(range(len(a)), range(a.shape[1])):
        others = np.delete(a[:, m], j)
        assert slope[j, m] == pytest.approx(1 - math.prod(1 - others), abs=1e-12)
        # Delta_m is linear in a[j, m]: the slope is the whole rise from 0 to 1.
        low, high = a.copy(), a.copy()
        low[j, m], high[j, m] = 0, 1
        rise = theory.cell_redundancy(high)[m] - theory.cell_redundancy(low)[m]
        assert slope[j, m] == pytest.approx(rise, abs=1e-12)
        assert slope[j, m] >= 0
        assert (slope[j, m] > 0) == (others > 1e-15).any() or others.max() < 1e-15


@settings(max_examples=60, deadline=None)
@given(tables(clients=(2, 5)))
def test_proposition_1_part_3_the_increment(a):
    grown = theory.redundancy_gap(a) - theory.redundancy_gap(a[:-1])
    assert theory.redundancy_increment(a[:-1], a[-1]) == pytest.approx(grown, abs=1e-12)
    assert grown >= -1e-12


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 6), elements=CHANCES), st.integers(1, 6))
def test_corollary_of_alike_clients_the_gap_never_falls(a, clients):
    now, more = theory.iid_redundancy(a, clients), theory.iid_redundancy(a, clients + 1)
    printed = sum(clients * p - (1 - (1 - p) ** clients) for p in a)
    assert now == pytest.approx(printed, abs=1e-12)
    assert theory.iid_increment(a, clients) == pytest.approx(more - now, abs=1e-12)
    assert more >= now - 1e-12


@settings(max_examples=60, deadline=None)
@given(tables())
def test_corollary_of_a_disjoint_newcomer_adds_nothing(a):
    wide = np.hstack([a, np.zeros_like(a)])
    newcomer = np.hstack([np.zeros(a.shape[1]), a[0]])
    assert theory.redundancy_increment(wide, newcomer) == 0


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_a_simulation_agrees_with_the_closed_form(alpha):
    rng = generator(0, "theory", alpha)
    counts = rng.multinomial(300, rng.dirichlet(np.full(30, alpha), size=4))
    a = np.stack([theory.hit_probabilities(own, 12, "efficient") for own in counts])
    found = theory.simulate(a, 4000, rng)
    assert abs(found.coverage - theory.expected_coverage(a)) < 4 * found.coverage_error
    assert abs(found.redundancy - theory.redundancy_gap(a)) < 4 * found.redundancy_error
    assert found.redundancy_error < 0.01 * found.redundancy


# --- from histograms


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 9)), st.integers(0, 20))
def test_hit_probabilities_are_probabilities_of_cells_that_have_rows(counts, budget):
    budget = min(budget, int(counts.sum()))
    for selection in theory.SELECTIONS:
        a = theory.hit_probabilities(counts, budget, selection)
        assert ((a >= 0) & (a <= 1 + 1e-12)).all()
        assert (a[counts == 0] == 0).all()
        if selection != "random":  # every label in a cell of its own
            assert a.sum() == pytest.approx(min(budget, (counts > 0).sum()))


def test_random_draws_hit_cells_as_often_as_counted():
    counts, budget, rng = np.array([50, 30, 15, 5, 0]), 7, generator(0, "draws")
    cells = np.repeat(np.arange(5), counts)
    hits = np.zeros(5)
    for _ in range(4000):
        hits[np.unique(rng.choice(cells, budget, replace=False))] += 1
    assert hits / 4000 == pytest.approx(theory.hit_probabilities(counts, budget, "random"), abs=0.03)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 3), st.integers(1, 4)), elements=st.integers(0, 2)), st.data())
def test_best_coverage_is_that_of_trying_everything(counts, data):
    budgets = [data.draw(st.integers(0, 3)) for _ in counts]
    choices = [
        [
            set(cells)
            for size in range(budget + 1)
            for cells in itertools.combinations(np.flatnonzero(own).tolist(), min(size, int((own > 0).sum())))
        ]
        for own, budget in zip(counts, budgets)
    ]
    most = max(len(set().union(*chosen)) for chosen in itertools.product(*choices))
    assert theory.best_coverage(counts, budgets) == most


def test_alike_clients_are_foretold_more_redundancy_than_disjoint_ones():
    alike = np.full((4, 40), 10)
    apart = np.kron(np.eye(4, dtype=int), np.full((1, 10), 40))
    for selection in theory.SELECTIONS:
        assert theory.predicted_redundancy(apart, [5] * 4, selection) == 0
        assert theory.predicted_redundancy(alike, [5] * 4, selection) > 1


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="within 0 and 1"):
        theory.redundancy_gap(np.array([[1.5]]))
    with pytest.raises(UserError, match="unknown selection"):
        theory.hit_probabilities(np.array([3]), 1, "greedy")
    with pytest.raises(UserError, match="budget 4"):
        theory.hit_probabilities(np.array([3]), 4, "random")
