"""What the annotators' page can do with the store: turns, second opinions, putting off, undo, the grid."""

from __future__ import annotations

import pytest

from cofal.errors import UserError
from cofal.labeling.web.serve import Page
from page_site import make_site

IDS = [f"ward/{number:02d}.png" for number in range(8)]


@pytest.fixture
def open_desk(tmp_path):
    def make(overlap=None, **site):
        make_site(tmp_path / "north", **{"ids": IDS, "asked": IDS[:4], **site})
        return Page(tmp_path / "north", overlap=overlap).desk

    return make


def shown(desk, annotator):
    item = desk.next(annotator)["item"]
    return item and item["sample"]


def key(desk, number):
    return desk.pictures.key(IDS[number])


def test_everyone_gets_another_image_and_the_same_one_again(open_desk):
    desk = open_desk()
    assert [shown(desk, name) for name in ("ana", "ben", "ana", "ben")] == [IDS[0], IDS[2], IDS[0], IDS[2]]
    assert shown(desk, "cid") is None  # the other two are held ahead for ana and ben
    with pytest.raises(UserError, match="ana has this image open now"):
        desk.item("ben", key(desk, 0))
    desk.store.release("ben")
    with pytest.raises(UserError, match="no answer yet"):
        desk.item("ana", key(desk, 3))


def test_the_one_ahead_is_the_one_that_comes(open_desk):
    desk = open_desk()
    state = desk.next("ana")
    for number in range(3):
        assert state["upcoming"] == key(desk, number + 1)
        desk.label("ana", state["item"]["key"], "cat", 1.0)
        state = desk.next("ana")
        assert state["item"]["key"] == key(desk, number + 1)
    assert state["upcoming"] is None
    assert state["trail"] == [key(desk, number) for number in range(3)]


def test_what_is_put_off_comes_last_in_the_order_it_was_put_off(open_desk):
    desk = open_desk()
    for number in (0, 1):
        assert shown(desk, "ana") == IDS[number]
        desk.later("ana", key(desk, number))
    seen = []
    while sample := shown(desk, "ana"):
        seen.append(sample)
        desk.label("ana", desk.pictures.key(sample), "cat", 1.0)
    assert seen == [IDS[2], IDS[3], IDS[0], IDS[1]]


def test_a_second_opinion_is_asked_without_telling_the_first(open_desk):
    desk = open_desk(overlap=1.0, asked=IDS[:1])
    desk.next("ana")
    assert shown(desk, "ben") is None
    desk.label("ana", key(desk, 0), "fox", 1.0)
    item = desk.next("ben")["item"]
    assert item["sample"] == IDS[0]
    assert "fox" not in str(item)
    assert "ana" not in str(item)
    assert "fox" not in str(desk.around("ben", key(desk, 0)))
    desk.label("ben", key(desk, 0), "dog", 1.0)
    assert desk.progress()["disputed"] == 1
    (dispute,) = desk.disagreements()["items"]
    assert [(told["annotator"], told["label"]) for told in dispute["opinions"]] == [("ana", "fox"), ("ben", "dog")]
    desk.resolve("ana", key(desk, 0), "dog")
    assert desk.store.labels() == {IDS[0]: "dog"}
    # whoever corrects a settled image settles it anew; the opinions stay
    desk.label("ben", key(desk, 0), "cat", 1.0)
    assert desk.store.labels() == {IDS[0]: "cat"}
    assert desk.item("ben", key(desk, 0))["settled_by"] == "ben"
    assert [answer.label for answer in desk.store.answers(IDS[0])[IDS[0]]] == ["fox", "dog"]
    desk.skip("ana", key(desk, 0), "unclear", 1.0)
    assert desk.store.skipped() == {IDS[0]: "unclear"}


