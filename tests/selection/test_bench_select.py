"""The bench of selection: the peers pick what cofal picks, measurements come from real processes, figures are right."""

from __future__ import annotations

import numpy as np
import pytest

from cofal.bench import jobs, selecting, vectors
from cofal.bench.report import figures_markdown, reached
from cofal.bench.selecting import Row
from cofal.errors import UserError


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    x = vectors.synthetic(400, d=16, groups=12)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize(("ours", "peer"), [("probcover", "edge-list probcover"), ("maxherding", "dense maxherding")])
def test_the_plain_loops_pick_the_same_rows(rows, ours, peer, monkeypatch):
    monkeypatch.setattr(jobs, "CLIENTS", 1)  # the plain loops know no client budgets
    assert jobs.JOBS[ours](rows, 8, False).picks == jobs.JOBS[peer](rows, 8, False).picks


def test_a_measurement_is_a_process_of_its_own(tmp_path, rows):
    np.save(tmp_path / "rows.npy", np.tile(rows, (2, 1)))
    row = selecting.measure("gemm pass", tmp_path / "rows.npy", 800, 0, repeats=2)
    assert row.failure is None
    assert row.seconds is not None
    assert row.seconds > 0
    assert row.peak_bytes is not None
    failed = selecting.measure("probcover", tmp_path / "rows.npy", 800, 10**6)
    assert failed.seconds is None
    assert "budget" in (failed.failure or "")


def test_figures_and_exponents():
    measured = [
        Row("gemm pass", 50_000, 0, 10.0, 0, 0),
        Row("typiclust", 50_000, 1_000, 5.0, 9.0, 2**29),
        Row("typiclust", 10_000, 100, 0.5, 0, 0),
        Row("scikit-activeml typiclust", 10_000, 100, 1.0, 0, 0),
        Row("maxherding", 50_000, 1_000, failure="killed"),
    ]
    figures = selecting.ratios(measured)
    assert figures["typiclust: time / GEMM pass, n=50k b=1000"]["value"] == 0.5
    assert figures["typiclust: peak GiB above the input, n=50k b=1000"]["value"] == 0.5
    slow = figures["typiclust: times faster than scikit-activeml typiclust, n=10k b=100"]
    assert slow["value"] == 2
    assert not reached(slow)
    assert not any(name.startswith("maxherding") for name in figures)
    assert "| missed |" in figures_markdown(figures)
    growth = [Row("probcover", n, 100, 3e-9 * n**2, 0) for n in (1000, 2000, 4000)]
    assert selecting.exponents(growth)["probcover, b=100"] == pytest.approx(2)
    assert "failed: killed" in selecting.markdown(measured, selecting.machine(), "test")


def test_more_rows_than_given_are_jittered_copies(tmp_path, rows):
    vectors.write(tmp_path / "more.npy", rows, 1000, "float16")
    more = np.load(tmp_path / "more.npy").astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(more, axis=1), 1, atol=1e-3)
    apart = np.linalg.norm(more[400:800] - more[:400], axis=1)
    assert apart.min() > 0.05
    assert np.median(apart) == pytest.approx(vectors.JITTER, rel=0.2)


def test_a_wrong_file_is_named(tmp_path):
    wrong = tmp_path / "wrong.npz"
    wrong.write_bytes(b"no array")
    with pytest.raises(UserError, match=r"wrong\.npz"):
        vectors.load(wrong)
    with pytest.raises(UserError, match=r"absent\.npy"):
        vectors.load(tmp_path / "absent.npy")
