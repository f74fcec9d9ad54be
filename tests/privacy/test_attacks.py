"""The attacks: each finds what is there, finds nothing where nothing is, and weakens as the protection grows."""

from dataclasses import replace

import numpy as np
import pytest

from cofal.config import load
from cofal.privacy.attacks.aggregates import (
    Heard,
    Regions,
    fingerprint_score,
    likelihood_score,
    nearest_score,
    overhear,
    own_regions,
    regions,
    scores,
    totals,
)
from cofal.privacy.attacks.levels import Level, order
from cofal.privacy.attacks.matching import (
    area_under_roc,
    found_at,
    membership_scores,
    reidentification,
    without_noise,
)
from cofal.privacy.attacks.reconstruction import Forger, pixels
from cofal.privacy.attacks.scene import Party, Scene
from cofal.privacy.attacks.study import _region_sweep, overheard
from cofal.privacy.perturbation import perturb
from cofal.rng import generator
from cofal.selection import select
from cofal.selection.aggregate import typiclust
from cofal.selection.aggregate.exchange import Question, fixed
from cofal.selection.aggregate.select import aggregate_method

D = 32


def clustered(n, seed, d=D):
    """Unit rows around a few directions that are the same for every seed."""
    centres = generator(0, "centres").standard_normal((8, d))
    rng = generator(seed, "rows")
    x = centres[rng.integers(8, size=n)] + 0.8 * rng.standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


MEMBERS, OTHERS, OWN = (clustered(300, seed) for seed in (1, 2, 3))
CANDIDATES = np.concatenate([MEMBERS, OTHERS])


def separation(score):
    return area_under_roc(score[:300], score[300:])


@pytest.mark.parametrize("mechanism", ["tangent", "vmf"])
def test_matching_and_membership_are_certain_without_noise_and_guesswork_with_much(mechanism):
    named, known = [], []
    for epsilon in (0.0, 0.3, 0.6, 1.0, 1.38):
        sent = perturb(MEMBERS, epsilon, generator(4, "noise", epsilon), mechanism)
        named.append(reidentification(sent, CANDIDATES, np.arange(300)))
        known.append(separation(membership_scores(sent, CANDIDATES, OWN, epsilon, mechanism)))
    assert named[0] == 1.0
    assert known[0] == 1.0
    assert named == sorted(named, reverse=True)
    assert named[-1] < 0.05
    assert abs(known[-1] - 0.5) < 0.07
    assert known[1] > known[3]


def test_the_scores_of_a_roc_curve_against_a_plain_count():
    rng = generator(5, "roc")
    a, b = rng.integers(0, 9, 40), rng.integers(0, 9, 50)
    assert area_under_roc(a, b) == pytest.approx(
        np.mean([[1.0 if x > y else 0.5 if x == y else 0 for y in b] for x in a])
    )
    assert found_at(np.array([5.0, 1.0]), np.arange(4.0), false_alarms=0.25) == 0.5


@pytest.mark.parametrize("epsilon", [0.1, 0.6, 0.8])
def test_whoever_knows_the_seed_takes_the_noise_off(epsilon):
    sent = perturb(MEMBERS, epsilon, generator(6, "noise"))
    assert np.abs(without_noise(sent, epsilon, generator(6, "noise")) - MEMBERS).max() < 1e-4
    assert np.abs(without_noise(sent, epsilon, generator(7, "noise")) - MEMBERS).max() > epsilon / 10


def test_a_mean_of_few_gives_its_members_away_and_a_mean_of_many_does_not():
    found = {}
    for least, most in ((2, 75), (30, 4)):
        told = own_regions([MEMBERS[:150], MEMBERS[150:]], most, least)
        assert all(each.counts.min() >= least for each in told)
        found[least] = separation(likelihood_score(told, CANDIDATES, OWN))
    assert found[2] > 0.75
    assert found[2] > found[30] + 0.1


