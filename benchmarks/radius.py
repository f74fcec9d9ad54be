"""ProbCover's estimated radius against the best one in hindsight; see `cofal bench radius`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cofal.bench.hindsight import bench_radius


def main(quick: bool) -> dict[str, dict[str, Any]]:
    data = os.environ.get("COFAL_BENCH_DATA")
    out = Path(__file__).parent / "results"
    return bench_radius(out, Path(data) if data else None, quick=quick)