def test_an_image_looked_at_again_is_kept_from_others_until_its_owner_looks_elsewhere(open_desk):
    desk = open_desk(overlap=1.0, asked=IDS[:2])
    desk.next("ana")
    desk.label("ana", key(desk, 0), "fox", 1.0)
    desk.item("ana", key(desk, 0))
    assert shown(desk, "ben") is None  # one is in front of ana, the other is held ahead for her
    with pytest.raises(UserError, match="ana has this image open now"):
        desk.item("ben", key(desk, 0))
    desk.next("ana")
    assert shown(desk, "ben") == IDS[0]
    with pytest.raises(UserError, match="ben has this image open now"):
        desk.item("ana", key(desk, 0))
    assert [query.held_by for query in desk.store.queries()] == ["ben", "ana"]


def test_an_answer_taken_back_while_looking_at_it_is_the_question_in_front(open_desk):
    desk = open_desk()
    desk.next("ana")
    desk.label("ana", key(desk, 0), "fox", 1.0)
    action = desk.next("ana")["undoable"]["action"]
    desk.item("ana", key(desk, 0))
    desk.undo("ana", action)
    assert shown(desk, "ana") == IDS[0]


def test_the_grid_does_not_tell_what_a_second_opinion_is_asked_for(open_desk):
    desk = open_desk(overlap=1.0)
    desk.store.label(IDS[0], "fox", "ana")
    everything = {"state": "", "label": "", "annotator": "", "page": 0}
    assert desk.review("ana", **everything)["items"][0]["label"] == "fox"
    card = desk.review("ben", **everything)["items"][0]
    assert (card["state"], card["sample"]) == ("wanted", IDS[0])
    assert "fox" not in str(card)
    assert "ana" not in str(card)
    assert desk.review("ben", **{**everything, "label": "fox"})["total"] == 0
    assert desk.review("ana", **{**everything, "label": "fox"})["total"] == 1
    opened = desk.item("ben", key(desk, 0))
    assert "fox" not in str(opened)
    assert "fox" not in str(desk.around("ben", key(desk, 1)))
    assert "fox" in str(desk.around("ana", key(desk, 1)))
    desk.label("ben", key(desk, 0), "fox", 1.0)
    assert "fox" in str(desk.around("ben", key(desk, 1)))


def test_an_undo_sent_twice_takes_back_one_answer(open_desk):
    desk = open_desk()
    for number in (0, 1):
        desk.next("ana")
        desk.label("ana", key(desk, number), "cat", 1.0)
    action = desk.next("ana")["undoable"]["action"]
    assert desk.undo("ana", action) == key(desk, 1)
    assert desk.undo("ana", action) is None
    assert desk.store.labels() == {IDS[0]: "cat"}
    assert shown(desk, "ana") == IDS[1]


def test_an_answer_sent_twice_is_one_answer_and_long_breaks_do_not_count(open_desk):
    desk = open_desk()
    for _ in range(2):
        desk.label("ana", key(desk, 0), "cat", 1e6)
    assert [event.action for event in desk.store.history(IDS[0])] == ["asked", "label"]
    assert desk.store.answers(IDS[0])[IDS[0]][0].seconds == 3600


def test_the_grid_filters_and_pages(open_desk):
    many = [f"{number:03d}" for number in range(130)]
    desk = open_desk(ids=many, asked=many)
    for sample, label, name in (("005", "cat", "ana"), ("007", "dog", "ana"), ("009", "cat", "ben")):
        desk.store.label(sample, label, name)
    desk.store.skip("011", "broken", "ben")

    def found(**filters):
        told = desk.review("cid", **{"state": "", "label": "", "annotator": "", "page": 0, **filters})
        return told["total"], [card["sample"] for card in told["items"]]

    assert found() == (130, many[:60])
    assert found(page=2) == (130, many[120:])
    assert found(page=99) == (130, many[120:])
    assert found(page=-1) == (130, many[:60])
    assert found(label="cat") == (2, ["005", "009"])
    assert found(label="cat", annotator="ben") == (1, ["009"])
    assert found(state="skipped") == (1, ["011"])
    assert found(state="open")[0] == 126
    assert found(annotator="nobody") == (0, [])
