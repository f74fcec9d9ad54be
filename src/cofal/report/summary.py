"""What the terminal shows of a run: its plan before it starts, its results when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cofal.config import Config
from cofal.evaluation.curves import coordination_gap, mean_height

_COLUMN = 6  # characters of a column of numbers, with the space before it


def print_settings(config: Config, out: Path) -> None:
    """The plan of a run, in the order of its phases."""
    data, clients, pretrain, selection, train = (
        config.data,
        config.clients,
        config.pretrain,
        config.selection,
        config.train,
    )
    spread = clients.split + (f" (alpha {clients.alpha:g})" if clients.alpha else "")
    if config.encoder.frozen:
        encoder = f"public encoder {config.encoder.frozen}"
    elif config.encoder.path:
        encoder = f"saved encoder {config.encoder.path}"
    else:
        encoder = (
            f"federated SimCLR, {config.encoder.arch}, {pretrain.rounds} rounds x "
            f"{pretrain.local_epochs} local epochs, batch {pretrain.batch_size}, "
            f"{pretrain.optimizer} {pretrain.lr:g}, {pretrain.strategy}"
        )
    noise = f"; noise epsilon {selection.epsilon:g} for {', '.join(selection.seeing)}" if selection.epsilon else ""
    model = f"{train.hidden}-unit head on the embedding" if train.model == "head" else f"image network {train.arch}"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("[bold]data", f"{data.source} {data.path}".strip() + (f", {data.limit} images" if data.limit else ""))
    table.add_row(
        "[bold]clients", f"{clients.count or 'one per value of ' + data.column}, {spread}, seed {config.seed}"
    )
    table.add_row("[bold]I   encoder", encoder)
    table.add_row("[bold]II  select", f"{', '.join(selection.methods)}; {', '.join(selection.coordination)}{noise}")
    table.add_row("", f"labels in all: {', '.join(map(str, selection.budgets))}; shares {selection.shares}")
    table.add_row(
        "[bold]III train", f"{model}, {train.rounds} rounds x {train.local_epochs} local epochs, {train.strategy}"
    )
    table.add_row("[bold]folder", str(out))
    Console(stderr=True).print(table)


def print_results(results: list[dict[str, Any]], console: Console | None = None) -> None:
    """Accuracy by track and budget, the coordination gap beside each coordinated track; fits the terminal's width."""
    console = console or Console()
    budgets = sorted({cell["budget"] for cell in results})
    curves = by_track(results)
    tracks = max(len(f"{method} {coordination}") for method, coordination in curves)
    shown = _evenly(list(range(len(budgets))), (console.width - tracks - 2 * _COLUMN) // _COLUMN)
    title = "Test accuracy (%) by number of labels"
    if len(shown) < len(budgets):
        title += f" ({len(shown)} of {len(budgets)} budgets; all are in results.json)"
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("labels", no_wrap=True)
    for heading in [*(str(budgets[number]) for number in shown), "mean", "gap %"]:
        table.add_column(heading, justify="right", no_wrap=True, min_width=_COLUMN - 1)
    for (method, coordination), curve in curves.items():
        other = curves.get((method, "per-client"))
        gap = (
            f"{coordination_gap(budgets, curve, other):+.1f}"
            if coordination != "per-client" and other and any(curve)
            else ""
        )
        row = [f"{100 * curve[number]:.1f}" for number in shown] + [f"{100 * mean_height(budgets, curve):.1f}", gap]
        table.add_row(f"{method} {coordination}", *row, style="bold" if coordination == "central" else "")
    console.print(title, style="italic", highlight=False)
    console.print(table)


def by_track(results: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """(method, coordination) -> accuracies by rising budget, in the order of the run."""
    curves: dict[tuple[str, str], list[float]] = {}
    for cell in sorted(results, key=lambda cell: cell["budget"]):
        curves.setdefault((cell["method"], cell["coordination"]), []).append(cell["accuracy"])
    order = {(cell["method"], cell["coordination"]): number for number, cell in reversed(list(enumerate(results)))}
    return dict(sorted(curves.items(), key=lambda item: order[item[0]]))


def _evenly(items: list[int], most: int) -> list[int]:
    """At most `most` (but at least two) of `items`, evenly spread, the first and the last among them."""
    most = max(2, most)
    if len(items) <= most:
        return items
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]
