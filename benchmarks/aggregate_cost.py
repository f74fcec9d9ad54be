"""Time and traffic of selecting 1,000 of 50,000 samples from aggregates, against the central selector.

`python -m benchmarks.aggregate_cost` writes results/aggregate-cost.{md,json}. Embeddings are the shared ones; without
them, random rows around 200 centres of the same shape.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch

import cofal
from benchmarks.data import embeddings
from benchmarks.picks import RADIUS, RESULTS
from cofal.bench.report import figures_markdown
from cofal.files import write_json, write_text
from cofal.rng import generator
from cofal.selection.aggregate.select import METHODS

CLIENTS, BUDGET, SAMPLES, DIMENSIONS = 4, 1000, 50_000, 256
TIMES, MEGABYTES = 3.0, 20.0  # allowed: times the central selector's time, sent by one client
SHARED: dict[str, dict[str, Any]] = {"probcover": {"delta": RADIUS["cifar10"]}}


def rows_of_clients(samples: int) -> list[np.ndarray]:
    rng, file = generator(0, "bench", "cost"), embeddings()
    if file is not None:
        x = np.load(file)["x_train"].astype(np.float32)
    else:
        centers = rng.standard_normal((200, DIMENSIONS))
        x = (centers[rng.integers(200, size=SAMPLES)] + rng.standard_normal((SAMPLES, DIMENSIONS))).astype(np.float32)
    return [np.ascontiguousarray(part) for part in np.array_split(x[rng.permutation(len(x))[:samples]], CLIENTS)]


def measure(method: str, rows: list[np.ndarray], budget: int, repeats: int) -> dict[str, float]:
    """The fewest seconds of `repeats`, by the clock and of the processor, of both, and what was exchanged."""
    asked, shared = [budget // CLIENTS] * CLIENTS, SHARED.get(method, {})
    both = ("central", "aggregate")
    for coordination in both:
        cofal.select([part[:300] for part in rows], [5] * CLIENTS, method, coordination, **shared)  # compiles
    clock: dict[str, list[float]] = {coordination: [] for coordination in both}
    processor: dict[str, list[float]] = {coordination: [] for coordination in both}
    for _ in range(repeats):
        for coordination in both:
            started = time.perf_counter(), time.process_time()
            found = cofal.select(rows, asked, method, coordination, **shared)
            clock[coordination].append(time.perf_counter() - started[0])
            processor[coordination].append(time.process_time() - started[1])
    return {
        **{f"{coordination} seconds": min(clock[coordination]) for coordination in both},
        **{f"{coordination} processor seconds": min(processor[coordination]) for coordination in both},
        "times": min(clock["aggregate"]) / min(clock["central"]),
        "rounds": found.rounds,
        "rounds allowed": 10 + budget / 20,
        "MB up": found.bytes_up / CLIENTS / 1e6,
    }


def figures(found: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = {}
    for method, one in found.items():
        listed[f"{method}: times the central time"] = {"value": one["times"], "target": TIMES, "at_most": True}
        listed[f"{method}: MB sent by a client"] = {"value": one["MB up"], "target": MEGABYTES, "at_most": True}
        listed[f"{method}: round trips"] = {"value": one["rounds"], "target": one["rounds allowed"], "at_most": True}
    return listed


def markdown(command: str, samples: int, budget: int, found: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Cost of selection from aggregates",
        "",
        f"`{command}`",
        "",
        f"{budget:,} of {samples:,} samples of {CLIENTS} clients, all in one process: one client answers after the "
        f"other. Seconds by the clock, with {torch.get_num_threads()} threads; those of the processor in brackets.",
        "",
        "| method | central, s | aggregate, s | times | round trips | MB sent by a client |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method, one in found.items():
        lines.append(
            f"| {method} | {one['central seconds']:.1f} ({one['central processor seconds']:.1f}) | "
            f"{one['aggregate seconds']:.1f} ({one['aggregate processor seconds']:.1f}) | {one['times']:.2f} | "
            f"{one['rounds']:.0f} | {one['MB up']:.1f} |"
        )
    return "\n".join([*lines, "", figures_markdown(figures(found))])


def main(quick: bool, arguments: list[str] | None = None) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate_cost", description=__doc__)
    parser.add_argument("--method", action="append", choices=METHODS, help="default: all")
    parser.add_argument("--repeats", type=int, default=1 if quick else 3)
    parser.add_argument("--name", default="aggregate-cost-quick" if quick else "aggregate-cost")
    options = parser.parse_args(arguments or [])
    samples, budget = (4000, 100) if quick else (SAMPLES, BUDGET)
    rows = rows_of_clients(samples)
    found = {method: measure(method, rows, budget, options.repeats) for method in options.method or METHODS}
    command = " ".join(["python -m benchmarks.aggregate_cost", *(arguments or [])])
    text = markdown(command, samples, budget, found)
    write_json(RESULTS / f"{options.name}.json", {"command": command, **found})
    write_text(RESULTS / f"{options.name}.md", text)
    print(text)
    return figures(found)


if __name__ == "__main__":
    main(quick=False, arguments=sys.argv[1:])
