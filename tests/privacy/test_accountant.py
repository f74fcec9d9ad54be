"""The accountant against closed forms, and its halt: before the answer, once an answer, in every process."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import binom, norm

from cofal.errors import UserError
from cofal.privacy.accountant import SECRET, Accountant


def account(tmp_path, epsilon=1e9, delta=1e-6) -> Accountant:
    return Accountant(tmp_path / "spent.json", epsilon=epsilon, delta=delta)


def solve(delta_of, delta: float) -> float:
    """The epsilon at which the decreasing function `delta_of` reaches `delta`."""
    low, high = 0.0, 1000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def gaussian_delta(epsilon: float, sigma: float, times: int) -> float:
    """Exact for the continuous Gaussian at sensitivity 1 (Balle and Wang, 2018); `times` answers act as one."""
    mu = math.sqrt(times) / sigma
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(min(700, epsilon)) * norm.cdf(-mu / 2 - epsilon / mu)


def laplace_delta(epsilon: float, scale: float, times: int) -> float:
    """Exact for the discrete Laplace at sensitivity 1: each answer is a coin that falls right with e^a / (1 + e^a)."""
    a = 1 / scale
    right = np.arange(times + 1)
    loss = a * (2 * right - times)
    mass = binom.pmf(right, times, 1 / (1 + math.exp(-a)))
    return float(np.sum(mass * np.maximum(0, -np.expm1(epsilon - loss))))


@pytest.mark.parametrize(("scale", "times"), [(10.0, 1), (10.0, 5), (10.0, 100), (2.0, 30), (50.0, 3000)])
def test_laplace_against_the_exact_sum(tmp_path, scale, times):
    each = account(tmp_path)
    each.spend("laplace", scale, times)
    exact = solve(lambda epsilon: laplace_delta(epsilon, scale, times), 1e-6)
    assert exact * (1 - 1e-9) <= each.spent() <= exact * 1.002


def test_laplace_is_pure_at_delta_zero(tmp_path):
    each = account(tmp_path, delta=0)
    each.spend("laplace", 4.0, 3)
    each.spend("laplace", 10.0)
    assert each.spent() == pytest.approx(3 / 4 + 1 / 10, rel=1e-12)
    with pytest.raises(UserError, match="would bring epsilon to inf at delta 0"):
        each.spend("gaussian", 10.0)


@pytest.mark.parametrize(("sigma", "times"), [(10.0, 1), (10.0, 100), (4.0, 7), (50.0, 2000)])
def test_gaussian_against_closed_forms(tmp_path, sigma, times):
    each = account(tmp_path)
    each.spend("gaussian", sigma, times)
    # Rényi: order alpha costs alpha times / (2 sigma^2), turned into epsilon at the best order.
    rho = times / (2 * sigma**2)
    renyi = min(alpha * rho + math.log(1e6) / (alpha - 1) for alpha in np.linspace(1.01, 200, 20_000))
    exact = solve(lambda epsilon: gaussian_delta(epsilon, sigma, times), 1e-6)
    assert each.spent() < renyi
    # With many grid points under the bell, discrete and continuous noise cost the same.
    assert each.spent() == pytest.approx(exact, rel=2e-3)


def test_different_noise_adds_up(tmp_path):
    each = account(tmp_path)
    assert each.spent() == 0
    costs = []
    for mechanism, parameter in [("laplace", 20.0), ("gaussian", 10.0), ("laplace", 20.0), ("laplace", 5.0)]:
        each.spend(mechanism, parameter, 10)
        costs.append(each.spent())
    assert costs == sorted(costs)
    alone = account(tmp_path / "alone")
    alone.spend("gaussian", 10.0, 10)
    assert max(alone.spent(), costs[0]) < costs[1] < alone.spent() + costs[0]


def test_answers_stop_when_the_budget_is_spent(tmp_path):
    each = account(tmp_path, epsilon=1.0, delta=0)
    for _ in range(4):
        each.spend("laplace", 4.0)
    before = (tmp_path / "spent.json").read_bytes()
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"^privacy budget spent: this answer would bring epsilon to 1.25 .*budget of 1;"
        ):
            each.spend("laplace", 4.0)
    assert (tmp_path / "spent.json").read_bytes() == before
    assert each.spent() == 1.0
    account(tmp_path, epsilon=1.25, delta=0).spend("laplace", 4.0)  # the owner may raise it


def test_spending_outlives_the_process(tmp_path):
    for count in range(1, 4):
        account(tmp_path, delta=0).spend("laplace", 2.0)
        assert account(tmp_path, delta=0).spent() == count / 2
    assert (tmp_path / "spent.json").stat().st_mode & 0o777 == 0o600


def test_a_repeated_answer_is_charged_once(tmp_path):
    each = account(tmp_path, epsilon=0.5, delta=0)
    for _ in range(3):
        each.spend("laplace", 2.0, answer="s1/0")
    assert each.spent() == 0.5
    with pytest.raises(UserError, match="'s1/0' was given before with other noise"):
        each.spend("laplace", 4.0, answer="s1/0")
    with pytest.raises(UserError, match="privacy budget spent"):
        each.spend("laplace", 2.0, answer="s1/1")


def test_two_processes_cannot_spend_the_same_budget(tmp_path):
    def spend(number: int) -> bool:
        try:
            account(tmp_path, epsilon=1.0, delta=0).spend("laplace", 10.0, answer=str(number))
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, range(30))) == 10


def test_no_noise_worth_the_name_is_a_refusal_not_an_overflow(tmp_path):
    each = account(tmp_path, epsilon=10.0)
    for mechanism in ("laplace", "gaussian"):
        with pytest.raises(UserError, match="privacy budget spent"):
            each.spend(mechanism, 1e-4, 1000)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-6), (-1, 1e-6), (math.nan, 1e-6), (1, -1e-6), (1, 1), (1, 1e-15)]
)
def test_budgets_without_meaning_are_refused(tmp_path, epsilon, delta):
    with pytest.raises(UserError, match="privacy budget"):
        Accountant(tmp_path / "spent.json", epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    ("mechanism", "parameter", "times"), [("x", 1, 1), ("laplace", 0, 1), ("laplace", math.nan, 1), ("gaussian", 1, 0)]
)
def test_spending_without_meaning_is_refused(tmp_path, mechanism, parameter, times):
    with pytest.raises(UserError, match="noise"):
        account(tmp_path).spend(mechanism, parameter, times)


@pytest.mark.parametrize("content", ["", '{"answers": [{"an', "{}", "[]", '{"answers": [{"answer": ""}]}'])
def test_a_damaged_account_is_to_be_restored_not_removed(tmp_path, content):
    (tmp_path / "spent.json").write_text(content)
    for ask in (account(tmp_path).spent, lambda: account(tmp_path).spend("laplace", 4.0)):
        with pytest.raises(UserError, match="restore it from a backup: deleting it would forget what was spent"):
            ask()
    assert (tmp_path / "spent.json").read_text() == content


def test_an_account_that_was_deleted_is_not_one_without_charges(tmp_path):
    (tmp_path / SECRET).write_text(json.dumps({"key": "00"}))
    for ask in (account(tmp_path).spent, lambda: account(tmp_path).spend("laplace", 4.0)):
        with pytest.raises(UserError, match="is gone, and with it what was spent; restore it"):
            ask()
