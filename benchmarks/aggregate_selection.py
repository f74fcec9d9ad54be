"""What selection from aggregates keeps of central selection: accuracy, coverage, round trips, bytes, time.

`python -m benchmarks.aggregate_selection --method probcover` measures on subsets of the shared embeddings (digits
without them or with `--data digits`), split over IID clients, and writes results/aggregate-METHOD.{md,json}; `--cost`
measures time and traffic at full size instead. `--param name=value` is the aggregate method's own, `--shared
name=value` goes to the central and per-client selectors as well.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cofal
from benchmarks.data import embeddings
from cofal.data.partition import partition
from cofal.errors import UserError
from cofal.evaluation.curves import mean_height
from cofal.files import read_json, write_json, write_text
from cofal.learning.head import build_head, predict_proba, train_head
from cofal.rng import generator, torch_generator
from cofal.selection.aggregate.exchange import Consortium, Exchanged, Holder, Method, run
from cofal.selection.pool import Pool
from cofal.selection.shares import divide

RESULTS = Path(__file__).parent / "results"
DIGITS = 1297  # of the 1,797 digits are the pool; the others test
HEADS = 3  # differently initialised classifiers whose accuracies are averaged
SHARED: dict[str, dict[str, dict[str, Any]]] = {  # parameters of the three selectors on each set
    "probcover": {"cifar10": {"delta": 0.85}, "digits": {"delta": 0.7}},
}
MODES = {
    "prefix": "one selection of the largest budget, of which the first picks are looked at",
    "nested": "a selection for each budget, the picks for the smaller budgets being labelled before",
    "scratch": "a selection for each budget, from nothing",
}
Order = list[tuple[int, int]]  # (client, position) in picked order


def method_of(name: str) -> Method:
    """Both halves of the aggregate selector: the one `Method` in its module."""
    module = importlib.import_module(f"cofal.selection.aggregate.{name}")
    return next(value for value in vars(module).values() if isinstance(value, Method))


def aggregate(
    method: Method,
    rows: Sequence[np.ndarray],
    budgets: Sequence[int],
    labeled: Sequence[np.ndarray],
    seed: int,
    **params: Any,
) -> tuple[Order, Exchanged]:
    """Drive both halves in this process."""
    pool = Pool(rows, labeled)
    holders = []
    for client in range(pool.clients):
        low, high = int(pool.offsets[client]), int(pool.offsets[client + 1])
        holders.append(Holder(pool.tile(low, high).numpy(), pool.labeled[low:high]))
    known = Consortium([len(h.rows) for h in holders], [int(h.taken.sum()) for h in holders], list(budgets), pool.d)
    clients, cost = run(method.coordinate(known, generator(seed, "select"), **params), holders, method.answer)
    turns = [iter(() if holder.picked is None else holder.picked) for holder in holders]
    return [(client, int(next(turns[client]))) for client in clients], cost


class Case:
    """A seed's subset of a labelled set of embeddings, dealt to clients, and the test rows that judge the picks."""

    def __init__(self, data: str, samples: int, clients: int, alpha: float | None, seed: int) -> None:
        rng = generator(seed, "bench", "aggregate")
        x, y, self.x_test, self.y_test = _load(data, rng)
        chosen = np.sort(rng.permutation(len(x))[:samples])
        x, y = x[chosen], y[chosen]
        split = "iid" if alpha is None else "dirichlet"
        parts = partition(y, clients, split=split, alpha=alpha, rng=generator(seed, "bench", "clients"))
        self.rows, self.labels = [x[part] for part in parts], [y[part] for part in parts]
        self.classes, self.seed = int(y.max()) + 1, seed

    def accuracy(self, picks: Order) -> float:
        """Percent of the test rows that a head on the pooled labels of `picks` gets right; mean of several heads."""
        x = np.array([self.rows[client][position] for client, position in picks])
        y = np.array([self.labels[client][position] for client, position in picks]).astype(np.int64)
        right = []
        for head in range(HEADS):
            stream = torch_generator(self.seed, "bench", "head", head)
            model = build_head(x.shape[1], 256, self.classes, stream)
            train_head(
                model,
                x,
                y,
                epochs=40,
                batch_size=len(y),
                lr=0.02,
                weight_decay=0.0,
                optimizer="adamw",
                generator=stream,
            )
            right.append(100 * float((predict_proba(model, self.x_test).argmax(1) == self.y_test).mean()))
        return float(np.mean(right))

    def coverage(self, picks: Order, delta: float | None) -> float:
        """Percent of all rows within `delta` of a pick; without it, the mean Gaussian kernel value to the nearest."""
        x = np.concatenate(self.rows)
        squared = (2 - 2 * x @ np.array([self.rows[client][position] for client, position in picks]).T).min(1)
        return 100 * float((squared <= delta**2).mean() if delta else np.exp(-np.maximum(squared, 0)).mean())


