"""A site's own report: its images and labels, and nothing that a hostile name could do."""

from __future__ import annotations

import re
import stat
import sys

import pytest

from cofal.cli import main
from cofal.errors import UserError
from cofal.federation.site import open_site
from cofal.privacy.answered import admit
from cofal.privacy.ledger import FILE as LEDGER
from cofal.privacy.ledger import HEAD
from cofal.report.site_page import write_site_report
from page_site import make_site

IDS = [f"ward/{number:02d}.png" for number in range(30)]
NASTY = "<script>alert('&amp;')</script>"


def written(folder, **changes):
    make_site(folder, **{"ids": IDS, "asked": IDS[:8], **changes})
    return open_site(folder)


def test_it_shows_the_images_labels_people_and_what_left(tmp_path):
    site = written(tmp_path / "north", known={IDS[20]: 1})
    store = site.store
    for sample, label in zip(IDS[:4], ("cat", "cat", "dog", "fox"), strict=True):
        store.label(sample, label, "ana", 2.0)
    store.label(IDS[0], "cat", "ben", 4.0)
    store.label(IDS[1], "dog", "ben", 4.0)
    store.skip(IDS[4], "broken", "ana", 1.0)
    site.ledger.append(phase="query.embed", kind="description")
    place = write_site_report(site.folder)
    text = place.read_text(encoding="utf-8")
    assert place == tmp_path / "north" / "report.html"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert "3 of 8 images that were asked are labelled</h1>" in text
    assert text.count("<img ") == 8
    assert set(re.findall(r"<section id=\"(\w+)\"", text)) == {"asked", "pictures", "balance", "people", "map", "left"}
    assert "MaxHerding together" in text
    assert "skipped: broken" in text
    assert "in dispute" in text
    assert "gave the same class to 1 of 2 images" in text
    assert "Phase II: embedding" in text
    assert "lines is whole" in text
    assert re.search(r"title=\"ward/00.png · cat · asked as number 1 · stands for \d+ images\"", text)
    assert "http" not in text.replace("http://www.w3.org", "")


def test_a_ledger_that_may_lack_lines_is_not_called_whole(tmp_path):
    site = written(tmp_path / "north")
    site.ledger.append(phase="query.embed", kind="description")
    (site.folder / HEAD).unlink()
    text = write_site_report(site.folder).read_text(encoding="utf-8")
    assert "is whole" not in text
    assert "they may not be all: ledger.head is absent or damaged" in text
    (site.folder / LEDGER).unlink()
    admit(site.folder, "north", bytes(32), 10)
    assert "the ledger is missing or empty" in write_site_report(site.folder).read_text(encoding="utf-8")


def test_names_stay_text_and_an_empty_site_is_told(tmp_path):
    ids = [NASTY, *IDS]
    site = written(tmp_path / "a", ids=ids, asked=[NASTY], classes=[NASTY, "dog"], name=NASTY.replace("/", "|"))
    site.store.label(NASTY, NASTY, NASTY, 1.0)
    text = write_site_report(site.folder, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    empty = written(tmp_path / "b", asked=[])
    assert "Nothing has been asked of this site yet" in write_site_report(empty.folder).read_text(encoding="utf-8")


def test_the_command_knows_a_site_from_a_run(tmp_path, written_run, monkeypatch):
    site = written(tmp_path / "north")
    monkeypatch.setattr(sys, "argv", ["cofal", "report", str(site.folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert (site.folder / "report.html").exists()
    simulated = next((written_run().sites).glob("site-*"))
    with pytest.raises(UserError, match="simulated site"):
        write_site_report(simulated)
