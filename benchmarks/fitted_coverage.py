"""How much better exact picks look on the rows they were fitted to: why approximate mode is judged on other rows.

Run: python -m benchmarks.fitted_coverage EMBEDDINGS.npz
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import cofal
from cofal.bench import vectors
from cofal.bench.jobs import DELTA, SIGMA

ROWS, CHECK, SAMPLE, PICKS = 200_000, 50_000, 65_536, 1_000


def coverage(picks: np.ndarray, rows: np.ndarray, method: str) -> float:
    """Mean over `rows` of the kernel value to the nearest of `picks`; for ProbCover the share within the radius."""
    nearest = torch.cat(
        [(part @ torch.from_numpy(picks).T).max(1).values for part in torch.from_numpy(rows).split(4096)]
    )
    squares = 2 - 2 * nearest.double()
    return float(
        (squares <= DELTA**2).double().mean() if method == "probcover" else torch.exp(-squares / SIGMA**2).mean()
    )


def main() -> None:
    source = vectors.load(Path(sys.argv[1]))[0]
    with tempfile.TemporaryDirectory() as folder:
        vectors.write(Path(folder) / "rows.npy", source, ROWS)
        rows = np.load(Path(folder) / "rows.npy")[np.random.default_rng(0).permutation(ROWS)]
    own, other, sample = rows[:CHECK], rows[CHECK : 2 * CHECK], rows[2 * CHECK : 2 * CHECK + SAMPLE]
    print(
        "| method | exact picks on their own rows | on other rows | picks of a sample on the former | on the latter |"
    )
    print("| --- | ---: | ---: | ---: | ---: |")
    for method in ("probcover", "maxherding", "typiclust"):
        params = {"delta": DELTA} if method == "probcover" else {}
        exact, sampled = (part[cofal.select([part], [PICKS], method, **params).indices[0]] for part in (own, sample))
        figures = [coverage(picks, judges, method) for picks in (exact, sampled) for judges in (own, other)]
        print(f"| {method} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
