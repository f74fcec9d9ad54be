"""Exchange with other tools: round trips give the same store, twice changes nothing, nonsense is told and left out."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.labeling import merging
from cofal.labeling.exchange import files
from cofal.labeling.exchange.csv_file import read_csv, write_csv
from cofal.labeling.exchange.label_studio import write_labelling_config
from cofal.labeling.exchange.transfer import FORMATS, export_questions, import_answers
from cofal.labeling.oracle import answer_by, truth_of
from cofal.labeling.records import Query
from cofal.labeling.store import LabelStore

IDS = ["=1+1", "'quoted", 'a/<b>"&.png', "-née 😀", "@x", "plain", "ܫܠܡܐ"]
CLASSES = ["=cat", "dog & <b>", "'eel'", "-"]


@pytest.fixture
def images():
    pixels = np.random.default_rng(0).integers(0, 255, (len(IDS), 6, 5, 3)).astype(np.uint8)
    return ImageSet.of(pixels, IDS, np.arange(len(IDS)) % 4, CLASSES)


@pytest.fixture
def new(tmp_path):
    """A maker of stores with all questions asked."""

    def make(name, classes=CLASSES):
        (tmp_path / name).mkdir()
        store = LabelStore.open(tmp_path / name, classes)
        store.ask("main", IDS)
        return store

    return make


@pytest.fixture
def store(new):
    return new("site")


def facts(store):
    return store.labels(), store.skipped(), [query.state for query in store.queries()]


def nothing(outcome):
    return (outcome.added, outcome.overwritten, outcome.conflicts, outcome.unknown_ids, outcome.unreadable) == (
        0, 0, [], [], [],
    )  # fmt: skip


def put(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


# --- round trips


@pytest.mark.parametrize("format", FORMATS)
def test_a_round_trip_gives_the_same_store_and_twice_changes_nothing(store, new, images, tmp_path, format):
    for number, sample in enumerate(IDS[:4]):
        store.label(sample, CLASSES[number], "ann")
    store.skip(IDS[4], "not in the list", "ann")
    out = tmp_path / "x" / f"out.{'csv' if format == 'csv' else 'json'}"
    count, written = export_questions(store, images, out, format, everything=True)
    assert count == len(IDS)
    assert all(path.exists() for path in written)
    other = new("other")
    outcome = import_answers(other, out)
    assert (outcome.added, outcome.unreadable, outcome.unknown_ids, outcome.unknown_classes) == (5, [], [], [])
    assert facts(other) == facts(store)
    moment = other.moment()
    again = import_answers(other, out)
    assert nothing(again)
    assert (again.unchanged, other.moment()) == (5, moment)
    assert nothing(import_answers(store, out))
    assert store.agreement().pairs == [], "no opinion was made up"


@pytest.mark.parametrize("format", FORMATS)
def test_by_itself_an_export_holds_what_is_still_to_do(store, images, tmp_path, format):
    store.label(IDS[0], CLASSES[0], "ann")
    store.label(IDS[1], CLASSES[0], "ann")
    store.label(IDS[1], CLASSES[1], "bob")
    store.skip(IDS[2], "broken", "ann")
    out = tmp_path / "out.json"
    assert export_questions(store, images, out, format)[0] == len(IDS) - 2
    assert json.dumps(IDS[0])[1:-1] not in out.read_text()


def test_the_pictures_are_the_images_under_names_that_tell_nothing(store, images, tmp_path):
    export_questions(store, images, tmp_path / "out.json", "coco")
    content = json.loads((tmp_path / "out.json").read_text())
    for image in content["images"]:
        pixels = np.asarray(Image.open(tmp_path / image["file_name"]))
        assert np.array_equal(pixels, images.images[IDS.index(image["cofal_id"])])
        assert image["cofal_id"] not in image["file_name"]
    assert (content["images"][0]["height"], content["images"][0]["width"]) == (6, 5)
    before = sorted((tmp_path / "out-images").iterdir())
    export_questions(store, images, tmp_path / "out.json", "coco")
    assert sorted((tmp_path / "out-images").iterdir()) == before


# --- Label Studio


def annotated(task, number, **fields):
    """A task as Label Studio exports it, once someone chose."""
    result = [{"id": f"r{number}", "type": "choices", "to_name": "image", "origin": "manual", **each}
              for each in fields.pop("chosen", [])]  # fmt: skip
    annotation = {
        "id": 100 + number, "completed_by": 1, "result": result, "was_cancelled": False, "ground_truth": False,
        "created_at": "2026-01-02T10:00:00Z", "updated_at": "2026-01-02T10:00:00Z", "lead_time": 3.5, "task": number,
        "prediction": {}, "result_count": 1, "unique_id": "u", **fields,
    }  # fmt: skip
    return {
        "id": number,
        "annotations": [annotation],
        "drafts": [],
        "predictions": [],
        "meta": {},
        "project": 4,
        **task,
    }


def choose(name, value):
    return {"from_name": name, "value": {"choices": [value]}}


def test_tasks_have_local_file_urls_below_the_document_root(store, images, tmp_path):
    out = tmp_path / "work space" / "north" / "tasks.json"
    _, (_, config, folder) = export_questions(store, images, out, "label-studio", document_root=tmp_path)
    tasks = json.loads(out.read_text())
    assert [task["data"]["cofal_id"] for task in tasks] == IDS
    assert all(
        task["data"]["image"].startswith("/data/local-files/?d=work%20space/north/tasks-images/") for task in tasks
    )
    assert {task["data"]["image"].split("/")[-1] for task in tasks} == {path.name for path in folder.iterdir()}
    view = ElementTree.parse(config).getroot()
    labels, skips = view.findall("Choices")
    assert [choice.get("value") for choice in labels] == CLASSES
    assert labels[0].get("hotkey") == "1"
    assert [choice.get("value") for choice in skips] == ["broken", "unclear", "not in the list"]
    assert {part.get("toName") for part in (labels, skips)} == {view.find("Image").get("name")}
    with pytest.raises(UserError, match="document root"):
        export_questions(store, images, tmp_path / "tasks.json", "label-studio", document_root=tmp_path / "elsewhere")


def test_labels_of_label_studio_give_the_store_of_the_page(store, new, images, tmp_path):
    export_questions(store, images, tmp_path / "tasks.json", "label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    by_hand = new("by-hand")
    for number, sample in enumerate(IDS[:4]):
        by_hand.label(sample, CLASSES[number], "label-studio user 1", 3.5)
    by_hand.skip(IDS[4], "broken", "label-studio user 1", 3.5)
    by_hand.skip(IDS[5], "unclear", "label-studio user 1", 3.5)
    done = [annotated(task, number, chosen=[choose("label", CLASSES[number])]) for number, task in enumerate(tasks[:4])]
    done.append(annotated(tasks[4], 4, chosen=[choose("skip", "broken")]))
    done.append(annotated(tasks[5], 5, was_cancelled=True))
    done.append({"id": 6, "annotations": [], **tasks[6]})
    assert import_answers(store, put(tmp_path / "project.json", done)).added == 6
    assert facts(store) == facts(by_hand)
    known = [(given[0].annotator, given[0].seconds) for given in store.answers().values()]
    assert known == [("label-studio user 1", 3.5)] * 6
    assert {event.source for event in store.history() if event.action != "asked"} == {"label-studio project.json"}
    assert nothing(import_answers(store, tmp_path / "project.json"))
    minimal = [{"id": 1, "cofal_id": IDS[0], "label": CLASSES[0], "annotator": 1, "lead_time": 3.5, "image": "/data"}]
    assert nothing(import_answers(store, put(tmp_path / "minimal.json", minimal)))


EXPORTED = Path(__file__).parent / "label_studio_1.23.2"  # six tasks, as that version wrote them


@pytest.mark.parametrize(
    ("file", "skipped", "person"),
    [
        ("project.json", {"digit-0174.png": "unclear", "digit-1742.png": "broken"}, "label-studio user 1"),
        ("project-min.json", {"digit-1742.png": "broken"}, "label-studio user 1"),  # leaves out what was skipped there
        ("project.csv", {"digit-1742.png": "broken"}, "import"),
    ],
)
def test_what_label_studio_really_exports_is_read(tmp_path, file, skipped, person):
    labels = {"digit-1498.png": "3", "digit-1336.png": "0", "digit-1415.png": "0", "digit-0602.png": "7"}
    store = LabelStore.open(tmp_path, [str(number) for number in range(10)])
    store.ask("main", [*labels, "digit-0174.png", "digit-1742.png"])
    outcome = import_answers(store, EXPORTED / file)
    assert (outcome.added, outcome.unknown_ids, outcome.unreadable) == (4 + len(skipped), [], [])
    assert (store.labels(), store.skipped()) == (labels, skipped)
    assert {answer.annotator for given in store.answers().values() for answer in given} == {person}
    assert nothing(import_answers(store, EXPORTED / file))


@pytest.mark.parametrize(
    ("classes", "keys"),
    [
        (["0", "1", "7"], ["0", "1", "7"]),
        (["cat", "dog"], ["1", "2"]),
        (["1", "10"], ["1", "2"]),
        (["👩\u200d🔬", "می\u200cخواهم", "\u200fעברית"], ["1", "2", "3"]),
        ([str(number) for number in range(100, 140)], [*"1234567890qwertyuiopasdfghjklzxcvbnm", *[None] * 4]),
    ],
)
def test_classes_have_keys_in_label_studio_and_digits_their_own(tmp_path, classes, keys):
    write_labelling_config(tmp_path / "config.xml", classes)
    choices = ElementTree.parse(tmp_path / "config.xml").findall(".//Choices[@name='label']/Choice")
    assert [(choice.get("value"), choice.get("hotkey")) for choice in choices] == list(zip(classes, keys, strict=True))


def test_a_class_that_xml_cannot_hold_is_told(tmp_path):
    with pytest.raises(UserError, match="without control characters"):
        write_labelling_config(tmp_path / "config.xml", ["cat\x07"])


def test_two_people_in_label_studio_are_two_opinions(store, tmp_path):
    task = {"data": {"cofal_id": IDS[0], "image": "/x"}}
    first = annotated(task, 1, chosen=[choose("label", CLASSES[0])], completed_by={"id": 1, "email": "ann@example.org"})
    changed = {**first["annotations"][0], "result": [choose("label", CLASSES[2])], "updated_at": "2026-01-03T00:00:00Z"}
    second = {**first["annotations"][0], "completed_by": {"id": 2}, "result": [choose("label", CLASSES[1])]}
    first["annotations"] = [changed, second, first["annotations"][0]]
    outcome = import_answers(store, put(tmp_path / "project.json", [first]))
    assert outcome.added == 1
    assert [(each.sample, each.disputed) for each in outcome.conflicts] == [(IDS[0], True)]
    said = {answer.annotator: answer.label for answer in store.answers()[IDS[0]]}
    assert said == {"ann@example.org": CLASSES[2], "label-studio user 2": CLASSES[1]}, "of one person, the latest"
    assert store.query(IDS[0]).state == "disputed"
    assert nothing(import_answers(store, tmp_path / "project.json"))


def test_an_answer_that_label_studio_only_carried_is_nobody_s_opinion(store, images, tmp_path):
    store.label(IDS[0], CLASSES[0], "ann")
    store.label(IDS[1], CLASSES[1], "ann")
    export_questions(store, images, tmp_path / "tasks.json", "label-studio", everything=True)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for task in tasks[:2]:
        task["annotations"][0]["completed_by"] = 7  # Label Studio signs them with whoever imported the tasks
    tasks[1]["annotations"][0]["result"][0]["value"] = {"choices": [CLASSES[2]]}  # and here he changed his mind
    outcome = import_answers(store, put(tmp_path / "project.json", tasks[:2]))
    assert (outcome.added, outcome.unchanged, [each.sample for each in outcome.conflicts]) == (0, 1, [IDS[1]])
    assert store.query(IDS[1]).state == "disputed"
    assert [len(given) for given in store.answers().values()] == [1, 2]


# --- conflicts, unknown ids and classes


def test_what_differs_is_listed_and_left_as_it_is(store, tmp_path):
    store.label("plain", CLASSES[0], "ann")
    store.skip("@x", "broken", "ann")
    lines = ["id,label", f"plain,{CLASSES[1]}", f"@x,{CLASSES[1]}", f"zebra,{CLASSES[1]}", "=1+1,wolf", "-née 😀,"]
    file = put(tmp_path / "labels.csv", "\n".join(lines))
    moment = store.moment()
    outcome = import_answers(store, file)
    assert [(each.sample, each.has, each.given, each.disputed) for each in outcome.conflicts] == [
        ("plain", CLASSES[0], CLASSES[1], False), ("@x", "skipped: broken", CLASSES[1], False),
    ]  # fmt: skip
    assert (outcome.unknown_ids, outcome.unknown_classes) == (["zebra"], [("=1+1", "wolf")])
    assert (outcome.added, store.moment()) == (0, moment)
    outcome = import_answers(store, file, overwrite=True)
    assert (outcome.overwritten, outcome.conflicts) == (2, [])
    assert store.labels() == {"plain": CLASSES[1], "@x": CLASSES[1]}
    assert store.history("plain")[-1].before is None, "the first resolution of it"
    assert store.answers("plain")["plain"][0].label == CLASSES[0], "what ann said is kept"
    assert nothing(import_answers(store, file, overwrite=True)) is False  # zebra is still unknown
    assert store.history("plain")[-1].source == "csv labels.csv"


def test_a_named_annotator_corrects_only_with_overwrite(store, tmp_path):
    store.label("plain", CLASSES[0], "ann")
    file = put(tmp_path / "labels.csv", f"id,label\nplain,{CLASSES[1]}\n")
    assert [each.disputed for each in import_answers(store, file, annotator="ann").conflicts] == [False]
    assert store.labels() == {"plain": CLASSES[0]}
    assert import_answers(store, file, annotator="ann", overwrite=True).overwritten == 1
    assert store.labels() == {"plain": CLASSES[1]}


def test_two_lines_for_one_id_are_a_conflict_if_they_differ(store, tmp_path):
    file = put(tmp_path / "labels.csv", f"id,label\nplain,{CLASSES[1]}\nplain,{CLASSES[1]}\nplain,{CLASSES[3]}\n")
    outcome = import_answers(store, file)
    assert (outcome.added, outcome.unchanged, len(outcome.conflicts)) == (1, 1, 1)
    assert store.labels() == {"plain": CLASSES[1]}


# --- CSV


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_as_spreadsheets_write_it(store, tmp_path, separator, end):
    lines = [("id", "label", "note"), ("plain", "=cat", "a; b"), ("@x", "'eel'", "")]
    table = end.join(separator.join(f'"{cell}"' for cell in line) for line in lines)
    (tmp_path / "x.csv").write_bytes(table.encode("utf-8-sig"))
    assert import_answers(store, tmp_path / "x.csv").added == 2
    assert store.labels() == {"plain": "=cat", "@x": "'eel'"}


def test_a_label_with_a_null_byte_is_no_class(store, tmp_path):
    outcome = import_answers(store, put(tmp_path / "x.csv", "id,label\nplain,=c\0at\n"))
    assert (outcome.added, outcome.unknown_classes) == (0, [("plain", "=c\0at")])


def test_ids_that_were_not_asked_are_not_looked_up_one_by_one(store, tmp_path, monkeypatch):
    """A large foreign file must not hold the store for minutes while people label."""
    looked = []
    monkeypatch.setattr(merging, "sample_row", lambda connection, sample: looked.append(sample))
    lines = "".join(f"other-{number},=cat\n" for number in range(5000))
    outcome = import_answers(store, put(tmp_path / "x.csv", "id,label\n" + lines))
    assert (len(outcome.unknown_ids), looked) == (5000, [])


def test_csv_with_a_byte_order_mark_and_other_columns(store, tmp_path):
    (tmp_path / "labels.csv").write_bytes(
        "\ufeffNote;".replace(";", ",").encode() + f"ID,Label\r\nx,plain,{CLASSES[1]}\r\n".encode()
    )
    assert import_answers(store, tmp_path / "labels.csv").added == 1


def test_no_cell_of_an_export_is_a_formula(store, images, tmp_path):
    store.label(IDS[0], "=cat", "ann")
    export_questions(store, images, tmp_path / "out.csv", "csv", everything=True)
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


TEXT = st.text("'=-a,\"\r\n\t", min_size=1, max_size=4) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(TEXT, min_size=1, max_size=6, unique=True), names=st.lists(TEXT, min_size=1, max_size=3, unique=True)
)
def test_any_id_and_class_survive_a_round_trip_through_csv(tmp_path, ids, names):
    asked = [
        Query(sample, "main", rank, "1", {}, "", "labelled", names[rank % len(names)], None, None, None)
        for rank, sample in enumerate(ids)
    ]
    write_csv(tmp_path / "x.csv", asked)
    read = read_csv(tmp_path / "x.csv", files.read_text(tmp_path / "x.csv"), set(ids), set(names), "")
    assert [(each.sample, each.label) for each in read.answers] == [(query.id, query.label) for query in asked]


# --- hostile files


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json", '[{"data": ', "not valid JSON"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("x.json", '"text"', "columns id,label"),
        ("x.json", "{}", "images, annotations, categories"),
        ("x.json", '[{"data": {"cofal_id": "\\ud800"}}]', "lone surrogate"),
        ("x.csv", "a,b\n1,2\n", "columns id,label"),
        ("x.csv", "", "columns id,label"),
        ("x.csv", "id\0,label\nplain,-\n", "columns id,label"),
        ("x.csv", "id,label,id\nplain,-,@x\n", "'id' twice"),
        ("x.csv", "id,label\nplain,-\n".encode("utf-16"), "not UTF-8"),
        ("x.csv", 'id,label\n"a,b', "not valid CSV"),
        ("x.csv", "id,label\n" + "x" * 200_000 + ",cat", "not valid CSV"),
        ("x.csv", b"id,label\n\xff\xfe,cat", "not UTF-8"),
    ],
)
def test_a_broken_file_is_one_clear_line(store, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words) as failure:
        import_answers(store, tmp_path / name)
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 500


def test_a_huge_or_missing_file_is_not_read(store, tmp_path, monkeypatch):
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(files.LARGEST + 1)  # sparse: it takes no room
    with pytest.raises(UserError, match="64 MB"):
        import_answers(store, tmp_path / "huge.json")
    with pytest.raises(UserError, match="No such file"):
        import_answers(store, tmp_path / "missing.json")
    with pytest.raises(UserError, match="known: label-studio, csv, coco"):
        import_answers(store, put(tmp_path / "x.csv", "id,label"), "yolo")
    with pytest.raises(UserError, match="not a name"):
        import_answers(store, tmp_path / "x.csv", annotator="\x1b")


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.sampled_from(["plain", "=cat", "broken", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["data", "cofal_id", "annotations", "result", "value", "choices", "from_name", "label", "skip",
                         "was_cancelled", "completed_by", "lead_time", "id", "image_id", "category_id", "name"]),
        inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tasks=st.lists(JUNK, max_size=3), parts=st.lists(st.lists(JUNK, max_size=3), min_size=3, max_size=3))
def test_no_json_makes_an_import_stumble(tmp_path, tasks, parts):
    coco = dict(zip(["images", "annotations", "categories"], parts, strict=True))
    if not (tmp_path / "labels.sqlite").exists():
        LabelStore.open(tmp_path, CLASSES).ask("main", IDS)
    store = LabelStore.open(tmp_path)
    for content in (tasks, coco):
        import_answers(store, put(tmp_path / "x.json", content))
    assert set(store.labels().values()) <= set(CLASSES)
    store.close()


# --- a program as annotator


def test_an_oracle_answers_what_is_open(store, images):
    store.label("plain", CLASSES[3], "ann")
    assert answer_by(store, truth_of(images)) == len(IDS) - 1
    truth = {sample: CLASSES[number % 4] for number, sample in enumerate(IDS)}
    assert store.labels() == truth | {"plain": CLASSES[3]}
    assert answer_by(store, truth_of(images)) == 0


def test_an_oracle_must_know_the_classes(store):
    with pytest.raises(UserError, match="'wolf'"):
        answer_by(store, lambda sample: "wolf")
    assert answer_by(store, lambda sample: None) == 0
