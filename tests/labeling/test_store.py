"""The label store: nothing is lost or replaced silently, work is handed out once, everything leaves a trace."""

import itertools
import sqlite3
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from cofal.errors import UserError
from cofal.labeling.agreement import agreement, cohen_kappa
from cofal.labeling.asking import LEASE
from cofal.labeling.merging import Incoming
from cofal.labeling.oracle import answer_by
from cofal.labeling.records import REASONS
from cofal.labeling.store import LabelStore

CLASSES = ["cat", "dog", "eel"]


class Clock:
    """Time that passes when told."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    opened = LabelStore.open(tmp_path, CLASSES, clock=clock)
    opened.ask("main", ["a", "b", "c", "d"], why={"a": {"method": "maxherding"}})
    yield opened
    opened.close()


# --- questions


def test_questions_keep_rank_reason_and_selection(store):
    store.ask("main", ["a", "b", "c", "d", "e"], why={"a": {"method": "other"}, "e": {"method": "random"}})
    found = store.queries()
    assert [(query.id, query.rank, query.selection) for query in found] == [
        ("a", 0, "1"), ("b", 1, "1"), ("c", 2, "1"), ("d", 3, "1"), ("e", 4, "2"),
    ]  # fmt: skip
    assert (found[0].why, found[4].why) == ({"method": "maxherding"}, {"method": "random"})
    assert all(query.state == "open" and query.asked_at.endswith("+00:00") for query in found)


def test_asking_again_changes_nothing(store):
    before = (store.queries(), store.moment())
    store.ask("main", ["a", "b", "c", "d"])
    assert (store.queries(), store.moment()) == before


def test_a_withdrawn_question_keeps_its_answer_for_the_day_it_is_asked_again(store):
    store.label("b", "cat", "ann")
    store.ask("main", ["c", "a", "d"])
    assert store.asked("main") == ["c", "a", "d"]
    assert store.labels() == {}
    store.skip("b", "broken", "ann")  # an answer on its way is welcome
    assert store.skipped() == {"b": "broken"}
    store.ask("main", ["c", "a", "d", "b"])
    assert store.query("b").state == "skipped"
    assert [event.action for event in store.history("b")] == ["asked", "label", "withdrawn", "skip", "asked"]


def test_tracks_share_the_answers_of_a_sample(store):
    store.ask("other", ["z", "a"])
    store.label("a", "dog", "ann")
    assert store.labels("main") == store.labels("other") == {"a": "dog"}
    assert store.progress("other").asked == 2
    assert store.progress().asked == 5


def test_a_sample_asked_twice_is_refused(store):
    with pytest.raises(UserError, match="twice"):
        store.ask("main", ["a", "a"])


# --- handing out


def test_no_image_is_in_front_of_two_annotators(store):
    assert [query.id for query in store.claim_ahead("ann", 2)] == ["a", "b"]
    assert [query.id for query in store.claim_ahead("bob", 3)] == ["c", "d"]
    assert store.claim("cid") is None
    assert store.query("a").held_by == "ann"
    assert store.claim("ann").id == "a", "the same one after a reload"


def test_a_lease_ends_and_is_renewed_by_claiming(store, clock):
    store.claim("ann")
    clock.now += LEASE - 1
    store.claim("ann")
    clock.now += LEASE - 1
    assert store.claim("bob").id == "b"
    clock.now += 2
    assert store.claim("cid").id == "a"
    assert store.claim("ann").id == "c", "what was lost to another is not shown again"


def test_released_images_go_to_others_at_once(store):
    store.claim_ahead("ann", 4)
    store.release("ann")
    assert store.claim("bob").id == "a"


def test_the_overlap_share_is_asked_of_a_second_annotator_after_the_first(store):
    store.set_overlap(1.0)
    store.claim("ann")
    assert store.claim("bob").id == "b", "not while ann has it"
    store.label("a", "cat", "ann")
    store.release("bob")
    assert store.claim("bob").id == "a"
    assert store.progress().second_opinions == 1
    assert store.labels() == {"a": "cat"}, "one answer counts until another differs"
    store.label("a", "cat", "bob")
    assert (store.progress().second_opinions, store.claim("cid").id) == (0, "b")


def test_the_overlap_share_is_about_that_share(tmp_path):
    store = LabelStore.open(tmp_path)
    store.ask("main", [f"x{number}" for number in range(300)])
    store.set_overlap(0.25)
    assert answer_by(store, lambda sample: "cat" if int(sample[1:]) < 100 else None) == 100
    assert 12 < store.progress().second_opinions < 40
    for bad in (-0.1, 1.5, float("nan"), True, "half"):
        with pytest.raises(UserError, match="overlap"):
            store.set_overlap(bad)


# --- answers


def test_an_annotator_corrects_himself_but_never_another(store):
    store.label("a", "cat", "ann", 2.0)
    store.label("a", "dog", "ann", 1.0)
    assert store.labels() == {"a": "dog"}
    assert store.label("a", "eel", "bob").state == "disputed"
    assert store.labels() == {}
    assert [(answer.annotator, answer.label) for answer in store.answers("a")["a"]] == [("ann", "dog"), ("bob", "eel")]
    settled = store.resolve("a", "cat", "cid")
    assert (settled.state, settled.label, settled.resolved_by) == ("labelled", "cat", "cid")
    store.label("a", "eel", "ann")
    assert store.labels() == {"a": "cat"}, "a resolution stands"
    assert [event.action for event in store.history("a")] == ["asked", "label", "label", "label", "resolve", "label"]


def test_two_skips_agree_whatever_their_reasons(store):
    store.skip("a", "broken", "ann")
    assert store.skip("a", "unclear", "bob").state == "skipped"
    assert store.label("a", "cat", "cid").state == "disputed"
    assert store.resolve("a", None, "cid", reason="unclear").reason == "unclear"
    with pytest.raises(UserError, match="either"):
        store.resolve("a", "cat", "cid", reason="unclear")


def test_the_same_answer_again_leaves_no_line(store):
    store.label("a", "cat", "ann", 3.0)
    moment = store.moment()
    store.label("a", "cat", "ann", 9.0)
    assert store.moment() == moment
    assert store.answers("a")["a"][0].seconds == 3.0


def test_undo_goes_back_step_by_step(store):
    store.label("a", "cat", "ann")
    store.label("a", "dog", "ann")
    store.skip("b", "unclear", "ann")
    store.label("c", "cat", "bob")
    assert store.undo("ann").id == "b"
    assert store.skipped() == {}
    assert (store.undo("ann").label, store.undo("ann").state, store.undo("ann")) == ("cat", "open", None)
    assert store.labels() == {"c": "cat"}
    assert store.claim("ann").id == "a", "in front of him again"
    assert store.claim("cid").id == "d"


def test_undo_of_a_resolution_brings_the_dispute_back(store):
    store.label("a", "cat", "ann")
    store.label("a", "dog", "bob")
    store.resolve("a", "dog", "bob")
    assert store.undo("bob").state == "disputed"
    store.resolve("a", "dog", "bob")
    store.resolve("a", "eel", "ann")
    with pytest.raises(UserError, match="anew since"):
        store.undo("bob")


@pytest.mark.parametrize(
    ("words", "act"),
    [
        ("not asked", lambda store: store.label("zebra", "cat", "ann")),
        ("not asked", lambda store: store.resolve("zebra", "cat", "ann")),
        ("known: cat, dog, eel", lambda store: store.label("a", "fox", "ann")),
        ("not the name", lambda store: store.label("a", None, "ann")),
        ("known: broken", lambda store: store.skip("a", "tired", "ann")),
        ("not a name", lambda store: store.label("a", "cat", "  ")),
        ("not a name", lambda store: store.claim("x" * 81)),
        ("not a name", lambda store: store.label("a", "cat", "ann\x1b[2J")),
        ("seconds", lambda store: store.label("a", "cat", "ann", float("nan"))),
        ("seconds", lambda store: store.label("a", "cat", "ann", -1)),
    ],
)
def test_a_mistake_is_told_in_one_line_and_changes_nothing(store, words, act):
    moment = store.moment()
    with pytest.raises(UserError, match=words) as failure:
        act(store)
    assert "\n" not in str(failure.value)
    assert store.moment() == moment


# --- any sequence of actions, against a store that is a few dictionaries


class Naive:
    """The rules of the store in the plainest form; every action keeps a copy of all that was before."""

    def __init__(self):
        self.answers, self.settled, self.done = {}, {}, {}

    def act(self, kind, sample, who, what):
        if kind == "undo":
            return self._undo(who)
        table, key, value = (
            (self.settled, sample, (*what, who)) if kind == "resolve" else (self.answers, (sample, who), what)
        )
        if (table.get(key) or (0, 0))[:2] == what:
            return None
        self.done.setdefault(who, []).append((table, key, table.get(key), value))
        table[key] = value
        return None

    def _undo(self, who):
        if self.done.get(who):
            table, key, before, after = self.done[who][-1]
            if table is self.settled and table.get(key) != after:
                return  # refused
            self.done[who].pop()
            table[key] = before

    def state(self, sample):
        if self.settled.get(sample):
            label, reason, _ = self.settled[sample]
            return ("labelled" if label else "skipped", label, reason if not label else None)
        said = [value for (each, _), value in self.answers.items() if each == sample and value]
        if not said:
            return ("open", None, None)
        labels = {label for label, _ in said}
        if len(labels) > 1:
            return ("disputed", None, None)
        (label,) = labels
        return ("labelled" if label else "skipped", label, None)


VALUES = st.one_of(
    st.sampled_from(CLASSES).map(lambda name: (name, None)), st.sampled_from(REASONS).map(lambda reason: (None, reason))
)
ACTIONS = st.tuples(
    st.sampled_from(["answer", "answer", "answer", "resolve", "undo"]),
    st.sampled_from("abc"),
    st.sampled_from(["ann", "bob", "cid"]),
    VALUES,
)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """One store for all examples of a property; each has samples and annotators of its own."""
    return LabelStore.open(tmp_path_factory.mktemp("many"), CLASSES), itertools.count()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=12))
def test_any_sequence_of_actions_ends_as_in_the_naive_store(many, actions):
    naive, (store, numbers) = Naive(), many
    own = f"{next(numbers)}"
    store.ask(own, [own + sample for sample in "abc"])
    for kind, letter, name, what in actions:
        sample, who = own + letter, own + name
        if kind == "undo":
            with suppress(UserError):  # of a resolution that another has replaced
                store.undo(who)
        elif kind == "resolve":
            store.resolve(sample, what[0], who, reason=what[1])
        elif what[0]:
            store.label(sample, what[0], who)
        else:
            store.skip(sample, what[1], who)
        naive.act(kind, sample, who, what)
    for query in store.queries(own):
        state, label, reason = naive.state(query.id)
        assert (query.state, query.label) == (state, label)
        assert reason is None or query.reason == reason
        assert store.history(query.id)[-1].state == state, "the trail tells the same"


# --- what is read off it


def test_progress_counts_people_and_time(store, clock):
    clock.now = time.time()
    store.label("a", "cat", "ann", 4.0)
    store.skip("b", "broken", "ann", 2.0)
    store.label("c", "cat", "bob", 10.0)
    found = store.progress()
    assert (found.asked, found.open, found.labelled, found.skipped, found.disputed) == (4, 1, 2, 1, 0)
    assert (found.annotators["ann"].labelled, found.annotators["ann"].skipped) == (1, 1)
    assert (found.annotators["ann"].median_seconds, found.median_seconds) == (3.0, 4.0)
    assert found.seconds_left == 2.0, "one image of 4 s, two at work"


def test_the_author_of_imported_answers_is_not_at_work(store, clock):
    clock.now = time.time()
    store.label("a", "cat", "ann", 4.0)
    store.merge([Incoming("b", "cat", None, "bob", 4.0)], "answers.csv")
    found = store.progress()
    assert (set(found.annotators), found.open) == ({"ann", "bob"}, 2)
    assert found.seconds_left == 8.0, "two images of 4 s, ann alone"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CLASSES), st.sampled_from(CLASSES)), min_size=1, max_size=30))
def test_kappa_is_that_of_scikit_learn(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ours = cohen_kappa(first, second)
    whole = agreement([{"ann": a, "bob": b} for a, b in pairs])
    assert whole.images == len(pairs)
    if len(set(first) | set(second)) == 1:
        assert ours is whole.kappa is None
    else:
        assert ours == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
        assert whole.kappa == pytest.approx(ours, abs=1e-12)


def test_agreement_covers_every_pair(store):
    for sample, (ann, bob) in {"a": ("cat", "cat"), "b": ("cat", "dog"), "c": ("dog", "dog")}.items():
        store.label(sample, ann, "ann")
        store.label(sample, bob, "bob")
    store.label("a", "eel", "cid")
    store.skip("b", "broken", "cid")
    found = store.agreement()
    assert [(pair.first, pair.second, pair.images, pair.agreed) for pair in found.pairs] == [
        ("ann", "bob", 3, 2), ("ann", "cid", 1, 0), ("bob", "cid", 1, 0),
    ]  # fmt: skip
    assert found.images == 3


def test_the_trail_cannot_be_changed_or_shortened(store):
    store.label("a", "cat", "ann")
    with sqlite3.connect(store.path) as connection:
        for attempt in ("UPDATE events SET annotator = 'bob'", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError, match="audit trail"):
                connection.execute(attempt)


def test_the_pool_of_a_selection_stays_as_it_was_when_it_began(store):
    store.skip("a", "broken", "ann")
    assert store.skipped_for("main 2") == {"a"}
    store.skip("b", "unclear", "ann")
    store.label("c", "cat", "ann")
    store.undo("ann")
    store.undo("ann")
    store.undo("ann")
    store.skip("d", "broken", "bob")
    assert store.skipped_for("main 2") == {"a"}, "whatever was skipped or taken back since"
    assert store.skipped_for("main 3") == set(store.skipped()) == {"d"}


# --- the file


def test_only_the_owner_reads_the_file(store):
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_a_backup_is_a_store(store, tmp_path):
    store.label("a", "cat", "ann")
    store.backup(tmp_path / "copy" / "labels.sqlite")
    assert LabelStore.open(tmp_path / "copy").labels() == {"a": "cat"}
    assert (tmp_path / "copy" / "labels.sqlite").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists"):
        store.backup(tmp_path / "copy" / "labels.sqlite")


def test_classes_are_kept_and_may_grow_but_not_lose_what_was_used(store):
    store.label("a", "cat", "ann")
    assert LabelStore.open(store.folder).classes == CLASSES
    assert LabelStore.open(store.folder, [*CLASSES, "fox"]).classes[-1] == "fox"
    with pytest.raises(UserError, match="'cat'"):
        LabelStore.open(store.folder, ["dog"])


def test_a_damaged_or_newer_file_is_told_in_one_line(tmp_path):
    (tmp_path / "labels.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(UserError, match="damaged"):
        LabelStore.open(tmp_path)
    (tmp_path / "labels.sqlite").unlink()
    with sqlite3.connect(tmp_path / "labels.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="newer cofal"):
        LabelStore.open(tmp_path)
    with pytest.raises(UserError, match="no site"):
        LabelStore.open(tmp_path / "nowhere")
