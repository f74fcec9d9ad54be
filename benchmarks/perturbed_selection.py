"""What noise on the embeddings costs a central selection: area under the accuracy curve, by method and epsilon.

`python -m benchmarks.perturbed_selection` measures on subsets of the embeddings in the folder COFAL_DATA
(benchmarks/data.py; digits without them or with `--data digits`), split over IID clients, and writes
results/perturbed.{md,json}, or perturbed-trial.{md,json} with other settings than the defaults. Picks are made on
noised embeddings; the heads that judge them are trained on the clean ones, which their owners keep.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

import numpy as np

import cofal
from benchmarks.data import embeddings, mistakes
from benchmarks.picks import DATA, RADIUS, RESULTS, SAMPLES, Case, Order, curve
from cofal.bench.report import figures_markdown
from cofal.evaluation.curves import mean_height
from cofal.evaluation.statistics import Estimate, estimate
from cofal.files import write_json, write_text

BUDGETS = [10, 20, 40, 60, 80, 100]  # from one label a class
SEEDS = list(range(10, 60))  # the correction of the radius was tried out on others
NESTED = ("typiclust",)  # whose clusters depend on the budget: a selection for each. The greedy ones: one selection
CHANGED = ("samples", "clients", "seeds", "track", "epsilons")  # a trial where they are
EPSILONS = [0.0, 0.1, 0.3, 0.6, 1.0]
TRACKS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> method and parameters; "delta" is filled in for each set
    "MaxHerding": ("maxherding", {}),
    "MaxHerding, vmf": ("maxherding", {"mechanism": "vmf"}),
    "TypiClust": ("typiclust", {}),
    "ProbCover, radius as given": ("probcover", {"delta": None, "correct_radius": False}),
    "ProbCover, radius corrected": ("probcover", {"delta": None}),
    "ProbCover, radius corrected, vmf": ("probcover", {"delta": None, "mechanism": "vmf"}),
    "ProbCover, radius estimated on the noised": ("probcover", {"delta": "auto"}),
}
TARGETS = {  # share of the noiseless area that may be lost at epsilon 0.6
    "MaxHerding": 0.01,
    "TypiClust": 0.01,
    "ProbCover, radius corrected": 0.05,
    "ProbCover, radius estimated on the noised": 0.05,
}


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[list[float]]]]:
    """track -> epsilon -> accuracies in percent, one curve over `BUDGETS` for each seed."""
    found: dict[str, dict[str, list[list[float]]]] = {t: {str(e): [] for e in options.epsilons} for t in options.track}
    for seed in options.seeds:
        case = Case(options.data, options.samples, options.clients, None, seed)
        for track in options.track:
            method, given = TRACKS[track]
            params = {**given, **({"delta": RADIUS[options.data]} if given.get("delta", 0) is None else {})}
            for epsilon in options.epsilons:

                def select(
                    asked: list[int],
                    labeled: list[np.ndarray],
                    case: Case = case,
                    seed: int = seed,
                    method: str = method,
                    epsilon: float = epsilon,
                    params: dict[str, Any] = params,
                ) -> tuple[Order, None]:
                    picks = cofal.select(case.rows, asked, method, "central", labeled, seed, epsilon, **params)
                    return picks.order, None

                mode = "nested" if method in NESTED else "prefix"
                found[track][str(epsilon)].append(curve(case, BUDGETS, mode, select, None)["accuracy"])
    return found


def areas(found: dict[str, dict[str, list[list[float]]]]) -> dict[str, dict[str, list[float]]]:
    """track -> epsilon -> area (mean height, percent) of each seed's curve."""
    return {
        track: {epsilon: [mean_height(BUDGETS, one) for one in curves] for epsilon, curves in rows.items()}
        for track, rows in found.items()
    }


def lost(area: dict[str, list[float]], epsilon: float) -> Estimate:
    """Share of the noiseless area that is lost, over the seeds."""
    return estimate((1 - np.array(area[str(epsilon)]) / np.array(area["0.0"])).tolist())


