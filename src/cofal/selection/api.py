"""`cofal.select`: one call from the clients' embeddings to the picks, under the coordination that is asked for."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.privacy.perturbation import check_mechanism, kept_cosine, noise_scale, perturb
from cofal.rng import generator
from cofal.selection.aggregate.exchange import Method
from cofal.selection.aggregate.exchange import run as converse
from cofal.selection.aggregate.select import METHODS, aggregate, aggregate_method, consortium_of
from cofal.selection.auto import by_kind, choose_by, decide, decision_stream
from cofal.selection.auto_aggregate import answer_likeness, likeness
from cofal.selection.evenness import evened
from cofal.selection.maxherding import maxherding
from cofal.selection.numbers import is_whole, plain, told
from cofal.selection.pool import Budgets, Picked, Pool, Selection
from cofal.selection.probcover import probcover
from cofal.selection.random import random
from cofal.selection.typiclust import typiclust
from cofal.selection.worth import divide_by_worth

Selector = Callable[..., np.ndarray | Picked]  # (pool, budgets, rng, **params) -> rows in picked order

SELECTORS: dict[str, Selector] = {
    "probcover": probcover,
    "typiclust": typiclust,
    "maxherding": maxherding,
    "random": random,
}
CHECKING = (probcover, typiclust, maxherding)  # these check their parameters, and return at once if there is no budget
BY_CLUSTERS = (typiclust,)  # under auto these see rows evened out, and go by kinds only in doubt which end is better
COORDINATIONS = ("central", "per-client", "aggregate", "auto")
SHARINGS = ("embeddings", "aggregates")


def select(
    embeddings: Sequence[np.ndarray],
    budgets: Sequence[int] | int,
    method: str | Selector = "maxherding",
    coordination: str = "central",
    labeled: Sequence[np.ndarray] | None = None,
    seed: int = 0,
    epsilon: float = 0.0,
    *,
    mechanism: str = "tangent",
    already_noised: bool = False,
    sharing: str = "embeddings",
    device: str = "cpu",
    **params: Any,
) -> Selection:
    """Which rows each client should label.

    embeddings: one (n_k, d) array per client; rows need not be unit length. budgets: one whole number per client, or
    one in all, which is then divided by what each client's rows can add (docs/auto.md). method: probcover, typiclust,
    maxherding, random, or a selector of your own (docs/selection.md). coordination: central picks over the union of
    all clients, aggregate does so from centroids, counts and distances only (docs/aggregate-selection.md), per-client
    lets each choose alone, auto coordinates as much as helps (docs/auto.md). labeled: positions
    already labelled, one list per client. epsilon: expected displacement of noise put on every embedding before a
    central or auto selection; mechanism: which noise, tangent or vmf (docs/privacy.md). already_noised: the embeddings
    carry that noise and none is added, as at a server that was sent them. sharing: what clients show under auto,
    embeddings or aggregates. params: the method's own, such as delta=0.75 or "auto", lengthscale=1.0, approx=True.
    """
    check_known("coordination", coordination, COORDINATIONS)
    if not is_whole(seed):
        raise UserError(f"seed = {told(seed)} is no whole number; use one, 0 if unsure")
    noise_scale(epsilon)  # refuses what is no amount of noise
    check_mechanism(mechanism)
    if epsilon and coordination not in ("central", "auto"):
        raise UserError(
            f"epsilon = {epsilon} needs coordination = 'central' or 'auto': "
            f"with {coordination!r} no embedding leaves a client"
        )
    check_known("sharing", sharing, SHARINGS)
    if sharing == "aggregates" and coordination != "auto":
        instead = "'aggregate' or 'auto'" if coordination == "central" else "'auto'"
        raise UserError(
            f"sharing = 'aggregates' is for auto; use coordination = {instead}, not {coordination!r}, or leave it out"
        )
    veiled = coordination == "auto" and sharing == "aggregates"
    if epsilon and veiled:
        raise UserError(f"epsilon = {epsilon} needs sharing = 'embeddings': with {sharing!r} none leaves a client")
    if veiled and is_whole(budgets):
        raise UserError(f"one budget ({budgets}) for all needs sharing = 'embeddings'; give one budget per client")
    selector = _selector(method)
    halves = aggregate_method(method) if coordination == "aggregate" or veiled else None
    params = plain(params)
    _check_params(method, params, halves.coordinate if halves else selector, aggregate=halves is not None)
    pool = Pool(embeddings, labeled, device=device)
    checked = Budgets(_per_client(budgets, pool, seed), pool)
    if halves and veiled:
        return _auto_from_aggregates(halves, selector, pool, checked, seed, params)
    if halves:
        indices, order, cost = aggregate(halves, pool, checked, seed, params)
        return Selection(indices, order, rounds=cost.rounds, bytes_up=sum(cost.up))
    kept = kept_cosine(epsilon, pool.d, mechanism)
    if epsilon and not already_noised:
        pool = _noised(pool, labeled, epsilon, mechanism, seed, device)
    if kept < 1 and "kept_cosine" in inspect.signature(selector).parameters:
        params["kept_cosine"] = kept
    if coordination == "central":
        return _selection(pool, _run(selector, pool, checked, seed, params))
    if coordination == "auto":
        decision = decide(pool)
        tells_kinds = "kinds" in inspect.signature(selector).parameters
        if tells_kinds and (decision.in_doubt or selector not in BY_CLUSTERS):
            picked, decision = _run(selector, pool, checked, seed, {"kinds": True, **params}), by_kind(decision)
        else:
            seen = evened(pool).labeled_as(pool) if selector in BY_CLUSTERS else pool
            picked = choose_by(decision, seen, checked, lambda part, own: _run(selector, part, own, seed, params))
        return replace(_selection(pool, picked), decision=decision)
    return _merge([_one_client(selector, pool, k, int(b), seed, params) for k, b in enumerate(checked.per_client)])


def _per_client(budgets: Sequence[int] | int, pool: Pool, seed: int) -> Sequence[int]:
    """One budget per client; a single number is divided among them."""
    if is_whole(budgets):
        return divide_by_worth(int(budgets), pool, generator(seed, "worth"))
    if isinstance(budgets, int) or not isinstance(budgets, Sized) or getattr(budgets, "ndim", 1) == 0:
        raise UserError(f"the budget is {told(budgets)}; give one whole number per client, or one in all")
    return budgets


def _run(selector: Selector, pool: Pool, budgets: Budgets, seed: int, params: dict[str, Any]) -> Picked:
    if budgets.total == 0 and selector not in CHECKING:
        return Picked(np.empty(0, dtype=np.int64), np.empty(0))
    found = selector(pool, budgets, generator(seed, "select"), **params)
    return found if isinstance(found, Picked) else Picked(np.asarray(found, dtype=np.int64))


def _one_client(selector: Selector, pool: Pool, client: int, budget: int, seed: int, params: dict[str, Any]) -> Picked:
    alone = pool.client(client)
    return _run(selector, alone, Budgets([budget], alone), seed, params)


def _auto_from_aggregates(
    method: Method, selector: Selector, pool: Pool, budgets: Budgets, seed: int, params: dict[str, Any]
) -> Selection:
    """Groups that choose together do so by the aggregate selector; whoever is alone runs the selector on its rows."""
    silence = {"min_region": params["min_region"]} if "min_region" in params else {}
    members, holders = consortium_of(pool, budgets)
    nothing = replace(members, budgets=[0] * members.clients)  # to pick: the parameters are only checked
    converse(method.coordinate(nothing, decision_stream(), **params), holders, method.answer)
    decision, cost = converse(likeness(members, decision_stream(), **silence), holders, answer_likeness)
    rounds, sent = cost.rounds, sum(cost.up)
    known = inspect.signature(selector).parameters
    alone = {name: value for name, value in params.items() if name in known}

    def choose(part: Pool, own: Budgets) -> Picked:
        nonlocal rounds, sent
        if np.count_nonzero(np.diff(part.offsets)) < 2:
            return _run(selector, part, own, seed, alone)
        _, order, cost = aggregate(method, part, own, seed, params)
        rounds, sent = rounds + cost.rounds, sent + sum(cost.up)
        return Picked(np.array([part.offsets[client] + row for client, row in order], dtype=np.int64))

    picked = choose_by(decision, pool, budgets, choose)
    return replace(_selection(pool, picked), rounds=rounds, bytes_up=sent, decision=decision)


def _selection(pool: Pool, picked: Picked) -> Selection:
    order = [pool.locate(int(row)) for row in picked.rows]
    indices = [np.array([row for client, row in order if client == k], dtype=np.int64) for k in range(pool.clients)]
    return Selection(indices, order, gains=picked.gains, coverage_loss=picked.coverage_loss)


def _merge(alone: list[Picked]) -> Selection:
    """The clients' own picks, interleaved: all first picks, then all second ones."""
    longest = max((len(picked.rows) for picked in alone), default=0)
    turns = [
        (client, rank) for rank in range(longest) for client, picked in enumerate(alone) if rank < len(picked.rows)
    ]
    order = [(client, int(alone[client].rows[rank])) for client, rank in turns]
    gains = None
    if all(picked.gains is not None for picked in alone):
        gains = np.array([picked.gains[rank] for client, rank in turns if (picked := alone[client]).gains is not None])
    losses = [picked.coverage_loss for picked in alone if picked.coverage_loss is not None]
    return Selection([p.rows for p in alone], order, gains=gains, coverage_loss=max(losses, default=None))


