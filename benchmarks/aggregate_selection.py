"""What selection from aggregates keeps of central selection: accuracy, coverage, round trips, bytes.

`python -m benchmarks.aggregate_selection --method probcover` measures on subsets of the embeddings in the folder
COFAL_DATA (benchmarks/data.py; digits without them or with `--data digits`), split over IID clients, and writes
results/aggregate-METHOD.{md,json}; other settings than the defaults go to aggregate-METHOD-trial unless `--name` says
otherwise. `--param name=value` is the aggregate method's own, `--shared name=value` goes to the central and per-client
selectors as well. `python -m benchmarks.run aggregate_selection` makes all tables anew. Time and traffic:
benchmarks/aggregate_cost.py.
"""

from __future__ import annotations

import argparse
import ast
import sys
from typing import Any

import numpy as np

import cofal
from benchmarks.data import embeddings, mistakes
from benchmarks.picks import DATA, MODES, RADIUS, RESULTS, SAMPLES, Case, Order, curve
from cofal.bench.report import figures_markdown
from cofal.evaluation.curves import mean_height
from cofal.files import write_json, write_text
from cofal.selection.aggregate.exchange import Exchanged
from cofal.selection.aggregate.select import METHODS, aggregate, aggregate_method
from cofal.selection.pool import Budgets, Pool

SHARES = {"probcover": 0.9, "typiclust": 1.0, "maxherding": 0.75}  # of the difference that must be recovered
FEW = 100  # labels, ten a class: the targets are for budgets up to this
SEEDS = list(range(10, 40))  # none of the methods was tried out on these
CHANGED = ("samples", "clients", "alpha", "budgets", "seeds", "mode", "param", "shared")  # a trial where they are
TRACKS = ("random", "per-client", "central", "aggregate")


def picks_of(
    case: Case, asked: list[int], labeled: list[np.ndarray], track: str, options: argparse.Namespace
) -> tuple[Order, Exchanged | None]:
    """One track's picks in their order, and what an aggregate selection exchanged for them."""
    if track == "aggregate":
        pool = Pool(case.rows, labeled)
        params = options.shared | options.param
        _, order, cost = aggregate(aggregate_method(options.method), pool, Budgets(asked, pool), case.seed, params)
        return order, cost
    if track == "random":
        return cofal.select(case.rows, asked, "random", labeled=labeled, seed=case.seed).order, None
    return cofal.select(case.rows, asked, options.method, track, labeled, case.seed, **options.shared).order, None


def curves(options: argparse.Namespace, mode: str) -> dict[str, list[dict[str, Any]]]:
    """The curves of every track, one for each seed."""
    tracks: dict[str, list[dict[str, Any]]] = {track: [] for track in TRACKS}
    for seed in options.seeds:
        case = Case(options.data, options.samples, options.clients, options.alpha, seed)
        for track, results in tracks.items():

            def select(
                asked: list[int], labeled: list[np.ndarray], case: Case = case, track: str = track
            ) -> tuple[Order, Exchanged | None]:
                return picks_of(case, asked, labeled, track, options)

            results.append(curve(case, options.budgets, mode, select, _radius(options)))
    return tracks


def _radius(options: argparse.Namespace) -> float | None:
    """Of the balls that coverage is told of; None where each selection has its own, or none."""
    delta = options.shared.get("delta")
    return None if isinstance(delta, str) else delta