def figures(found: dict[str, dict[str, list[list[float]]]]) -> dict[str, dict[str, Any]]:
    """The targets at epsilon 0.6."""
    area = areas(found)
    return {
        f"{track}: area lost at epsilon 0.6": {"value": lost(area[track], 0.6).mean, "target": target, "at_most": True}
        for track, target in TARGETS.items()
        if "0.6" in area.get(track, {})
    }


def markdown(options: argparse.Namespace, found: dict[str, dict[str, list[list[float]]]]) -> str:
    area = areas(found)
    delta = RADIUS[options.data]
    lines = [
        "# Selection from noised embeddings",
        "",
        f"`{options.command}`",
        "",
        f"{options.data}, {options.samples:,} points, {options.clients} IID clients, seeds {options.seeds}, budgets "
        f"{BUDGETS}: TypiClust a selection for each with the earlier picks labelled, the others the first picks of one "
        f"selection; ProbCover's radius {delta}. Accuracy in percent: mean over the seeds, Phase III's head on "
        "the clean embeddings of the picks. Area: mean height of the curve.",
        "",
        "## Area under the curve; in brackets the share lost against no noise (mean over seeds, 95 % interval)",
        "",
        "| track | " + " | ".join(f"epsilon {e:g}" for e in options.epsilons) + " |",
        "| --- |" + " ---: |" * len(options.epsilons),
    ]
    for track, rows in area.items():
        cells = [f"{np.mean(rows['0.0']):.1f}"]
        for epsilon in options.epsilons[1:]:
            share = lost(rows, epsilon)
            span = f"{100 * share.mean:+.1f} %, {100 * share.low:+.1f} to {100 * share.high:+.1f}"
            cells.append(f"{np.mean(rows[str(epsilon)]):.1f} ({span})")
        lines.append(f"| {track} | " + " | ".join(cells) + " |")
    lines += ["", "## Accuracy at one label a class", ""]
    lines += [
        "| track | " + " | ".join(f"epsilon {e:g}" for e in options.epsilons) + " |",
        "| --- |" + " ---: |" * len(options.epsilons),
    ]
    for track, curves in found.items():
        cells = [f"{np.mean([one[0] for one in curves[str(e)]]):.1f}" for e in options.epsilons]
        lines.append(f"| {track} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "## Targets", "", figures_markdown(figures(found))])


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perturbed_selection", description=__doc__)
    parser.add_argument("--data", default="cifar10" if embeddings() else "digits", choices=DATA)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=SEEDS)
    parser.add_argument("--track", action="append", choices=list(TRACKS), help="default: all")
    parser.add_argument("--epsilons", type=lambda t: [float(e) for e in t.split(",")], default=EPSILONS, help="0 first")
    parser.add_argument("--name", help="of the result files; default perturbed")
    options = parser.parse_args(arguments)
    changed = [name for name in CHANGED if getattr(options, name) != parser.get_default(name)]
    options.name = options.name or ("perturbed-trial" if changed or options.data == "digits" else "perturbed")
    options.command = shlex.join(["python", "-m", "benchmarks.perturbed_selection", *arguments])
    options.track = options.track or list(TRACKS)
    if options.data == "digits":
        options.samples = min(options.samples, SAMPLES["digits"])
    return options


def main(quick: bool, arguments: list[str] | None = None) -> dict[str, dict[str, Any]]:
    options = parse(arguments or [])
    if quick:
        options.samples, options.seeds, options.name = 1000, [0], f"{options.name}-quick"
    found = measure(options)
    content = {"command": options.command, "budgets": BUDGETS, "accuracy": found, "area": areas(found)}
    write_json(RESULTS / f"{options.name}.json", content)
    text = markdown(options, found)
    write_text(RESULTS / f"{options.name}.md", text)
    print(text)
    return figures(found)


if __name__ == "__main__":
    with mistakes():
        main(quick=False, arguments=sys.argv[1:])
