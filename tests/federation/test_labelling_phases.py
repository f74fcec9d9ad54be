"""A deployment's phases, one by one: select, label, train, select more; nothing is asked twice."""

import itertools

import pytest
from labelling_sites import OPTIONS, Deployment, copy

from cofal.errors import UserError
from cofal.federation.embedded import run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.federation.orders import close_order, place_order
from cofal.federation.site import open_site
from cofal.files import read_json, write_json
from cofal.report.facts import Facts
from cofal.report.page import render
from cofal.rundir import MAIN


@pytest.fixture
def deployment(tmp_path, cache):
    return lambda *overrides, **more: Deployment(tmp_path / "deployed", cache, *overrides, **more)


def ids(step):
    return [pick["id"] for pick in step["picks"]]


def test_rounds_of_selecting_labelling_and_training_give_a_curve(deployment, tmp_path, cache):
    from cofal.config import load

    made = deployment("selection.budgets=[6, 12]")
    made.order("embed")
    made.order("select", budget=6)
    made.label_all(leave=1)
    made.order("train")
    made.label_all()
    made.order("train")
    made.order("select", budget=6)
    made.label_all()
    made.order("train")
    cells = read_json(made.run.results)
    assert [cell["budget"] for cell in cells] == [3, 6, 12]
    assert cells[0]["sites"]["site-0"] == {"asked": 2, "labelled": 1, "skipped": 0}
    assert {cell["track"] for cell in cells} == {MAIN}
    # The same selections as an experiment that asks for 6 and then for 12.
    other = load("digits", [*OPTIONS, "selection.budgets=[6, 12]"])
    experiment = run_embedded(other, tmp_path / "experiment", cache)
    steps = read_json(experiment.picks("maxherding-central"))["steps"]
    assert [step["picks"] for step in made.steps] == [step["picks"] for step in steps]
    page = render(Facts(made.run))
    assert "3 to 12 labels" in page
    assert "Selection 2" in page
    status = made.status()
    assert (status["phase"], status["state"]) == ("train", "done")
    assert status["sites"]["site-1"]["labelled"] == 4


def test_one_selection_may_do_without_secure_sums_but_not_show_what_they_hide(deployment):
    made = deployment('selection.coordination=["aggregate", "per-client"]', "selection.secure_sums=true")
    made.order("select", budget=3, method="random")
    assert (made.steps[0]["method"], made.steps[0]["coordination"]) == ("random", "per-client")
    with pytest.raises(UserError, match="secure_sums = true needs coordination"):
        made.phase("select", budget=3, coordination="central")
    made.order("select", budget=3, coordination="aggregate")  # the order that could not be may be changed
    assert len(made.steps) == 2


def test_one_selection_without_embeddings_needs_no_noise(deployment):
    made = deployment("selection.epsilon=0.6")
    made.order("select", budget=3, coordination="per-client")
    made.order("select", budget=3)
    assert [step["coordination"] for step in made.steps] == ["per-client", "central"]


def test_one_selection_without_aggregates_needs_no_noise_on_counts(deployment):
    """Noise on counts is of the selections from aggregates; the others of the same deployment go on without."""
    noise = 'selection.count_noise={mechanism="laplace", parameter=2.0, epsilon=1e6}'
    made = deployment('selection.coordination=["aggregate", "per-client"]', noise)
    made.order("select", budget=3)
    made.order("select", budget=3, coordination="per-client")
    made.order("select", budget=3, method="random")
    assert [step["coordination"] for step in made.steps] == ["aggregate", "per-client", "per-client"]


@pytest.mark.parametrize("coordination", ["central", "per-client", "aggregate"])
def test_a_repeated_order_asks_for_no_more(deployment, coordination, tmp_path):
    made = deployment(f'selection.coordination=["{coordination}"]')
    order = {"budget": 5, "method": "", "coordination": ""}
    made.phase("select", **order)
    first = made.asked()
    assert sum(map(len, first)) == 5
    made.phase("select", **order)  # the order was not closed: its outcome was never told
    assert made.asked() == first
    assert len(made.steps) == 1
    with pytest.raises(UserError, match=r"number 1 was cut short; see its outcome first.*--budget 5"):
        place_order(made.run, "select", budget=7, method="", coordination="")
    lost = copy(made, tmp_path / "lost")  # killed before the server noted the picks: the sites may know them already
    lost.run.picks(MAIN).unlink()
    lost.phase("select", **order)
    assert lost.asked() == first
    untold = copy(made, tmp_path / "untold")  # killed before the sites were told
    if coordination != "aggregate":
        write_json(untold.run.picks(MAIN), {"track": MAIN, "steps": [{**made.steps[0], "told": []}]})
        for number in range(3):
            untold.store(number).ask(MAIN, [])
        untold.phase("select", **order)
        assert untold.asked() == first
    close_order(made.run, "select")
    made.order("select", **order)
    assert [len(new) >= len(old) and new[: len(old)] == old for new, old in zip(made.asked(), first)] == [True] * 3
    everything = list(itertools.chain.from_iterable(made.asked()))
    assert len(everything) == len(set(everything)) == 10


