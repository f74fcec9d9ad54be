"""The sections of a report, each made from a run's facts or None where the run does not hold what it needs."""

from __future__ import annotations

from typing import Any

from cofal.report.chart import Series, bar_chart, line_chart
from cofal.report.embedding_map import SIDE, Map
from cofal.report.facts import ALONE, TOGETHER, WORDS, Facts, title, track_title
from cofal.report.finding import gap, percent
from cofal.report.pictures import Gallery
from cofal.report.redundancy import Redundancy

Section = dict[str, Any]
_MOST_PICKS_SHOWN = 300
_READABLE_PICKS = 24  # more marks than this at once hide each other

PHASES = {
    "describe": "Roll call",
    "pretrain": "Phase I: training the encoder",
    "embed": "Phase II: embedding",
    "assign": "Phase II: telling each client its picks",
    "train": "Phase III: training",
    "evaluate": "Phase III: evaluation at the clients",
}
LEFT = {
    "raw": "Every client sent the embedding of each of its images to the server as it is, and model weights. Images and labels stayed where they are.",
    "perturbed": "Every client sent the embedding of each of its images to the server with noise added, and model weights. Images and labels stayed where they are.",
    "none": "No embedding left a client: only sample ids, counts and model weights did. Images and labels stayed where they are.",
}


def what_was_run(facts: Facts) -> list[tuple[str, str]]:
    """Pairs of a term and what it was in this run."""
    config, data, clients = facts.config, facts.data, facts.clients
    selection, train, pretrain = config.selection, config.train, config.pretrain
    counts = f"{data['train']:,} images to choose from, {data['test']:,} to test on, {len(data['classes'])} classes" if data else ""
    source = f"{config.data.source} {config.data.path}".strip()
    sizes = sorted(clients.values())
    each = f"{sizes[0]:,}" if sizes and sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}" if sizes else ""
    splits = {"iid": "alike (IID split)", "dirichlet": f"unlike (Dirichlet split, alpha {config.clients.alpha})", "by-column": "as the data's own column splits them"}
    if config.encoder.frozen:
        encoder = f"Public and frozen: {config.encoder.frozen}"
    elif config.encoder.path:
        encoder = f"Saved earlier: {config.encoder.path}"
    else:
        encoder = (
            f"Federated SimCLR on the clients' own images: {config.encoder.arch}, {pretrain.rounds} rounds of "
            f"{pretrain.local_epochs} local epoch{'s' if pretrain.local_epochs > 1 else ''}, {pretrain.strategy}"
        )
    kinds = [WORDS[kind] for kind in (TOGETHER, ALONE) if any(key[1] == kind and key[0] != "random" for key in facts.curves)]
    selectors = ", ".join(map(title, facts.selectors)) + (f"; each {' and '.join(kinds)}" if kinds else "")
    if facts.random is not None:
        selectors += f"{'; ' if facts.selectors else ''}{'random as a yardstick' if facts.selectors else 'Random'}"
    model = f"{train.hidden}-unit head on the frozen embedding" if train.model == "head" else f"Image network {train.arch}"
    where = "on the server's test set" if train.evaluate == "server" else "on test sets at the clients, counts added"
    return [
        ("Data", ". ".join(part for part in (source, counts) if part)),
        ("Clients", f"{len(clients)}, {each} images each, {splits[config.clients.split]}" if clients else splits[config.clients.split]),
        ("Encoder", encoder),
        ("Selectors", selectors),
        ("Labels", f"{', '.join(map(str, facts.budgets))} in all, {_shares(selection.shares)}"),
        ("Classifier", f"{model}, {train.rounds} federated rounds, tested {where}"),
        ("Seed", str(config.seed)),
    ]


def _shares(shares: str | list[int]) -> str:
    if shares == "equal":
        return "divided equally among the clients"
    return "divided by the clients' sizes" if shares == "proportional" else f"divided {' : '.join(map(str, shares))}"


