"""`python -m benchmarks.run [--quick] [NAME ...]` runs the benchmarks; prints one table of figures and targets.

A benchmark is a module of this package with `main(quick: bool) -> dict` of {figure: {value, target, at_most}}; what
more it has to tell it writes into benchmarks/results itself. benchmarks/data.py says where it looks for real data.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from cofal.bench.report import figures_markdown, print_figures, reached
from cofal.files import read_json, write_json, write_text

MODULES = ["select", "radius", "pretrain", "aggregate_selection", "aggregate_cost", "perturbed_selection"]
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or MODULES
    quick = "--quick" in sys.argv
    figures = {}
    for name in names:
        found = importlib.import_module(f"benchmarks.{name}").main(quick)
        if not quick:
            write_json(RESULTS / f"{name}-figures.json", found)
        figures |= {f"{name}: {figure}": value for figure, value in found.items()}
    kept = {name: RESULTS / f"{name}-figures.json" for name in MODULES}
    write_text(
        RESULTS / "figures.md",
        figures_markdown(
            {
                f"{name}: {figure}": value
                for name, file in kept.items()
                if file.exists()
                for figure, value in read_json(file).items()
            }
        ),
    )
    print_figures(figures)
    return 0 if all(reached(figure) for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