def test_the_likelihood_sees_more_than_the_distance():
    told = own_regions([MEMBERS], 10, 5)
    assert separation(likelihood_score(told, CANDIDATES, OWN)) > separation(nearest_score(told, CANDIDATES)) + 0.05


def test_outsiders_means_say_nothing_of_others():
    told = own_regions([clustered(300, 8)], 30, 5)
    assert abs(separation(likelihood_score(told, CANDIDATES, OWN)) - 0.5) < 0.08


def test_distances_told_to_many_digits_are_fingerprints():
    centers = clustered(6, 9).astype(np.float64)
    distances = np.sqrt(2 - 2 * MEMBERS[:24] @ centers.T)  # (24, 6)
    told = np.sort(distances.T, axis=1).astype(np.float32)
    heard = [Heard(Question("nearest", {"centers": centers}), [{"distances": told}])]
    score = fingerprint_score(heard, CANDIDATES)
    assert found_at(score[:24], score[300:]) == 1.0
    rounded = fingerprint_score([Heard(heard[0].question, [{"distances": np.round(told, 1)}])], CANDIDATES)
    assert found_at(rounded[:24], rounded[300:]) < 0.3
    assert fingerprint_score([Heard(heard[0].question, [{}])], CANDIDATES) is None


def test_what_typiclust_tells_of_small_clusters_would_be_a_fingerprint_without_steps(monkeypatch):
    parts = np.split(MEMBERS[:240], 2)

    def recognised():
        heard = overhear(aggregate_method("typiclust"), parts, [15, 15], 0, {}, masked=False)
        score = fingerprint_score(heard, CANDIDATES)
        return np.count_nonzero(score[:240] > -1e-6), np.count_nonzero(score[300:] > -1e-6)

    assert max(recognised()) < 5
    monkeypatch.setattr(typiclust, "coarse", lambda values, step: values)
    told, outside = recognised()
    assert told >= 30
    assert outside == 0


def test_regions_are_read_from_sums_means_and_bare_directions():
    means = np.array([[0.5, 0.25], [0.0, 0.0]])
    counts = np.array([4, 0], np.int32)
    summed = Heard(
        Question("sums", numbers={"bits": 20}, summed=True), [{"sums": fixed(4 * means, 20), "counts": counts}]
    )
    plain = Heard(Question("cells"), [{"means": means.astype(np.float16), "counts": counts}])
    bare = Heard(Question("shift"), [{"sums": np.array([[3, 4], [0, 0]])}])
    (first,), (second,), (third,) = regions([summed, plain, bare], 2)
    for told in (first, second):
        assert told.means == pytest.approx(means[:1], abs=1e-5)
        assert list(told.counts) == [4]
    assert third == Regions(pytest.approx(np.array([[0.6, 0.8]])), None)


def listen(method, masked, rows=(MEMBERS[:150], MEMBERS[150:])):
    return overhear(aggregate_method(method), rows, [5, 5], 0, {"min_region": 5}, masked=masked)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("method", ["typiclust", "maxherding", "probcover"])
def test_every_aggregate_method_can_be_overheard(method, masked):
    found = scores(listen(method, masked), CANDIDATES, OWN)
    assert found
    assert all(score.shape == (600,) and not np.isnan(score).any() for score in found.values())


@pytest.mark.parametrize("method", ["typiclust", "maxherding", "probcover"])
def test_of_open_sums_each_client_s_part_is_heard_and_of_masked_ones_the_totals_alone(method):
    sums = {masked: [each for each in listen(method, masked) if "sums" in each.answers[0]] for masked in (False, True)}
    assert all(len(each.answers) == 2 for each in sums[False])
    assert all(len(each.answers) == 1 for each in sums[True])
    assert sums[False]
    assert sums[True]
    if method != "probcover":  # whose questions are others under masks
        assert [str(each.answers) for each in totals(sums[False])] == [str(each.answers) for each in sums[True]]


