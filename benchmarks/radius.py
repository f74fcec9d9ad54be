"""ProbCover's estimated radius against the best one in hindsight; see `cofal bench radius`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.data import embeddings
from cofal.bench.hindsight import bench_radius


def main(quick: bool) -> dict[str, dict[str, Any]]:
    out = Path(__file__).parent / "results"
    return bench_radius(out, embeddings(), quick=quick)
