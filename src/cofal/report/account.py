"""The sections of a report that say what was run, what crossed the line and how long it took."""

from __future__ import annotations

from typing import Any

from cofal.report.facts import ALONE, VEILED, WORDS, Facts, title, track_title

PHASES = {
    "describe": "Roll call",
    "pretrain": "Phase I: training the encoder",
    "embed": "Phase II: embedding",
    "assign": "Phase II: telling each client its picks",
    "train": "Phase III: training the classifiers",
    "evaluate": "Phase III: evaluation at the clients",
    "progress": "Between the phases: how far the labelling is",
    "select main": "Phase II: selections",
}
# By the first word of its name; a run goes from selecting to training and back, which no reader wants to follow.
_ORDER = ("describe", "pretrain", "embed", "advise", "select", "assign", "progress", "train", "evaluate")
LEFT = {
    "raw": "Every client sent the server the embedding of each of its images, as it is, and model weights.",
    "perturbed": "Every client sent the server the embedding of each of its images, noise added, and model weights.",
    "none": "No embedding left a client: only sample ids, counts and model weights did.",
}


def what_was_run(facts: Facts) -> list[tuple[str, str]]:
    """Pairs of a term and what it was in this run."""
    config, data, clients = facts.config, facts.data, facts.clients
    selection, train, pretrain = config.selection, config.train, config.pretrain
    counts = (
        f"{data['train']:,} images to choose from, {data['test']:,} to test on, {len(data['classes'])} classes"
        if data
        else ""
    )
    source = "The sites' own images" if facts.deployed else f"{config.data.source} {config.data.path}".strip()
    sizes = sorted(clients.values())
    each = f"{sizes[0]:,}" if sizes and sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}" if sizes else ""
    if facts.deployed:
        counts = f"{sum(sizes):,} to choose from"
    splits = {
        "iid": "alike (IID split)",
        "dirichlet": f"unlike (Dirichlet split, alpha {config.clients.alpha})",
        "by-column": "as the data's own column splits them",
    }
    if config.encoder.frozen:
        encoder = f"Public and frozen: {config.encoder.frozen}"
    elif config.encoder.path:
        encoder = f"Saved earlier: {config.encoder.path}"
    else:
        encoder = (
            f"Federated SimCLR on the clients' own images: {config.encoder.arch}, {pretrain.rounds} rounds of "
            f"{pretrain.local_epochs} local epoch{'s' if pretrain.local_epochs > 1 else ''}, {pretrain.strategy}"
        )
    kinds = [word for kind, word in WORDS.items() if any(key[1] == kind and key[0] != "random" for key in facts.curves)]
    each_way = "each " if len(facts.selectors) > 1 else ""
    selectors = ", ".join(map(title, facts.selectors)) + (f"; {each_way}{' and '.join(kinds)}" if kinds else "")
    if facts.random is not None:
        selectors += f"{'; ' if facts.selectors else ''}{'random as a yardstick' if facts.selectors else 'Random'}"
    model = (
        f"{train.hidden}-unit head on the frozen embedding" if train.model == "head" else f"Image network {train.arch}"
    )
    where = "on the server's test set" if train.evaluate == "server" else "on test sets at the clients, counts added"
    return [
        ("Data", ". ".join(part for part in (source, counts) if part)),
        (
            "Clients",
            ", ".join(f"{name} {count:,}" for name, count in clients.items())
            if facts.deployed
            else f"{len(clients)}, {each} images each, {splits[config.clients.split]}"
            if clients
            else splits[config.clients.split],
        ),
        ("Encoder", encoder),
        ("Selectors", selectors),
        *([("Likeness", facts.likeness)] if facts.likeness else []),
        ("Labels", f"{', '.join(map(str, facts.budgets))} in all, {_shares(selection.shares)}"),
        ("Classifier", f"{model}, {train.rounds} federated rounds, tested {where}"),
        ("Seed", str(config.seed)),
    ]


def _shares(shares: str | list[int]) -> str:
    if shares == "equal":
        return "divided equally among the clients"
    return "divided by the clients' sizes" if shares == "proportional" else f"divided {' : '.join(map(str, shares))}"


def traffic(facts: Facts) -> dict[str, Any] | None:
    """Bytes and round trips by phase, and what kind of thing left the clients."""
    counted: dict[str, dict[str, int]] = facts.info.get("traffic", {})
    if not counted:
        return None
    rows = [
        (phase_title(name), each["round_trips"], size(each["up"]), size(each["down"]))
        for name, each in in_order(counted).items()
    ]
    total = [sum(each[key] for each in counted.values()) for key in ("round_trips", "up", "down")]
    share = facts.share
    left = LEFT.get(share, "")
    if share == "none" and any(kind == VEILED for _, kind in facts.curves):
        left = (
            "No embedding left a client: centroids and counts of at least "
            f"{facts.config.selection.min_region} samples, distances"
            f"{', names of picked images' if any(kind == ALONE for _, kind in facts.curves) else ''} "
            "and model weights did."
        )
    if share == "perturbed":
        left += f" The noise moves an embedding by {facts.config.selection.epsilon:g} on average (unit vectors)."
    left = f"{left} Images and labels stayed with the clients.".strip()
    return {
        "rows": rows,
        "total": (total[0], size(total[1]), size(total[2])),
        "left": left,
        "models": len(facts.results),
        "partial": _is_partial(facts, counted),
    }


def _is_partial(facts: Facts, counted: dict[str, dict[str, int]]) -> bool:
    """Was less counted than the run must have exchanged? A run that was stopped counts anew from where it went on."""
    wanted = {
        "embed": 1,
        "pretrain": len(facts.encoder_rounds),
        "train": facts.config.train.rounds * len(facts.results),
    }
    return any(counted.get(phase, {}).get("round_trips", 0) < least for phase, least in wanted.items())


def in_order(phases: dict[str, Any]) -> dict[str, Any]:
    """What is noted of each phase, in the order of the phases; selections as they came."""
    known = {name: number for number, name in enumerate(_ORDER)}
    return dict(sorted(phases.items(), key=lambda each: known.get(each[0].partition(" ")[0], len(known))))


def phase_title(name: str) -> str:
    """A phase as the server names it, in words."""
    if name in PHASES:
        return PHASES[name]
    if name.startswith("select "):
        method, _, kind = name.removeprefix("select ").partition("-")
        return f"Phase II: selection, {track_title(method, kind)}"
    return name


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