def test_a_part_of_a_sum_gives_away_its_client_s_samples_better_than_the_total():
    """One client's few samples lie among many of the others: what it tells of them is lost in the total."""
    few, many = MEMBERS[:60], clustered(3000, 11)
    heard = [each for each in listen("typiclust", False, (few, many)) if each.question.summed]
    candidates = np.concatenate([few, OTHERS])
    found = {}
    for name, told in (("parts", heard), ("totals", totals(heard))):
        score = scores(told, candidates, OWN)["likelihood ratio of means"]
        found[name] = area_under_roc(score[:60], score[60:])
    assert found["parts"] > found["totals"] + 0.03


@pytest.mark.parametrize("secure", ["false", "true"])
def test_the_attacker_hears_parts_of_sums_as_the_run_s_server_did(secure):
    scene = scene_of('selection.coordination=["aggregate"]', f"selection.secure_sums={secure}")
    summed = [each for each in overheard(scene, "maxherding", 5, 0) if each.question.summed]
    assert {len(each.answers) for each in summed} == ({1} if secure == "true" else {2})


def scene_of(*overrides):
    """Two sites of a run with these settings; all they have is private."""
    images, labels = np.zeros((150, 2, 2, 1), np.uint8), np.zeros(150, np.int64)
    sites = [Party(rows, images, labels) for rows in (MEMBERS[:150], MEMBERS[150:])]
    return Scene(load("digits", ["selection.budgets=[10]", *overrides]), ["a"], sites, sites[0], sites, *sites)


@pytest.mark.parametrize("delta", ["auto", 0.5])
@pytest.mark.parametrize(("kind", "way"), [("noise", "central"), ("aggregate", "aggregate"), ("nothing", "per-client")])
def test_every_level_chooses_with_the_runs_radius(kind, way, delta):
    scene = scene_of(f"selection.delta={delta}")
    rows, more = [site.rows for site in scene.sites], {"min_region": 5} if way == "aggregate" else {}
    wanted = select(rows, [5, 5], "probcover", way, seed=2, delta=delta, **more).order
    assert order(scene, Level(kind, kind), "probcover", 5, 2) == wanted
    assert wanted != select(rows, [5, 5], "probcover", way, seed=2, delta=0.75, **more).order


def test_regions_are_counted_as_they_are_asked_for():
    """Of three clients alike, so that ten for all of them are nine."""
    scene = scene_of()
    found = _region_sweep(replace(scene, sites=3 * scene.sites[:1], private=3 * scene.sites[:1]))
    assert [each["asked"] for each in found] == [9] * 3 + [30] * 3 + [99] * 3
    assert all(each["regions"] <= each["asked"] for each in found)
    assert found[0]["regions"] == 9
    small = 150 * [scene.sites[0].take(np.arange(6))]  # too few samples for the last min_region
    assert [(each["asked"], each["min_region"]) for each in _region_sweep(replace(scene, private=small))] == [
        *((150, 1), (150, 5))
    ]


def test_the_attacker_hears_an_exchange_with_the_runs_radius():
    kinds = [each.question.kind for each in overheard(scene_of(), "probcover", 5, 0)]
    assert kinds[0] == "radius"  # the clients' own estimates: delta = "auto"
    given = overheard(scene_of("selection.delta=0.5"), "probcover", 5, 0)
    assert given[0].question.numbers["delta"] == 0.5


def test_a_decoder_learns_to_draw_what_it_is_shown():
    """Images that are a linear function of the embedding: pictures must come far nearer than the mean image."""
    rng = generator(10, "images")
    colours = rng.standard_normal((D, 3))

    def draw(rows):
        shade = 1 / (1 + np.exp(-4 * rows @ colours))  # (n, 3)
        return np.repeat(np.repeat((255 * shade).astype(np.uint8)[:, None, None], 8, 1), 8, 2)

    forger = Forger(pixels(draw(OWN)), 0, D)
    forger.learn(OWN[None], 150)
    wanted = pixels(draw(MEMBERS))
    error = ((forger.forge(MEMBERS) - wanted) ** 2).mean()
    assert error < 0.3 * ((pixels(draw(OWN)).mean(0) - wanted) ** 2).mean()
