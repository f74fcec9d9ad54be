"""Time and memory of the selectors; see `cofal bench select`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cofal.bench.selecting import bench_select


def main(quick: bool) -> dict[str, dict[str, Any]]:
    data = os.environ.get("COFAL_BENCH_DATA")
    out = Path(__file__).parent / "results"
    return bench_select(out, Path(data) if data else None, quick=quick, million=not quick)
