"""Time and memory of the selectors; see `cofal bench select`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.data import embeddings
from cofal.bench.selecting import bench_select


def main(quick: bool) -> dict[str, dict[str, Any]]:
    out = Path(__file__).parent / "results"
    return bench_select(out, embeddings(), quick=quick, million=not quick)