def summary(options: argparse.Namespace, tracks: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, areas under the curves, and the share of the gap to central selection that is recovered."""
    mean = {track: np.mean([r["accuracy"] for r in results], axis=0) for track, results in tracks.items()}
    spread = {track: np.std([r["accuracy"] for r in results], axis=0) for track, results in tracks.items()}
    few = [i for i, budget in enumerate(options.budgets) if budget <= FEW] or list(range(len(options.budgets)))
    each = {  # area of each seed's curve
        track: [mean_height([options.budgets[i] for i in few], [r["accuracy"][i] for i in few]) for r in results]
        for track, results in tracks.items()
    }
    area = {track: float(np.mean(values)) for track, values in each.items()}
    ahead = np.array(each["aggregate"]) - np.array(each["central"])
    exchanged = {
        name: float(np.max([r[name] for r in tracks["aggregate"]], initial=0)) for name in ("rounds", "up", "down")
    }
    return {
        "accuracy": {track: [float(v) for v in values] for track, values in mean.items()},
        "spread over seeds": {track: [float(v) for v in values] for track, values in spread.items()},
        "area": area,
        "share recovered": (area["aggregate"] - area["per-client"]) / (area["central"] - area["per-client"]),
        "area above central": float(ahead.mean()),
        "standard error": float(ahead.std(ddof=1) / np.sqrt(len(ahead))) if len(ahead) > 1 else 0.0,
        "budgets not above per-client": [
            options.budgets[i] for i in few if mean["aggregate"][i] <= mean["per-client"][i]
        ],
        "coverage": {t: [float(v) for v in np.mean([r["coverage"] for r in rs], axis=0)] for t, rs in tracks.items()},
        "exchanged at most": exchanged,
        "seeds": tracks,
    }


def figures(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The targets, for each mode."""
    listed: dict[str, dict[str, Any]] = {}
    for mode, one in found.items():
        name = f"{options.method}, {options.data}, {mode}"
        listed[f"{name}: share recovered"] = {
            "value": one["share recovered"],
            "target": SHARES[options.method],
            "at_most": False,
        }
        listed[f"{name}: budgets up to {FEW} not above per-client"] = {
            "value": len(one["budgets not above per-client"]),
            "target": 0,
            "at_most": True,
        }
    return listed


def markdown(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> str:
    split = "IID" if options.alpha is None else f"Dirichlet {options.alpha}"
    covered = "percent of points within the radius of a pick" if _radius(options) else "mean kernel value x 100"
    lines = [
        f"# {options.method} from aggregates, against central and per-client selection",
        "",
        f"`{options.command}`",
        "",
        f"{options.data}, {options.samples:,} points, {options.clients} {split} clients, seeds {options.seeds}, "
        f"parameters {options.shared | options.param}. Test accuracy in percent: mean over the seeds, of Phase III's "
        f"head on the pooled picked labels; area: mean height of the curve up to {FEW} labels; coverage: {covered}, "
        "mean over the budgets.",
    ]
    for mode, one in found.items():
        lines += ["", f"## {mode}: {MODES[mode]}", ""]
        lines += ["| track | " + " | ".join(str(b) for b in options.budgets) + " | area | coverage |"]
        lines += ["| --- |" + " ---: |" * (len(options.budgets) + 2)]
        for track, values in one["accuracy"].items():
            cells = [f"{v:.1f}" for v in [*values, one["area"][track], float(np.mean(one["coverage"][track]))]]
            lines.append(f"| {track} | " + " | ".join(cells) + " |")
        most, below = one["exchanged at most"], one["budgets not above per-client"]
        lines += [
            "",
            f"Share of the difference between per-client and central that is recovered: {one['share recovered']:.2f} "
            f"(aggregate minus central: {one['area above central']:+.2f} ± {one['standard error']:.2f}, standard error "
            f"over seeds). Not above per-client at budgets: {', '.join(map(str, below)) or 'none'}. A selection took "
            f"at most {most['rounds']:.0f} round trips and, of one client, {most['up'] / 1e6:.2f} MB up and "
            f"{most['down'] / 1e6:.2f} MB down.",
        ]
    return "\n".join([*lines, "", "## Targets", "", figures_markdown(figures(options, found))])


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate_selection", description=__doc__)
    parser.add_argument("--method", required=True, choices=METHODS)
    parser.add_argument("--data", default="cifar10" if embeddings() else "digits", choices=DATA)
    parser.add_argument("--samples", type=int, help="points of the pool; default 4,000, or all digits")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--alpha", type=float, help="Dirichlet split instead of an IID one")
    parser.add_argument("--budgets", type=_numbers, default=[10, 20, 40, 60, 80, 100], help="totals, as 10,20,40")
    parser.add_argument("--seeds", type=_numbers, default=SEEDS)
    parser.add_argument("--mode", action="append", choices=list(MODES), help="default: prefix and nested")
    parser.add_argument("--param", action="append", default=[], help="name=value of the aggregate method")
    parser.add_argument("--shared", action="append", default=[], help="name=value of all three")
    parser.add_argument("--name", help="of the result files; default aggregate-METHOD")
    options = parser.parse_args(arguments)
    changed = [name for name in CHANGED if getattr(options, name) != parser.get_default(name)]
    end = ("" if options.data == "cifar10" else f"-{options.data}") + ("-trial" if changed else "")
    options.name = options.name or f"aggregate-{options.method}{end}"
    options.command = " ".join(["python -m benchmarks.aggregate_selection", *arguments])
    radius = {"delta": RADIUS[options.data]} if options.method == "probcover" else {}
    options.shared = radius | _values(options.shared)
    options.param = _values(options.param)
    options.mode = options.mode or ["prefix", "nested"]
    options.samples = options.samples or SAMPLES[options.data]
    if options.data == "digits":
        options.samples = min(options.samples, SAMPLES["digits"])
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _values(given: list[str]) -> dict[str, Any]:
    def value(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    return {name: value(text) for name, text in (item.split("=", 1) for item in given)}


def table(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure, write the table of these options, and return its figures."""
    name = options.name
    results = {mode: summary(options, curves(options, mode)) for mode in options.mode}
    text = markdown(options, results)
    write_json(RESULTS / f"{name}.json", {"command": options.command, **results})
    write_text(RESULTS / f"{name}.md", text)
    print(text)
    return figures(options, results)


def main(quick: bool) -> dict[str, dict[str, Any]]:
    """The tables of all methods on all sets that are there."""
    found: dict[str, dict[str, Any]] = {}
    for data in ["cifar10", "digits"] if embeddings() else ["digits"]:
        for method in METHODS:
            end = f"{'' if data == 'cifar10' else '-digits'}{'-quick' if quick else ''}"
            arguments = ["--method", method, "--data", data, "--name", f"aggregate-{method}{end}"]
            found |= table(parse([*arguments, *(["--seeds", "10,11", "--samples", "1200"] if quick else [])]))
    return found


if __name__ == "__main__":
    with mistakes():
        table(parse(sys.argv[1:]))
