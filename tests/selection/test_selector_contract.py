"""What every selector promises, run over all of them, and the traps that other codes of these methods fall into."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import cofal
from cofal.errors import UserError
from cofal.selection.aggregate.select import METHODS as AGGREGATES
from cofal.selection.api import SELECTORS
from cofal.selection.numbers import SHARPEST, WIDEST

METHODS = sorted(SELECTORS)


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture
def embeddings():
    rng = np.random.default_rng(11)
    return [rng.normal(size=(n, 8)) for n in (45, 0, 30)]


def test_same_seed_same_picks(method, embeddings):
    first, second = (cofal.select(embeddings, [6, 0, 5], method, seed=4) for _ in range(2))
    assert first.order == second.order


def test_the_seed_reaches_what_is_random(embeddings):
    orders = {tuple(cofal.select(embeddings, [6, 0, 5], "random", seed=seed).order) for seed in range(5)}
    assert len(orders) == 5


def test_global_random_state_is_left_alone(method, embeddings):
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    cofal.select(embeddings, [3, 0, 2], method)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_row_lengths_do_not_matter(method, embeddings):
    scaled = [rows * 8.0 for rows in embeddings]  # a power of two: the unit rows are the same, bit for bit
    assert cofal.select(scaled, [6, 0, 5], method).order == cofal.select(embeddings, [6, 0, 5], method).order


def test_float16_memory_maps_and_strided_arrays_are_read_as_they_are(method, embeddings, tmp_path):
    rows = embeddings[0].astype(np.float16)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    strided = np.repeat(rows, 2, axis=0)[::2]
    wanted = cofal.select([rows], [7], method).order
    assert cofal.select([mapped], [7], method).order == wanted
    assert cofal.select([strided], [7], method).order == wanted
    assert cofal.select([rows.astype(np.float64)], [7], method).order == wanted


def test_the_whole_pool_can_be_picked(method, embeddings):
    picks = cofal.select(embeddings, [45, 0, 30], method)
    assert [sorted(rows.tolist()) for rows in picks.indices] == [list(range(45)), [], list(range(30))]


def test_zero_budgets_pick_nothing(method, embeddings):
    assert cofal.select(embeddings, [0, 0, 0], method).order == []


def test_one_row_pools(method):
    assert cofal.select([np.ones((1, 3)), np.ones((1, 3))], [1, 1], method).indices == [[0], [0]]


def test_identical_rows_do_not_break_it(method):
    picks = cofal.select([np.ones((12, 3))], [9], method)
    assert len(set(picks.order)) == 9


@pytest.mark.parametrize("size", [499, 500, 501, 1000, 1025])
def test_no_row_is_lost_at_the_end_of_a_batch(method, size):
    """The one row far from all others is the last one; a partial batch that is dropped would never find it."""
    rng = np.random.default_rng(2)
    crowd = np.array([1.0, 0, 0]) + 0.01 * rng.normal(size=(size - 1, 3))
    rows = np.concatenate([crowd, [[-1.0, 0, 0]]])
    params = {"delta": 0.5} if method == "probcover" else {}
    if method in ("probcover", "maxherding"):
        assert size - 1 in cofal.select([rows], [2], method, **params).indices[0]
    else:
        assert size - 1 in cofal.select([rows], [size], method, **params).indices[0]


def test_index_zero_is_not_picked_again_and_again_once_all_is_covered():
    """Three tight clusters and six picks: the second covering pass visits each cluster once more."""
    rng = np.random.default_rng(4)
    rows = np.concatenate([center + 0.01 * rng.normal(size=(10, 3)) for center in np.eye(3)])
    picks = cofal.select([rows], [6], "probcover", delta=0.3).indices[0]
    assert sorted(picks[:3] // 10) == sorted(picks[3:] // 10) == [0, 1, 2]
    assert len(set(picks.tolist())) == 6


def test_exhausted_clients_do_not_stall_the_others():
    """Client 1 holds rows that client 0 cannot cover; when client 1 is spent, client 0 covers its own again."""
    here, there = np.tile([[1.0, 0.0]], (4, 1)), np.array([[-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    picks = cofal.select([here, there], [3, 1], "probcover", delta=0.1)
    assert picks.order == [(0, 0), (1, 0), (0, 1), (0, 2)]
    assert picks.gains.tolist() == [4, 1, 4, 4]


def test_delta_is_a_plain_distance_not_a_squared_one():
    angle = np.arccos(1 - 0.5**2 / 2)  # two rows at distance 0.5
    rows = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)], [-1.0, 0.0]])
    assert cofal.select([rows], [1], "probcover", delta=0.51).gains.tolist() == [2]
    assert cofal.select([rows], [1], "probcover", delta=0.49).gains.tolist() == [1]


def test_lengthscale_divides_a_plain_distance():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])  # at distance 2
    assert cofal.select([rows], [1], lengthscale=2.0).gains[0] == pytest.approx(1 + np.exp(-1))


@pytest.mark.parametrize("method", ["probcover", "maxherding", "typiclust"])
def test_a_sample_holds_enough_of_a_small_client_to_spend_its_budget(method):
    rng = np.random.default_rng(4)
    picks = cofal.select([rng.normal(size=(1500, 8)), rng.normal(size=(12, 8))], [5, 12], method, approx=200)
    assert [len(part) for part in picks.indices] == [5, 12]
    assert 0 <= picks.coverage_loss < 1


def test_approximate_picks_lose_little_and_say_how_much():
    rng = np.random.default_rng(8)
    centers = rng.normal(size=(30, 8))
    rows = np.concatenate([c + 0.4 * rng.normal(size=(60, 8)) for c in centers])
    embeddings = [rows[::2], rows[1::2]]
    exact = cofal.select(embeddings, [15, 15])
    close = cofal.select(embeddings, [15, 15], approx=900)
    assert exact.coverage_loss is None
    assert 0 <= close.coverage_loss < 0.03
    assert [len(rows) for rows in close.indices] == [15, 15]
    assert cofal.select(embeddings, [15, 15], approx=True).order == exact.order  # small pools are covered exactly


GOLDEN = {
    "probcover": [
        (0, 396), (2, 282), (1, 223), (0, 345), (2, 82), (0, 331),
        (1, 383), (2, 339), (1, 475), (0, 493), (1, 285), (2, 228),
    ],
    "maxherding": [
        (0, 424), (1, 15), (2, 345), (2, 185), (2, 282), (1, 383),
        (2, 339), (1, 475), (0, 331), (0, 493), (1, 285), (0, 345),
    ],
    "random": [
        (1, 123), (0, 582), (0, 392), (1, 484), (2, 452), (1, 74),
        (0, 115), (1, 352), (0, 325), (2, 304), (2, 474), (2, 65),
    ],
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(GOLDEN))
def test_golden_picks_on_digits(method):
    x = load_digits().data
    params = {"delta": 0.4} if method == "probcover" else {}
    picks = cofal.select([x[:600], x[600:1200], x[1200:]], [4, 4, 4], method, **params)
    assert picks.order == GOLDEN[method]


WAYS = ("central", "per-client", "aggregate", "auto")
BAD = [
    ({"embeddings": []}, "no embeddings"),
    ({"embeddings": [np.ones((3, 2)), np.ones((3, 4))], "budgets": [1, 1]}, "client 1 has embeddings of 4 dimensions"),
    ({"embeddings": [np.array([[1.0, np.nan], [1, 1]])]}, "row 0 of client 0 holds NaN"),
    ({"embeddings": [np.array([[1.0, 1.0], [np.inf, 1]])]}, "row 1 of client 0 holds NaN or infinity"),
    ({"embeddings": [np.array([[1.0, 1.0], [0, 0]])]}, "row 1 of client 0 is all zeros"),
    ({"embeddings": [np.array([[1.0, 1.0], [1e300, 1]])]}, "row 1 of client 0 has values up to 1e+300, too large"),
    ({"embeddings": [np.array([[-1e300, 1], [np.nan, 1]])]}, "row 1 of client 0 holds NaN or infinity (1 such rows)"),
    ({"embeddings": [np.array([[1.0, 1.0], [0, -1e-200]])]}, "row 1 of client 0 has values up to 1e-200, too small"),
    ({"embeddings": [np.ones(3)]}, "shape (3,)"),
    ({"embeddings": [np.array([["a", "b"]])]}, "type <U1"),
    ({"budgets": [-1]}, "is -1"),
    ({"budgets": [6]}, "has 5 unlabelled rows"),
    ({"budgets": [5], "labeled": [[2]]}, "has 4 unlabelled rows"),
    ({"budgets": [1, 1]}, "2 budgets were given for 1 clients"),
    ({"budgets": [1.5]}, "1.5"),
    ({"budgets": None}, "the budget is None; give one whole number per client, or one in all"),
    ({"budgets": 10.0}, "the budget is 10.0; give one whole number"),
    ({"budgets": True}, "the budget is True; give one whole number"),
    ({"budgets": np.array(2)}, "the budget is array(2); give one whole number"),
    ({"budgets": 10**30}, f"the budget is {10**30}"),
    ({"budgets": [True]}, "the budget of client 0 is True"),
    ({"seed": None}, "seed = None is no whole number"),
    ({"seed": "a"}, "seed = 'a' is no whole number"),
    ({"seed": 1.5}, "seed = 1.5 is no whole number"),
    ({"seed": True}, "seed = True is no whole number"),
    ({"seed": np.float64(2)}, "seed = np.float64(2.0) is no whole number"),
    ({"labeled": [[5]]}, "labelled position 5 of client 0"),
    ({"labeled": [[-1]]}, "labelled position -1 of client 0"),
    ({"labeled": [[1, 1]]}, "given twice"),
    ({"labeled": [[0.5]]}, "float64"),
    ({"labeled": [[1, 10**23]]}, f"labelled position {10**23} of client 0 is outside its rows 0 to 4"),
    ({"labeled": [[None, 1]]}, "must be a list of whole numbers"),
    ({"labeled": [[0], [1]]}, "were given for 2 clients of 1"),
    ({"method": "maxherdin"}, "did you mean 'maxherding'"),
    ({"coordination": "centrl"}, "did you mean 'central'"),
    ({"coordination": "aggregate", "method": "random"}, "'random' has no aggregate form"),
    ({"lengthscal": 2.0}, "did you mean lengthscale"),
    ({"lengthscale": 0.0}, "lengthscale = 0.0"),
    ({"kernel": "gausian"}, "did you mean 'gaussian'"),
    ({"kernel": lambda squared: 1.0}, "same shape"),
    ({"memory_limit": 0}, "memory_limit = 0"),
    ({"approx": -1}, "approx = -1"),
    ({"device": "warp"}, "device 'warp'"),
    ({"method": "probcover", "delta": -0.1}, "delta = -0.1"),
    ({"method": "probcover", "delta": "wide"}, "delta = 'wide'"),
    ({"method": "random", "delta": 0.5}, "random takes no parameter 'delta'"),
    ({"method": "random", "min_region": 5}, "which belongs to probcover and typiclust and maxherding under coord"),
    (
        {"method": "typiclust", "iterations": 5},
        "under this coordination; leave it out, or use coordination = 'aggregate'",
    ),
    ({"method": "probcover", "shifts": 2}, "belongs to maxherding under coordination = 'aggregate'; leave it out"),
    (
        {"method": "probcover", "coordination": "aggregate", "iterations": 15},
        "belongs to typiclust; leave it out, or us",
    ),
    ({"method": "typiclust", "coordination": "aggregate", "schedule": "paper"}, "belongs to probcover; leave it out"),
    (
        {"method": "typiclust", "coordination": "aggregate", "kernel": "laplace"},
        "maxherding under another coordination",
    ),
    (
        {"method": "typiclust", "coordination": "aggregate", "iterations": 10**8},
        f"iterations = {10**8} must be a whole number of k-means round trips, from 2 to 1,000",
    ),
    ({"coordination": "per-client", "epsilon": 0.5}, "epsilon = 0.5"),
    *[({"coordination": way, "mechanism": "vfm"}, "unknown mechanism 'vfm'; did you mean 'vmf'?") for way in WAYS],
    *[
        ({"coordination": way, "sharing": "aggregates"}, f"is for auto; use coordination = {instead}, not '{way}'")
        for way, instead in (("central", "'aggregate' or 'auto'"), ("per-client", "'auto'"), ("aggregate", "'auto'"))
    ],
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_a_users_mistake_is_told_in_one_line(changes, message):
    call = {"embeddings": [np.random.default_rng(0).normal(size=(5, 2))], "budgets": [1], **changes}
    with pytest.raises(UserError) as raised:
        cofal.select(**call)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


RADIUS, WIDTH = ("probcover", "delta"), ("maxherding", "lengthscale")
WRONG = [  # method, parameter, value, and whether only the aggregate form has it
    *[
        (*RADIUS, wrong, False)
        for wrong in (None, [1], True, np.True_, float("nan"), np.float32(-1), 0, 3, 1e300, np.inf, "wide", np.eye(20))
    ],
    *[(*WIDTH, wrong, False) for wrong in (None, [1], True, np.True_, float("nan"), np.inf, 1e200, 1e-200, 0, "wide")],
    ("maxherding", "approx", -1, False),
    ("typiclust", "approx", 2.5, False),
    ("probcover", "schedule", "x", True),
    ("maxherding", "shifts", -1, True),
    *[("typiclust", "iterations", wrong, True) for wrong in (-1, True, 2.0, None)],
    *[(method, "min_region", wrong, True) for method in AGGREGATES for wrong in (0, 10**12, True, 5.0, np.float64(5))],
]


@pytest.mark.parametrize("budgets", [[3, 2, 0], [0, 0, 0]])
@pytest.mark.parametrize(("method", "name", "wrong", "told_by_aggregates"), WRONG)
def test_a_wrong_parameter_is_told_in_one_line_even_if_there_is_nothing_to_pick(
    method, name, wrong, told_by_aggregates, budgets
):
    parts = [np.random.default_rng(k).normal(size=(n, 4)) for k, n in enumerate((12, 9, 0))]
    veiled = {"coordination": "auto", "sharing": "aggregates"}
    ways = [{"coordination": "aggregate"}, veiled] if name != "approx" else []
    if not told_by_aggregates:
        ways += [{"coordination": "central"}, {"coordination": "per-client"}, {"coordination": "auto"}]
    for way in ways:
        with pytest.raises(UserError, match=f"{name} = ") as raised:
            cofal.select(parts, budgets, method, **{name: wrong}, **way)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 250


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("coordination", ["central", "per-client", "aggregate", "auto"])
def test_numbers_of_numpy_are_numbers(coordination):
    parts = [np.random.default_rng(k).normal(size=(n, 4)) for k, n in enumerate((30, 22))]
    same = [("probcover", "delta", np.float64(0.5)), ("probcover", "delta", np.int64(1)),
            ("maxherding", "lengthscale", np.float32(0.5)), ("maxherding", "lengthscale", np.int8(1))]  # fmt: skip
    if coordination == "aggregate":
        same += [(method, "min_region", np.int64(2)) for method in AGGREGATES]
        same += [("typiclust", "iterations", np.uint8(3)), ("maxherding", "shifts", np.int16(2))]
    for method, name, value in same:
        picks = cofal.select(parts, [4, 3], method, coordination, **{name: value})
        assert picks.order == cofal.select(parts, [4, 3], method, coordination, **{name: value.item()}).order


def test_numpy_s_whole_numbers_are_budgets_and_seeds(embeddings):
    given = {"method": "random", "labeled": [[0], [], []]}
    wanted = cofal.select(embeddings, [6, 0, 5], seed=4, **given).order
    for budgets in (np.array([6, 0, 5], np.uint8), [np.int64(6), np.int8(0), 5], (6, 0, 5)):
        assert cofal.select(embeddings, budgets, seed=np.uint64(4), **given).order == wanted
    assert cofal.select(embeddings, np.int16(9), **given).order == cofal.select(embeddings, 9, **given).order


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("coordination", ["central", "per-client", "aggregate"])
def test_the_largest_radius_covers_all_and_the_smallest_only_copies(coordination):
    parts = [np.random.default_rng(k).normal(size=(n, 4)) for k, n in enumerate((30, 22))]
    for delta in (2, 1e-300):
        picks = cofal.select(parts, [4, 3], "probcover", coordination, delta=delta)
        assert [len(set(rows.tolist())) for rows in picks.indices] == [4, 3]
        if coordination == "central":
            assert picks.gains[0] == (52 if delta == 2 else 1)
            cofal.select(parts, [4, 3], "probcover", delta=delta, epsilon=0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lengthscale", [SHARPEST, WIDEST])
@pytest.mark.parametrize(
    ("coordination", "chosen"),
    [("aggregate", {}), *(("central", {"kernel": kernel}) for kernel in ("gaussian", "laplace", "cauchy", "tophat"))],
)
def test_the_narrowest_and_the_widest_kernel_work(lengthscale, coordination, chosen):
    parts = [np.random.default_rng(k).normal(size=(15, 8)).repeat(2, axis=0) for k in range(3)]  # copies too
    picks = cofal.select(parts, [8, 8, 8], "maxherding", coordination, lengthscale=lengthscale, **chosen)
    assert [len(set(rows.tolist())) for rows in picks.indices] == [8, 8, 8]
