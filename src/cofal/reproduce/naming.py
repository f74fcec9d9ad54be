"""How systems and selectors are called on pages, and in which colour they are drawn."""

from __future__ import annotations

from cofal.reproduce.cells import REDUNDANCY

METHODS = {"probcover": "ProbCover", "typiclust": "TypiClust", "maxherding": "MaxHerding"}
_SYSTEMS = {
    "kafal": "KAFAL",
    "logo": "LoGo",
    "random": "Random",
    "badge": "BADGE",
    "core-set": "Core-set",
    "core-set-central": "Core-set, central",
}
_SCORES = {"entropy": "entropy", "least-confidence": "least confidence", "margin": "margin"}

# One colour a selector, the same as in the report of a run; a coordination is told by the line, not by the colour.
COLOURS = {
    "maxherding": "#0a67b3",
    "probcover": "#b8480a",
    "typiclust": "#00735f",
    "random": "#6d7583",
    "kafal": "#7a3ea1",
    "logo": "#c2334d",
    "f-al-entropy": "#8a5a08",
    "f-al-margin": "#b08a3c",
    "s-al-entropy": "#0b7486",
}
_OTHERS = ("#5b5bd0", "#6b6b2a", "#8a3c9e", "#1f7a3d")


def method_of(system: str) -> str:
    """The selector in a system's name (`maxherding-central`, `ono-maxherding`, `mine:Mine-central`), or the system."""
    bare = system.removeprefix("ono-").removeprefix(REDUNDANCY)
    for method in METHODS:
        if bare == method or bare.startswith(f"{method}-"):
            return method
    return bare.partition("-")[0] if ":" in bare else system.removeprefix(REDUNDANCY)


def coordination_of(system: str) -> str:
    """central | aggregate | per-client | own encoders | noise EPSILON, or empty for a system of another kind."""
    method = method_of(system)
    if method == system:
        return ""
    if system.startswith("ono-"):
        return "own encoders"
    rest = system.removeprefix(f"{method}-")
    return rest.replace("perturbed-", "noise ")


def method_title(method: str) -> str:
    return METHODS.get(method) or system_title(method)


def system_title(system: str) -> str:
    """A name for people: `ProbCover, per-client`, `F-AL (entropy)`, `KAFAL`."""
    if system in _SYSTEMS:
        return _SYSTEMS[system]
    for prefix, name in (("s-al-", "S-AL"), ("f-al-", "F-AL")):
        if system.startswith(prefix):
            return f"{name} ({_SCORES.get(system.removeprefix(prefix), system)})"
    if ":" in system and "-" not in system:
        return system.partition(":")[2]
    method, coordination = method_of(system), coordination_of(system)
    return f"{method_title(method)}, {coordination}" if coordination else METHODS.get(system, system)


def split_title(name: str) -> str:
    return "IID" if name == "iid" else f"α = {name.removeprefix('dirichlet-')}"


def colour(system: str) -> str:
    """Fixed for the known ones; others take the next free colour by their name."""
    method = method_of(system)
    if method in COLOURS:
        return COLOURS[method]
    return COLOURS.get(system) or _OTHERS[sum(map(ord, method)) % len(_OTHERS)]
