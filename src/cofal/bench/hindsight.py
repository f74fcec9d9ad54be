"""`cofal bench radius`: ProbCover's estimated radius against the best in hindsight, by the accuracy it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cofal.bench import vectors
from cofal.bench.report import figures_markdown
from cofal.errors import UserError
from cofal.files import write_json, write_text
from cofal.progress import progress
from cofal.rng import generator

CLIENTS, BUDGET = 4, 100
TARGET = 0.97  # of the accuracy that the best radius in hindsight reaches


@dataclass(frozen=True)
class Case:
    """A labelled set of embeddings: the pool to pick from and the test set that judges the picks."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    radii: np.ndarray  # the grid to look back over


def cases(data: Path | None, seed: int, quick: bool) -> Iterator[Case]:
    """Digits, centred, raw and as random ReLU features; if `data` is given, subsets and projections of it."""
    from sklearn.datasets import load_digits

    rng = generator(seed, "bench", "radius")
    digits = load_digits()
    order = rng.permutation(len(digits.data))
    train, test = order[:1297], order[1297:]
    centered = digits.data - digits.data[train].mean(0)
    relu = np.maximum(centered @ rng.normal(size=(64, 128)), 0)
    step = 0.1 if quick else 0.05
    for name, x, low, high in (
        ("digits, centred", centered, 0.5, 1.2),
        ("digits, raw", digits.data, 0.2, 0.7),
        ("digits, ReLU features", relu, 0.4, 1.0),
    ):
        radii = np.arange(low, high + 0.01, step)
        yield Case(name, x[train], digits.target[train], x[test], digits.target[test], radii)
    if data is None or quick:
        return
    x, y, x_test, y_test = vectors.load(data)
    if y is None or x_test is None or y_test is None:
        raise UserError(f"{data} lacks labels; accuracy needs x_train, y_train, x_test and y_test")
    judges = rng.permutation(len(x_test))[:2000]
    for n in (3_000, 10_000, len(x)):
        rows = rng.permutation(len(x))[:n]
        radii = np.arange(0.8, 1.21, 0.05 if n < len(x) else 0.1)
        yield Case(f"{data.stem}, {n:,}", x[rows], y[rows], x_test[judges], y_test[judges], radii)
    rows = rng.permutation(len(x))[:3_000]
    mean = x[rows].astype(np.float32).mean(0)
    axes = np.linalg.svd(x[rows].astype(np.float32) - mean, full_matrices=False)[2][:16].T
    project = (x[rows] - mean) @ axes, (x_test[judges] - mean) @ axes
    yield Case(
        f"{data.stem}, 16 components", project[0], y[rows], project[1], y_test[judges], np.arange(0.4, 0.91, 0.05)
    )


def accuracies(case: Case, rows: np.ndarray) -> np.ndarray:
    """Test accuracy of a logistic regression on the labels of the first 10, 20, ... of `rows`."""
    from sklearn.linear_model import LogisticRegression

    def unit(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float32)
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    x, test = unit(case.x[rows]), unit(case.x_test)
    scores = []
    for budget in range(10, len(rows) + 1, 10):
        known = case.y[rows[:budget]]
        if len(np.unique(known)) == 1:
            scores.append(float((case.y_test == known[0]).mean()))
        else:
            model = LogisticRegression(C=10, max_iter=300).fit(x[:budget], known)
            scores.append(model.score(test, case.y_test))
    return np.array(scores)


def probcover_auc(case: Case, radius: float, seed: int) -> float:
    """Mean accuracy over budgets 10 to 100 of ProbCover's central picks over four IID clients."""
    import cofal

    order = generator(seed, "bench", "clients").permutation(len(case.x))
    parts = [order[low:high] for low, high in pairwise(np.linspace(0, len(order), CLIENTS + 1).astype(int))]
    budgets = [BUDGET // CLIENTS] * CLIENTS
    picks = cofal.select([case.x[part] for part in parts], budgets, method="probcover", delta=radius, seed=seed)
    return float(accuracies(case, np.array([parts[client][position] for client, position in picks.order])).mean())


def bench_radius(out: Path, data: Path | None = None, *, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Measure, write radius.md and radius.json into `out`, return the share of the best accuracy "auto" reaches."""
    from cofal.selection.pool import Pool
    from cofal.selection.radius import estimate_radius, purity_radius

    found: dict[str, list[dict[str, float]]] = {}
    curves: dict[str, dict[float, list[float]]] = {}
    with progress() as bars:
        for seed in range(2 if quick else 3):
            for case in cases(data, seed, quick):
                if seed >= (1 if len(case.x) > 20_000 else 2 if len(case.x) > 5_000 else 3):
                    continue  # minutes a seed, and the spread between seeds shrinks with the size of the pool
                task = bars.add_task(f"{case.name}, seed {seed}", total=len(case.radii) + 1, note="")
                curve = curves.setdefault(case.name, {})
                for radius in case.radii:
                    curve.setdefault(round(float(radius), 3), []).append(probcover_auc(case, float(radius), seed))
                    bars.advance(task)
                pool = Pool([case.x])
                auto = estimate_radius(pool, generator(seed, "radius"))
                purity = purity_radius(pool, generator(seed, "radius"), len(np.unique(case.y)))
                random = generator(seed, "bench", "random").permutation(len(case.x))[:BUDGET]
                result = {
                    "auto": auto,
                    "auto_auc": probcover_auc(case, auto, seed),
                    "purity": purity,
                    "purity_auc": probcover_auc(case, purity, seed),
                    "random_auc": float(accuracies(case, random).mean()),
                }
                found.setdefault(case.name, []).append(result)
                bars.advance(task)
    lines = [
        "# The radius of ProbCover: estimated without labels, against the best in hindsight",
        "",
        "Mean test accuracy over budgets 10, 20, ..., 100 (logistic regression on the pooled picked labels, four IID "
        "clients, central picks; mean over seeds). The best radius is the one of the grid with the highest mean.",
        "",
        "| embedding | best radius | accuracy | auto | accuracy | share | purity rule | accuracy | share | random |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    figures = {}
    for name, results in found.items():
        mean = {key: float(np.mean([result[key] for result in results])) for key in results[0]}
        best, accuracy = max(((r, float(np.mean(a))) for r, a in curves[name].items()), key=lambda pair: pair[1])
        share, purity_share = mean["auto_auc"] / accuracy, mean["purity_auc"] / accuracy
        figures[f"{name}: accuracy of auto / best radius in hindsight"] = {
            "value": share,
            "target": TARGET,
            "at_most": False,
        }
        lines.append(
            f"| {name} | {best:.2f} | {accuracy:.3f} | {mean['auto']:.3f} | {mean['auto_auc']:.3f} | {share:.3f} | "
            f"{mean['purity']:.3f} | {mean['purity_auc']:.3f} | {purity_share:.3f} | {mean['random_auc']:.3f} |"
        )
    write_json(out / "radius.json", {"figures": figures, "estimates": found, "accuracy_by_radius": curves})
    write_text(out / "radius.md", "\n".join(lines) + "\n\n" + figures_markdown(figures))
    return figures
