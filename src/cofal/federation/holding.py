"""A site's half of an aggregate selection: answers from its own embeddings, and its picks, which stay at the site."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cofal.errors import UserError
from cofal.federation.site import Site
from cofal.labeling.reasons import told_why
from cofal.privacy.accountant import SECRET, site_account
from cofal.privacy.answered import admit
from cofal.privacy.counting_noise import noisy
from cofal.privacy.policy import CountNoise
from cofal.privacy.private_files import settle
from cofal.privacy.secure_sum import masks
from cofal.selection.aggregate.bounds import check_question
from cofal.selection.aggregate.exchange import Arrays, Holder
from cofal.selection.auto_aggregate import ALONE, halves
from cofal.selection.pool import Pool


def answer_question(site: Site, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Arrays:
    """The arrays that answer one question; after the last one the site's list of the track holds its new picks.

    Everything is derived from the question and from files, so that the same question twice, or to another process of
    this site, has the same effect: of the track's list only the first `asked` samples count.
    """
    least = site.settings.policy.min_region
    numbers = {"min_region": least, **json.loads(str(config["numbers"]))}
    if not numbers["min_region"] >= least:
        raise UserError(
            f"the server asks about groups of {numbers['min_region']} samples, site {site.name} tells nothing of fewer "
            f"than {least}; raise selection.min_region, or lower policy.min_region at the site"
        )
    if numbers.get("exact") and least > 1:
        raise UserError(
            f"the server asks for distances of single samples to all digits, site {site.name} tells nothing of fewer "
            f"than {least}; use ProbCover's batched schedule, or set policy.min_region = 1 at the site"
        )
    track = str(config["track"])
    before = site.asked(track)[: int(config["asked"])]
    # A selection is many questions: its pool must stay the same to its end, whatever is skipped meanwhile.
    pool = site.pool(f"{track} {int(config['selection'])}" if "selection" in config else "")
    holder = _holder(site, str(config["digest"]), pool, before)
    holder.picked = None
    method, kind = halves(str(config["method"])), str(config["kind"])
    check_question(method.asked, kind, arrays, numbers, holder.rows.shape[1], method.most)
    measured = str(config["method"]) == "likeness"  # which sums are never masked
    if site.settings.policy.secure_sums and "session" not in config and (measured or method.asked[kind].summed):
        instead = "neither auto nor shares = 'auto'" if measured else "selection.secure_sums = true"
        raise UserError(
            f"the server asks for sums in the open, site {site.name} tells them under masks alone; use {instead}, "
            "or policy.secure_sums = false at the site"
        )
    question = _question(arrays, config, pool, holder.taken)
    if not method.asked[kind].silent:
        admit(site.folder, site.name, question, site.settings.policy.max_questions, durable=site.settings.ledger_sync)
    if noise := site.settings.policy.count_noise:
        # The folder, not the site: a holder that led to its site would never be forgotten (see `_kept`).
        holder.noise = partial(_noised, site.folder, noise, method.counts, question)
    answer = method.answer(holder, kind, arrays, numbers)
    if holder.picked is not None:
        if len(holder.picked) != int(config["budget"]):
            raise UserError(
                f"the selection settled {len(holder.picked)} picks at site {site.name}, not {config['budget']}"
            )
        picks = [site.train.ids[row] for row in pool[holder.picked]]
        how = {
            "method": str(config["method"]).removeprefix(ALONE),
            "coordination": "auto" if "decision" in config else "aggregate",
        }
        site.ask(track, [*before, *picks], told_why(config, **how))
    return answer


def _noised(
    folder: Path, noise: CountNoise, partitions: Mapping[str, bool], question: bytes, counts: Mapping[str, np.ndarray]
) -> Arrays:
    """All counts of the answer to `question` with the policy's noise, charged to the site's privacy budget.

    The noise is drawn from a secret of the site and the question: the same question again gets the same noise, which
    no repetition can average away, and costs nothing more.
    """
    # In a partition a sample is in one group at most; balls overlap, and it may be in all of them.
    times = sum(min(1, array.size) if partitions[name] else array.size for name, array in counts.items())
    if times == 0:
        return dict(counts)
    # Before the draws: a question beyond the budget may be about millions of counts.
    site_account(folder, noise).spend(noise.mechanism, noise.parameter, times, answer=question.hex())
    secret = bytes.fromhex(settle(folder / "privacy" / SECRET, {"key": secrets.token_hex(masks.KEY)})["key"])
    draw = masks.byte_source(masks.derive(secret, "counts", question))
    return {name: noisy(array, noise.mechanism, noise.parameter, draw) for name, array in counts.items()}


def _question(
    arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], pool: np.ndarray, taken: np.ndarray
) -> bytes:
    """A digest of what is asked, and of which samples: with the same noise, two answers would tell their difference.

    Under which masks the answer leaves changes nothing about it.
    """
    asked = {key: value for key, value in sorted(config.items()) if key not in ("session", "round")}
    digest = hashlib.sha256(json.dumps(asked, default=str).encode())
    for name, array in sorted({**arrays, "the pool": pool, "of it taken": taken}.items()):
        # The same bytes in another shape or type are another question.
        digest.update(repr((name, array.dtype.str, array.shape)).encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


# What each site computed for the question before; only the latest, since a selection asks one thing after the other.
_kept: WeakKeyDictionary[Site, tuple[tuple[str, bytes, tuple[str, ...]], Holder]] = WeakKeyDictionary()


def _holder(site: Site, digest: str, pool: np.ndarray, before: list[str]) -> Holder:
    """The pool's rows and which of them are taken; the same object while the questions are of the same samples."""
    key = (digest, pool.tobytes(), tuple(before))
    if site not in _kept or _kept[site][0] != key:
        # unit rows, as in cofal.select
        rows = Pool([site.pool_embeddings(digest, pool)]).tile(0, len(pool)).numpy()
        taken = np.zeros(len(rows), dtype=bool)
        taken[site.pool_positions(pool, [*site.settings.known_labels, *before])] = True
        _kept[site] = (key, Holder(rows, taken))
    return _kept[site][1]
