"""What the terminal shows of a run: its plan before it starts, its results when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cofal.config import Config
from cofal.evaluation.curves import coordination_gap, mean_height


def print_settings(config: Config, out: Path) -> None:
    """The plan of a run, in the order of its phases."""
    data, clients, pretrain, selection, train = config.data, config.clients, config.pretrain, config.selection, config.train
    spread = clients.split + (f" (alpha {clients.alpha:g})" if clients.alpha else "")
    if config.encoder.frozen:
        encoder = f"public encoder {config.encoder.frozen}"
    elif config.encoder.path:
        encoder = f"saved encoder {config.encoder.path}"
    else:
        encoder = (
            f"federated SimCLR, {config.encoder.arch}, {pretrain.rounds} rounds x {pretrain.local_epochs} local epochs, "
            f"batch {pretrain.batch_size}, {pretrain.optimizer} {pretrain.lr:g}, {pretrain.strategy}"
        )
    noise = f", noise epsilon {selection.epsilon:g}" if selection.epsilon else ""
    model = f"{train.hidden}-unit head on the embedding" if train.model == "head" else f"image network {train.arch}"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("[bold]data", f"{data.source} {data.path}".strip() + (f", {data.limit} images" if data.limit else ""))
    table.add_row("[bold]clients", f"{clients.count or 'one per value of ' + data.column}, {spread}, seed {config.seed}")
    table.add_row("[bold]I   encoder", encoder)
    table.add_row("[bold]II  select", f"{', '.join(selection.methods)}; {', '.join(selection.coordination)}{noise}")
    table.add_row("", f"labels in all: {', '.join(map(str, selection.budgets))}; shares {selection.shares}")
    table.add_row("[bold]III train", f"{model}, {train.rounds} rounds x {train.local_epochs} local epochs, {train.strategy}")
    table.add_row("[bold]folder", str(out))
    Console(stderr=True).print(table)


def print_results(results: list[dict[str, Any]]) -> None:
    """Accuracy by track and budget, with the coordination gap beside each central track."""
    budgets = sorted({cell["budget"] for cell in results})
    curves = by_track(results)
    table = Table(title="Test accuracy (%) by number of labels", title_justify="left")
    for heading in ("selector", "coordination"):
        table.add_column(heading)
    for heading in [*map(str, budgets), "mean", "gap %"]:
        table.add_column(heading, justify="right")
    for (method, coordination), curve in curves.items():
        other = curves.get((method, "per-client"))
        gap = f"{coordination_gap(budgets, curve, other):+.1f}" if coordination == "central" and other else ""
        row = [f"{100 * value:.1f}" for value in curve] + [f"{100 * mean_height(budgets, curve):.1f}", gap]
        table.add_row(method, coordination, *row, style="bold" if coordination == "central" else "")
    Console().print(table)


def by_track(results: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """(method, coordination) -> accuracies by rising budget, in the order of the run."""
    curves: dict[tuple[str, str], list[float]] = {}
    for cell in sorted(results, key=lambda cell: cell["budget"]):
        curves.setdefault((cell["method"], cell["coordination"]), []).append(cell["accuracy"])
    order = {(cell["method"], cell["coordination"]): number for number, cell in reversed(list(enumerate(results)))}
    return dict(sorted(curves.items(), key=lambda item: order[item[0]]))