@pytest.mark.parametrize("coordination", ["central", "per-client", "aggregate"])
def test_skipped_samples_are_replaced_and_never_asked_again(deployment, coordination):
    made = deployment(f'selection.coordination=["{coordination}"]')
    made.order("select", budget=6)
    skipped = [made.asked()[0][0], made.asked()[2][1]]
    made.store(0).skip(skipped[0], "unclear", "ann")
    made.store(2).skip(skipped[1], "unclear", "bob")
    made.label_all()
    made.order("select", budget=3)
    assert [len(asked) for asked in made.asked()] == [4, 3, 4]  # 9 that count, and 2 that were skipped
    everything = list(itertools.chain.from_iterable(made.asked()))
    assert len(everything) == len(set(everything))
    assert made.steps[1]["skipped"] == {"site-0": 1, "site-1": 0, "site-2": 1}
    made.label_all()
    made.order("train")
    cell = read_json(made.run.results)[-1]
    assert (cell["budget"], cell["asked"], cell["skipped"]) == (9, 11, 2)
    made.order("select", budget=1)
    assert sum(map(len, made.asked())) == 12


def test_each_selection_may_have_its_own_method_and_coordination(deployment):
    made = deployment()
    ways = [("maxherding", "aggregate"), ("probcover", "central"), ("typiclust", "per-client"), ("random", "central")]
    for method, coordination in ways:
        made.order("select", budget=4, method=method, coordination=coordination)
    assert [(step["method"], step["coordination"]) for step in made.steps] == [*ways[:3], ("random", "per-client")]
    everything = list(itertools.chain.from_iterable(made.asked()))
    assert len(everything) == len(set(everything)) == 16
    made.label_all()
    made.order("train")
    assert read_json(made.run.results)[0]["budget"] == 16
    render(Facts(made.run))


def test_training_again_with_other_labels_of_the_same_number_is_another_training(deployment):
    made = deployment()
    made.order("select", budget=6)
    made.label_all()
    made.order("train")
    first = read_json(made.run.cell(MAIN, 6))
    made.phase("train")
    made.phase("train")  # not closed: read back
    second = read_json(made.run.cell(MAIN, 6))
    assert (first["training"], second["training"]) == (1, 2)
    assert first["accuracy"] == second["accuracy"]


def test_a_training_without_labels_says_so(deployment):
    made = deployment()
    with pytest.raises(UserError, match="asks for nothing"):
        made.order("select", budget=0)
    with pytest.raises(UserError, match="budget 1000 is above what the clients can offer"):
        made.order("select", budget=1000)
    made.order("select", budget=3)  # of the others nothing was carried out: they do not stand in its way
    from cofal.errors import CofalError

    with pytest.raises(CofalError, match="no site has a sample to train on yet"):
        made.order("train")
    assert made.status()["state"] == "failed"
    assert "label some" in made.status()["reason"]


class Absent(InProcessGrid):
    """Nodes in `gone` are not connected."""

    gone: tuple[int, ...] = ()

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.gone]


def test_a_site_that_was_away_catches_up(deployment):
    made = deployment("engine.min_clients=2", "engine.timeout=0.2", grid=Absent)
    made.order("embed")
    Absent.gone = (4,)
    try:
        made.order("select", budget=6)
        assert [len(asked) for asked in made.asked()] == [3, 3, 0]
        assert made.status()["missed"] == {"site-2": "not connected"}
        made.label_all()
        made.order("train")
        assert read_json(made.run.results)[-1]["sites"].keys() == {"site-0", "site-1"}
    finally:
        Absent.gone = ()
    made.order("select", budget=6)
    assert [len(asked) for asked in made.asked()] == [4, 4, 4]
    assert made.status()["missed"] == {}


def test_a_site_lost_between_choosing_and_telling_is_told_later(deployment):
    made = deployment("engine.min_clients=2")
    made.phase("select", budget=6)
    step = {**made.steps[0], "told": ["site-0", "site-1"]}
    write_json(made.run.picks(MAIN), {"track": MAIN, "steps": [step]})
    expected = made.asked()
    made.store(2).ask(MAIN, [])
    close_order(made.run, "select")
    made.order("select", budget=3)
    assert made.asked()[2][:2] == expected[2]
    everything = list(itertools.chain.from_iterable(made.asked()))
    assert len(everything) == len(set(everything)) == 9


def test_known_labels_of_a_site_are_not_asked(deployment):
    made = deployment()
    made.order("select", budget=3)
    for number, folder in enumerate(made.folders):
        assert open_site(folder).asked(MAIN) == [
            pick["id"] for pick in made.steps[0]["picks"] if pick["client"] == f"site-{number}"
        ]