def accuracy(facts: Facts) -> Section:
    """The accuracy-budget curves and the numbers behind them."""
    return {
        "chart": _by_budget(facts, facts.curves, "Test accuracy, %", "Test accuracy by number of labels, one line a track."),
        "table": _table(facts, facts.curves),
    }


def coordination(facts: Facts) -> Section | None:
    """The empirical coordination gap of every method that ran both ways."""
    gaps = {method: gap(facts.budgets, facts.curves[method, TOGETHER], facts.curves[method, ALONE]) for method in facts.pairs}
    bars = [(title(method), method, value, f"{value:+.1f}\u00a0%".replace("-", "−")) for method, value in gaps.items() if value is not None]
    if not bars:
        return None
    told = "; ".join(f"{name} {text}" for name, _, _, text in bars)
    return {"chart": bar_chart(bars, description=f"Coordination gap by selector: {told}."), "single": len(facts.budgets) == 1}


def redundancy(facts: Facts, found: Redundancy) -> Section:
    """The share of redundant picks by track and budget."""
    curves = {track: found.shares(track) for track in facts.picks}
    chart = _by_budget(facts, curves, "Redundant picks, %", "Share of picks that another client's pick makes redundant, one line a track.", floor=0.0)
    return {"chart": chart, "table": _table(facts, curves)}


def embedding_map(facts: Facts, places: Map, found: Redundancy | None) -> Section:
    """The map with the picks of every track; one track and budget are shown at first, the page's script shows the others."""
    clients = list(places.places)
    shown = max([budget for budget in facts.budgets if budget <= _READABLE_PICKS] or facts.budgets[:1])
    panels = []
    for kind in (TOGETHER, ALONE):
        tracks = [
            {
                "method": method,
                "name": track_title(method, kind),
                "picks": [
                    {
                        "x": places.places[pick.client][pick.id][0],
                        "y": places.places[pick.client][pick.id][1],
                        "rank": pick.rank + 1,
                        "client": clients.index(pick.client),
                        "redundant": found.since((method, kind), pick) if found else [],
                        "tip": f"{pick.id}\n{pick.client}\nasked as number {pick.rank + 1}",
                    }
                    for pick in picks[:_MOST_PICKS_SHOWN]
                ],
            }
            for (method, coordination), picks in facts.picks.items()
            if coordination == kind
        ]
        if tracks:
            panels.append({"kind": kind, "word": WORDS[kind], "tracks": tracks})
    return {
        "side": SIDE,
        "clients": clients,
        "layers": [" ".join(f"M{x} {y}h0" for x, y in spots.values()) for spots in places.places.values()],
        "points": [[[x, y, sample] for sample, (x, y) in spots.items()] for spots in places.places.values()],
        "panels": panels,
        "shown": shown,
        "budgets": [budget for budget in facts.budgets if budget <= _MOST_PICKS_SHOWN] or facts.budgets[:1],
        "drawn": places.shown,
        "total": places.total,
        "rings": found is not None,
    }


def pictures(facts: Facts, found: Gallery) -> Section:
    """The first picks of each client, and how many classes each track had seen by each budget."""
    blocks = [
        {
            "method": method,
            "sides": [
                {"word": WORDS[kind] if method != "random" else "", "clients": found.first(facts.picks[method, kind])}
                for kind in (TOGETHER, ALONE)
                if (method, kind) in facts.picks
            ],
        }
        for method in dict.fromkeys(method for method, _ in facts.picks)
    ]
    rows = [
        (track_title(*track), track[0], [str(found.classes_seen(picks, budget)) for budget in facts.budgets])
        for track, picks in facts.picks.items()
    ]
    return {"blocks": blocks, "seen": rows, "classes": len(found.classes)}