def _noised(
    pool: Pool, labeled: Sequence[np.ndarray] | None, epsilon: float, mechanism: str, seed: int, device: str
) -> Pool:
    """What a server would see if every client perturbed its embeddings before sending them."""
    parts = []
    for client in range(pool.clients):
        rows = pool.tile(int(pool.offsets[client]), int(pool.offsets[client + 1])).cpu().numpy()
        parts.append(perturb(rows, epsilon, generator(seed, "perturb", client), mechanism))
    return Pool(parts, labeled, device=device)


def _selector(method: str | Selector) -> Selector:
    if callable(method):
        return method
    check_known("method", method, list(SELECTORS))
    return SELECTORS[method]


def _check_params(method: str | Selector, params: dict[str, Any], form: Callable[..., Any], aggregate: bool) -> None:
    """Refuse parameters that `form` of the method does not take: the one for aggregates, or the other."""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inspect.signature(form).parameters.values()):
        return
    known = _parameters(form)
    name = method if isinstance(method, str) else getattr(method, "__name__", "this method")
    for given in params:
        if given in known:
            continue
        refused = f"{name} takes no parameter {given!r}"
        here, elsewhere = _owners(given, aggregate), _owners(given, not aggregate)
        if name in elsewhere:
            instead = "" if aggregate else ", or use coordination = 'aggregate'"
            raise UserError(f"{refused} under this coordination; leave it out{instead}")
        if here:
            raise UserError(
                f"{refused}, which belongs to {' and '.join(here)}; leave it out, or use method {here[0]!r}"
            )
        if elsewhere:
            where = "another coordination" if aggregate else "coordination = 'aggregate'"
            raise UserError(f"{refused}, which belongs to {' and '.join(elsewhere)} under {where}; leave it out")
        if not known:
            raise UserError(f"{refused}; leave it out")
        near = difflib.get_close_matches(given, known, n=1, cutoff=0.0)
        raise UserError(f"{refused}; did you mean {near[0]}? (known: {', '.join(known)})")


def _parameters(form: Callable[..., Any]) -> list[str]:
    signature = inspect.signature(form).parameters.items()
    return [name for name, parameter in signature if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _owners(given: str, aggregate: bool) -> list[str]:
    """The methods that take a parameter in their form for aggregates, or in the other."""
    forms = {name: aggregate_method(name).coordinate for name in METHODS} if aggregate else SELECTORS
    return [name for name, form in forms.items() if given in _parameters(form)]


def check_known(what: str, value: object, known: Sequence[str]) -> None:
    """Refuse a name that is not among the known ones, with the nearest."""
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)
        raise UserError(f"unknown {what} {value!r}; did you mean {near[0]!r}? (known: {', '.join(known)})")
