"""The systems by name, as the command line and the records of experiments call them, and how to find one of yours."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cofal.baselines.badge import badge
from cofal.baselines.coordinated import Coordinated
from cofal.baselines.core_set import core_set
from cofal.baselines.federated_al import FederatedAL
from cofal.baselines.kafal import kafal
from cofal.baselines.logo import logo
from cofal.baselines.ono import Separate
from cofal.baselines.separate_al import SeparateAL
from cofal.baselines.system import System
from cofal.baselines.uncertainty import SCORES
from cofal.errors import UserError

METHODS = ("probcover", "typiclust", "maxherding")
EPSILON = 0.6  # of `METHOD-perturbed`, the largest noise that the paper finds harmless

SYSTEMS: dict[str, System] = {
    **{f"{method}-central": Coordinated(method, "central") for method in METHODS},
    **{f"{method}-aggregate": Coordinated(method, "aggregate") for method in METHODS},
    **{f"{method}-perturbed": Coordinated(method, "central", EPSILON) for method in METHODS},
    **{f"{method}-per-client": Coordinated(method, "per-client") for method in METHODS},
    **{f"{method}-auto": Coordinated(method, "auto") for method in METHODS},
    **{f"ono-{method}": Separate(method) for method in METHODS},
    **{f"s-al-{score}": SeparateAL(score) for score in SCORES},
    **{f"f-al-{score}": FederatedAL(score) for score in SCORES},
    "logo": logo,
    "kafal": kafal,
    "core-set": Coordinated(core_set, "per-client"),
    "core-set-central": Coordinated(core_set, "central"),
    "badge": badge,
    "random": Coordinated("random", "per-client"),
}


def find_system(name: str, params: Mapping[str, Mapping[str, Any]] | None = None) -> System:
    """The system called `name`; `params` gives selection methods their parameters, as {"probcover": {"delta": 0.75}}.

    A name is one of SYSTEMS, `METHOD-perturbed-EPSILON` (maxherding-perturbed-0.3), or `module:Name` for one of yours:
    a System (a callable whose first argument is `federation`), or a selector as in docs/selection.md, which runs
    centrally; `module:Name-per-client` runs it at each client alone, `-auto` as is found best, `-perturbed` and
    `-perturbed-EPSILON` on noise.
    """
    if ":" in name:
        found = _of_the_user(name)
    elif name in SYSTEMS:
        found = SYSTEMS[name]
    else:
        method, _, epsilon = name.partition("-perturbed-")
        if method not in METHODS or not epsilon:
            near = difflib.get_close_matches(name, SYSTEMS, n=1, cutoff=0.0)[0]
            raise UserError(f"unknown system {name!r}; did you mean {near!r}? Your own is named as module:Name")
        found = Coordinated(method, "central", _epsilon(name, epsilon))
    if isinstance(found, Coordinated | Separate) and params:
        key = found.method if isinstance(found.method, str) else name.partition("-")[0]
        found = replace(found, params={**found.params, **params.get(key, {})})
    return found


def _of_the_user(name: str) -> System:
    spec, _, coordination = name.partition("-")
    thing = _load(spec)
    if _is_system(thing):
        if coordination:
            raise UserError(f"{spec} is a whole system and takes no coordination; name it {spec!r}")
        return thing
    kind, _, epsilon = coordination.partition("perturbed-")
    if epsilon:
        return Coordinated(thing, "central", _epsilon(name, epsilon))
    if coordination == "perturbed":
        return Coordinated(thing, "central", EPSILON)
    if kind not in ("", "central", "per-client", "auto"):
        raise UserError(
            f"{spec} cannot run under {coordination!r}; "
            f"use {spec}-central, {spec}-per-client, {spec}-auto or {spec}-perturbed"
        )
    return Coordinated(thing, kind or "central")


def _load(spec: str) -> Callable[..., Any]:
    module_name, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # an installed command does not look into the folder it is called in
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"cannot import {module_name!r} for {spec} ({error}); run in the folder of {module_name}.py or install it"
        ) from error
    finally:
        sys.path.remove(here)
    thing = getattr(module, attribute, None)
    if isinstance(thing, type):
        thing = thing()
    if not callable(thing):
        raise UserError(f"module {module_name} has no selector or system {attribute!r}; check the name")
    return thing


def _is_system(thing: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(thing).parameters), "") == "federation"


def _epsilon(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name}: {text!r} is not a number; write the noise as in maxherding-perturbed-0.3") from None