def _load(data: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Unit rows and labels, for training and for testing."""
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = rng.permutation(len(digits.data))
        x, y, first = digits.data[order] - digits.data.mean(0), digits.target[order], DIGITS
        x, y, x_test, y_test = x[:first], y[:first], x[first:], y[first:]
    else:
        file = embeddings()
        if file is None:
            raise UserError("no embeddings/*.npz below the folder COFAL_DATA; name the folder or use --data digits")
        content = np.load(file)
        x, y, x_test, y_test = (content[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    return _unit(x), y.astype(np.int64), _unit(x_test), y_test.astype(np.int64)


def _unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


Select = Callable[[list[int], list[np.ndarray]], tuple[Order, Exchanged | None]]


def curve(case: Case, budgets: Sequence[int], mode: str, select: Select, delta: float | None) -> dict[str, Any]:
    """Accuracy and coverage at each total budget, and what the selections exchanged."""
    clients, sizes = len(case.rows), [len(rows) for rows in case.rows]
    labeled = [np.empty(0, dtype=np.int64) for _ in range(clients)]
    shares = {total: divide(total, [1.0] * clients, sizes) for total in budgets}
    picks: Order = []
    found: dict[str, Any] = {"accuracy": [], "coverage": [], "rounds": [], "up": [], "down": []}
    for total in [budgets[-1]] if mode == "prefix" else budgets:
        if mode == "scratch":
            picks = []
        already = [sum(client == k for client, _ in picks) for k in range(clients)]
        asked = [share - had for share, had in zip(shares[total], already)]
        order, cost = select(asked, labeled)
        assert [sum(client == k for client, _ in order) for k in range(clients)] == asked, "a budget was not kept"
        assert len(set(picks + order)) == len(picks) + len(order), "a sample was picked twice"
        picks = picks + order
        if mode == "nested":
            labeled = [np.array([p for client, p in picks if client == k], dtype=np.int64) for k in range(clients)]
        if cost is not None:
            found["rounds"].append(cost.rounds)
            found["up"].append(max(cost.up))
            found["down"].append(max(cost.down))
        for budget in budgets if mode == "prefix" else [total]:
            found["accuracy"].append(case.accuracy(picks[:budget]))
            found["coverage"].append(case.coverage(picks[:budget], delta))
    return found


def curves(options: argparse.Namespace, mode: str) -> dict[str, list[dict[str, Any]]]:
    """The curves of every track, one for each seed; those that do not depend on the aggregate method are kept."""
    method, shared = method_of(options.method), options.shared
    tracks: dict[str, list[dict[str, Any]]] = {"random": [], "per-client": [], "central": [], "aggregate": []}
    for seed in options.seeds:
        case = Case(options.data, options.samples, options.clients, options.alpha, seed)
        for track, results in tracks.items():

            def select(asked: list[int], labeled: list[np.ndarray], track: str = track, seed: int = seed) -> Any:
                if track == "aggregate":
                    return aggregate(method, case.rows, asked, labeled, seed, **shared, **options.param)  # noqa: B023
                if track == "random":
                    picks = cofal.select(case.rows, asked, "random", labeled=labeled, seed=seed)  # noqa: B023
                else:
                    picks = cofal.select(case.rows, asked, options.method, track, labeled, seed, **shared)  # noqa: B023
                return picks.order, None

            def measure(select: Select = select, case: Case = case) -> dict[str, Any]:
                return curve(case, options.budgets, mode, select, shared.get("delta"))

            if track == "aggregate":
                results.append(measure())
            else:
                key = [options.data, options.samples, options.clients, options.alpha, seed, mode, options.budgets]
                results.append(_kept([*key, "" if track == "random" else options.method, track, shared], measure))
    return tracks


def _kept(key: list[Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A result from the temporary folder if it is there: the baselines stay the same while a method is worked on."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = Path(tempfile.gettempdir()) / "cofal-aggregate-bench" / f"{digest}.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        write_json(file, measure())
    found: dict[str, Any] = read_json(file)
    return found


def summary(options: argparse.Namespace, tracks: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, areas under the curves, and the share of the gap to central selection that is recovered."""
    mean = {track: np.mean([r["accuracy"] for r in results], axis=0) for track, results in tracks.items()}
    spread = {track: np.std([r["accuracy"] for r in results], axis=0) for track, results in tracks.items()}
    area = {track: mean_height(options.budgets, list(values)) for track, values in mean.items()}
    few = [i for i, budget in enumerate(options.budgets) if budget <= 100]
    low = {
        track: mean_height([options.budgets[i] for i in few], [values[i] for i in few])
        for track, values in mean.items()
    }
    exchanged = {
        name: float(np.max([r[name] for r in tracks["aggregate"]], initial=0)) for name in ("rounds", "up", "down")
    }
    return {
        "accuracy": {track: [float(v) for v in values] for track, values in mean.items()},
        "spread over seeds": {track: [float(v) for v in values] for track, values in spread.items()},
        "area": area,
        "share recovered": (low["aggregate"] - low["per-client"]) / (low["central"] - low["per-client"]),
        "above per-client at every budget up to 100": bool((mean["aggregate"] > mean["per-client"])[few].all()),
        "coverage": {t: [float(v) for v in np.mean([r["coverage"] for r in rs], axis=0)] for t, rs in tracks.items()},
        "exchanged at most": exchanged,
        "seeds": tracks,
    }


def markdown(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"# {options.method} from aggregates, against central and per-client selection",
        "",
        f"`{options.command}`",
        "",
    ]
    split = "IID" if options.alpha is None else f"Dirichlet {options.alpha}"
    lines += [
        f"{options.data}, {options.samples:,} points, {options.clients} {split} clients, seeds {options.seeds}, "
        f"parameters {options.shared | options.param}. Test accuracy in percent: mean over the seeds of {HEADS} heads "
        "trained on the pooled picked labels; area: mean height of the curve; coverage: "
        + (
            "percent of points within the radius of a pick"
            if options.shared.get("delta")
            else "mean kernel value x 100"
        )
        + ", mean over the budgets.",
    ]
    for mode, one in found.items():
        lines += ["", f"## {mode}: {MODES[mode]}", ""]
        lines += ["| track | " + " | ".join(str(b) for b in options.budgets) + " | area | coverage |"]
        lines += ["| --- |" + " ---: |" * (len(options.budgets) + 2)]
        for track, values in one["accuracy"].items():
            cells = [f"{v:.1f}" for v in [*values, one["area"][track], float(np.mean(one["coverage"][track]))]]
            lines.append(f"| {track} | " + " | ".join(cells) + " |")
        most = one["exchanged at most"]
        lines += [
            "",
            f"Share of the difference between per-client and central that is recovered (budgets up to 100): "
            f"{one['share recovered']:.2f}; above per-client at every budget up to 100: "
            f"{'yes' if one['above per-client at every budget up to 100'] else 'no'}. A selection took at most "
            f"{most['rounds']:.0f} round trips and, of one client, {most['up'] / 1e6:.2f} MB up and "
            f"{most['down'] / 1e6:.2f} MB down.",
        ]
    return "\n".join(lines) + "\n"


def cost(options: argparse.Namespace) -> dict[str, Any]:
    """Time and traffic of selecting 1,000 of all samples, against the central selector."""
    case = Case(options.data, options.samples, options.clients, options.alpha, 0)
    asked = divide(options.budgets[-1], [1.0] * options.clients, [len(rows) for rows in case.rows])
    none = [np.empty(0, dtype=np.int64) for _ in case.rows]
    small = [rows[:300] for rows in case.rows]
    cofal.select(small, [5] * options.clients, options.method, **options.shared)  # compiles
    aggregate(method_of(options.method), small, [5] * options.clients, none, 0, **options.shared, **options.param)
    started = time.perf_counter()
    central = cofal.select(case.rows, asked, options.method, **options.shared).order
    middle = time.perf_counter()
    order, exchanged = aggregate(
        method_of(options.method), case.rows, asked, none, 0, **options.shared, **options.param
    )
    ended = time.perf_counter()
    alone = cofal.select(case.rows, asked, options.method, "per-client", **options.shared).order
    tracks = {"per-client": alone, "central": central, "aggregate": order}
    delta = options.shared.get("delta")
    return {
        "samples": sum(len(rows) for rows in case.rows),
        "budget": options.budgets[-1],
        "central seconds": middle - started,
        "aggregate seconds": ended - middle,
        "times": (ended - middle) / (middle - started),
        "rounds": exchanged.rounds,
        "MB up": max(exchanged.up) / 1e6,
        "MB down": max(exchanged.down) / 1e6,
        "coverage": {track: case.coverage(picks, delta) for track, picks in tracks.items()},
        "accuracy": {track: case.accuracy(picks) for track, picks in tracks.items()},
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate_selection", description=__doc__)
    parser.add_argument("--method", required=True, choices=["probcover", "typiclust", "maxherding"])
    parser.add_argument("--data", default="cifar10" if embeddings() else "digits", choices=["cifar10", "digits"])
    parser.add_argument("--samples", type=int, help="points of the pool; default 4,000, with --cost all")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--alpha", type=float, help="Dirichlet split instead of an IID one")
    parser.add_argument("--budgets", type=lambda t: [int(b) for b in t.split(",")], help="totals, such as 12,20,40")
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2, 3, 4])
    parser.add_argument("--mode", action="append", choices=list(MODES), help="default: prefix and nested")
    parser.add_argument("--param", action="append", default=[], help="name=value of the aggregate method")
    parser.add_argument("--shared", action="append", default=[], help="name=value of all three")
    parser.add_argument("--cost", action="store_true", help="time and traffic at full size")
    parser.add_argument("--name", help="of the result files; default aggregate-METHOD")
    options = parser.parse_args(arguments)
    options.command = "python -m benchmarks.aggregate_selection " + " ".join(arguments)
    options.shared = SHARED.get(options.method, {}).get(options.data, {}) | _values(options.shared)
    options.param = _values(options.param)
    options.mode = options.mode or ["prefix", "nested"]
    options.samples = options.samples or (50_000 if options.cost else 4_000)
    if options.data == "digits":
        options.samples = min(options.samples, DIGITS)
    options.budgets = options.budgets or ([1000] if options.cost else [12, 20, 40, 60, 80, 100])
    return options


def _values(given: list[str]) -> dict[str, Any]:
    def value(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    return {name: value(text) for name, text in (item.split("=", 1) for item in given)}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    name = options.name or f"aggregate-{options.method}"
    if options.cost:
        found = cost(options)
        write_json(RESULTS / f"{name}-cost.json", {"command": options.command, **found})
        print(json.dumps(found, indent=1))
        return 0
    results = {mode: summary(options, curves(options, mode)) for mode in options.mode}
    text = markdown(options, results)
    write_json(RESULTS / f"{name}.json", {"command": options.command, **results})
    write_text(RESULTS / f"{name}.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