def encoder(facts: Facts) -> Section | None:
    """Loss and nearest-neighbour probe of Phase I, round by round."""
    rounds = facts.encoder_rounds
    if not rounds:
        return None
    charts = [_by_round(rounds, "loss", "Contrastive loss", percent_axis=False)]
    probed = [line for line in rounds if "knn" in line]
    if probed:
        charts.append(_by_round(probed, "knn", "10-nearest-neighbour accuracy, %", percent_axis=True))
    return {"charts": charts, "probe": percent(probed[-1]["knn"]) if probed else "", "rounds": rounds[-1]["round"]}


def traffic(facts: Facts) -> Section | None:
    """Bytes and round trips by phase, and what kind of thing left the clients."""
    counted: dict[str, dict[str, int]] = facts.info.get("traffic", {})
    if not counted:
        return None
    rows = [(_phase(name, facts), each["round_trips"], size(each["up"]), size(each["down"])) for name, each in counted.items()]
    total = [sum(each[key] for each in counted.values()) for key in ("round_trips", "up", "down")]
    share = facts.info.get("share", "")
    left = LEFT.get(share, "")
    if share == "perturbed":
        left += f" The noise moves an embedding by {facts.config.selection.epsilon:g} on average (unit vectors)."
    return {
        "rows": rows,
        "total": (total[0], size(total[1]), size(total[2])),
        "left": left,
        "models": len(facts.results),
        "partial": "embed" not in counted,  # a run that was stopped counts again from where it went on
    }


def _phase(name: str, facts: Facts) -> str:
    if name.startswith("select "):
        method, _, kind = name.removeprefix("select ").partition("-")
        return f"Phase II: selection, {track_title(method, kind)}"
    if name == "train":
        return f"{PHASES[name]} {len(facts.results)} classifier{'s' if len(facts.results) > 1 else ''}"
    return PHASES.get(name, name)


def seconds(facts: Facts) -> list[tuple[str, str]]:
    """Time by phase, as far as the run noted it."""
    parts = [
        ("Phase I: encoder", sum(line.get("seconds", 0.0) for line in facts.encoder_rounds)),
        ("Phase II: selection", facts.selection_seconds),
        ("Phase III: classifiers", sum(cell.get("seconds", 0.0) for cell in facts.results)),
    ]
    return [(name, f"{value:,.1f}\u00a0s") for name, value in parts if value > 0]


def size(count: int) -> str:
    """1234567 -> `1.2 MB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f}\u00a0{unit}" if unit == "B" else f"{value:.1f}\u00a0{unit}"


def _by_budget(facts: Facts, curves: dict[tuple[str, str], list[float]], y_title: str, description: str, **options: Any) -> Any:
    series = [
        Series(
            track_title(method, kind),
            list(zip(facts.budgets, curve, strict=True)),
            [f"{track_title(method, kind)}\n{budget} labels\n{percent(value)}" for budget, value in zip(facts.budgets, curve)],
            method,
            dashed=kind == ALONE and method != "random",
        )
        for (method, kind), curve in curves.items()
    ]
    series.sort(key=lambda each: each.method != "random")  # the yardstick lies under the lines it measures
    return line_chart(series, x_title="Labels in all", y_title=y_title, description=description, **options)


def _by_round(lines: list[dict[str, Any]], key: str, name: str, *, percent_axis: bool) -> Any:
    values = [(float(line["round"]), float(line[key])) for line in lines]
    tips = [f"Round {line['round']}\n" + (percent(line[key]) if percent_axis else f"{line[key]:.3f}") for line in lines]
    return line_chart(
        [Series(name, values, tips, "encoder")],
        x_title="Round",
        y_title=name,
        description=f"{name} by round, from {tips[0].splitlines()[1]} to {tips[-1].splitlines()[1]}.",
        width=460,
        height=260,
        percent=percent_axis,
        direct_labels=False,
    )


def _table(facts: Facts, curves: dict[tuple[str, str], list[float]]) -> list[tuple[str, str, list[str]]]:
    return [(track_title(*track), track[0], [f"{100 * value:.1f}" for value in curve]) for track, curve in curves.items()]
