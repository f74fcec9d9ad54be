"""The report: which sections a folder gives, that the file stands alone, that names stay text, that bytes repeat."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from cofal.federation.embedded import run_embedded
from cofal.report.page import write_report
from cofal.rundir import RunDir

HOSTILE = "<script>alert(1)</script> \"'&amp; </script> 😀 \u202eאבג"
ALL = {"accuracy", "asked", "gap", "map", "redundancy", "pictures", "plan", "encoder", "traffic", "details"}
PAIR = [("maxherding", "central"), ("maxherding", "per-client")]
VOID = {"meta", "img", "input", "br", "link"}


class Page(HTMLParser):
    """What a browser would make of the text: sections, tags, sources, and the text of each section."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.sections: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = dict(attributes)["id"]
            self.sections[self._section] = ""
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag == "section":
            self._section = ""

    def handle_data(self, data):
        if self._section and self.open[-1] not in {"script", "style"}:
            self.sections[self._section] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(run: RunDir) -> Page:
    write_report(run)
    found = Page(run.report.read_text(encoding="utf-8"))
    assert not found.open, "every element is closed"
    return found


def test_a_full_run_has_every_section_and_its_finding(written_run):
    run = written_run()
    found = page(run)
    assert set(found.sections) == ALL
    text = run.report.read_text(encoding="utf-8")
    assert (
        "With 4 to 8 labels, choosing together reached 75.0\u00a0% on average; choosing alone 65.0\u00a0%</h1>" in text
    )
    assert "12.3\u00a0kB" in found.sections["traffic"]
    assert found.headings[0] == "h1"
    assert found.headings.count("h1") == 1


def test_every_picture_says_what_it_shows(written_run):
    found = page(written_run())
    for attributes in found.all("svg"):
        if attributes.get("aria-hidden") == "true":  # a bar beside its own number
            continue
        assert attributes["role"] == "img"
        assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    assert all(attributes["alt"] for attributes in found.all("img"))
    named = {attributes["id"] for _, attributes in found.tags if "id" in attributes}
    assert all(
        attributes["aria-labelledby"] in named for _, attributes in found.tags if "aria-labelledby" in attributes
    )


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"share": "none", "kinds": ("per-client",)}, {"map", "redundancy", "gap"}),
        ({"kinds": ("central",), "methods": ("maxherding",)}, {"gap"}),
        ({"kinds": ("per-client",)}, {"gap"}),
        ({"methods": ("maxherding",)}, set()),
        ({"methods": ("random",)}, {"gap"}),
        ({"budgets": (4,)}, set()),
        ({"rounds": 0}, {"encoder"}),
        ({"probe": False}, set()),
        ({"images": False}, {"pictures"}),
        ({"clients": ("only",)}, {"redundancy"}),
        ({"overrides": ("train.evaluate=clients",)}, set()),
        ({"overrides": ("encoder.frozen=model.pt",), "rounds": 0}, {"encoder"}),
        ({"methods": ("probcover", "typiclust", "maxherding", "random"), "budgets": tuple(range(2, 31, 2))}, set()),
        ({"accuracies": {track: [0.0, 0.0] for track in PAIR}}, {"gap"}),
        ({"accuracies": {track: [1.0, 1.0] for track in PAIR}}, set()),
    ],
)
def test_what_a_run_lacks_is_left_out_and_the_rest_stays(written_run, changes, missing):
    assert set(page(written_run(**changes)).sections) == ALL - missing


def test_a_folder_with_results_alone_is_enough(written_run):
    run = written_run()
    for part in ("server", "sites", "picks"):
        shutil.rmtree(run.path / part)
    run.info.unlink()
    run.metrics.unlink()
    assert set(page(run).sections) == {"accuracy", "asked", "gap", "plan", "details"}


def test_a_run_that_was_stopped_says_that_its_traffic_is_not_whole(written_run):
    run = written_run()
    assert "was stopped" not in page(run).sections["traffic"]
    info = json.loads(run.info.read_text())
    info["traffic"]["pretrain"]["round_trips"] -= 1
    run.info.write_text(json.dumps(info))
    assert "was stopped" in page(run).sections["traffic"]


def test_pictures_go_when_the_images_are_gone(written_run):
    run = written_run()
    shutil.rmtree(run.sites / "images-0")
    assert "pictures" not in page(run).sections


def test_names_ids_and_classes_stay_text(written_run):
    site = "<script>alert(1)<script>\"'&amp;😀\u202eאבג"  # a site's name has no blank and no slash
    run = written_run(clients=(site, "b"), classes=(HOSTILE, "dog"), sample=HOSTILE + "{client}{row}")
    found = page(run)
    scripts = [attributes for attributes in found.all("script") if attributes.get("type") != "application/json"]
    assert len(scripts) == 1
    assert site in found.sections["map"]
    assert HOSTILE in found.sections["pictures"]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    text = run.report.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="map-data">(.*?)</script>', text, re.S).group(1))
    assert site in data["clients"]


def test_it_stands_alone_and_svg_is_well_formed(written_run):
    run = written_run()
    found = page(run)
    text = run.report.read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|//[a-z]+\.", re.sub(r"(?m)^\s*//.*$", "", text))
    for _, attributes in found.tags:
        for key in ("src", "href"):
            assert (attributes.get(key) or "data:").startswith(("data:", "#"))
    assert not found.all("link")
    drawings = re.findall(r"<svg.*?</svg>", text, re.S)
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_the_same_run_gives_the_same_bytes(written_run):
    first, second = written_run("one"), written_run("two")
    write_report(first)
    write_report(second)
    assert first.map.read_bytes() == second.map.read_bytes()
    assert first.report.read_bytes() == second.report.read_bytes()
    before = first.report.read_bytes()
    write_report(first)  # the kept map is read this time
    assert first.report.read_bytes() == before


def test_a_real_run(small, cache, tmp_path):
    run = run_embedded(small("train.rounds=2"), tmp_path / "run", cache)
    found = page(run)
    assert set(found.sections) == ALL | {"egress"}
    assert run.report.stat().st_size < 2_000_000
    picks = json.loads(run.picks("maxherding-central").read_text())["steps"]
    tips = [attributes["data-tip"] for _, attributes in found.tags if "data-tip" in attributes]
    for step in picks:
        for pick in step["picks"]:
            assert f"{pick['id']}\n{pick['client']}\nasked as number {pick['rank'] + 1}" in tips


def test_phases_stand_in_their_order_though_a_run_goes_back_and_forth(written_run):
    run = written_run()
    info = json.loads(run.info.read_text())
    counted = {"up": 1, "down": 1, "round_trips": 1, "left": {"north": {"ids": {"messages": 1, "up": 1, "down": 1}}}}
    came = ["describe", "select maxherding-central", "train", "select probcover-per-client", "assign", "embed", "odd"]
    info["traffic"] = {phase: {**counted, **info["traffic"].get(phase, {})} for phase in came}
    run.info.write_text(json.dumps(info))
    found = page(run)
    words = [
        "Roll call",
        "embedding",
        "MaxHerding together",
        "ProbCover alone",
        "telling each",
        "training the cl",
        "odd",
    ]
    for section in ("egress", "traffic"):
        text = found.sections[section][found.sections[section].index("Roll call") :]
        places = [text.index(word) for word in words]
        assert places == sorted(places), section
