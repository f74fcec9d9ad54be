"""The report in a real browser: its script runs, and does what a person's hand asks of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from cofal.federation.site import open_site
from cofal.report.page import write_report
from cofal.report.site_page import write_site_report
from page_site import make_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1000,900", "--dump-dom",
]  # fmt: skip

# Written after the report's own script, this plays the person and leaves what it saw in the page.
PERSON = """<script>
const seen = {}; const all = (s) => [...document.querySelectorAll(s)];
const visible = (s) => all(s).filter((e) => e.getClientRects().length && getComputedStyle(e).display !== "none").length;
const press = (s) => document.querySelector(s).click();
const point = (svg, x, y) => {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal, scale = box.width / view.width;
  svg.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + (x - view.x) * scale, clientY: box.top + (y - view.y) * scale, bubbles: true}));
  return document.getElementById("tip").hidden ? null : document.getElementById("tip").textContent;
};
window.onerror = (message) => { seen.error = message; };
seen.start = [visible(".panel"), visible(".pick"), visible(".gallery")];
const pick = document.querySelector(".track:not(.off) .pick");
document.querySelector(".map").scrollIntoView();
seen.pick = point(pick.closest("svg"), +pick.dataset.x, +pick.dataset.y);
const dot = document.querySelector("#accuracy-chart circle");
dot.scrollIntoView();
seen.dot = point(dot.closest("svg"), +dot.getAttribute("cx"), +dot.getAttribute("cy"));
seen.far = point(dot.closest("svg"), 5000, 5000);
press('#map [data-choose="random"]');
seen.random = [visible(".panel"), visible(".pick"), visible(".gallery"),
  document.querySelector('.gallery:not([hidden])').dataset.method];
press('#map [data-choose="maxherding"]');
const budget = document.getElementById("budget"); budget.value = "4"; budget.dispatchEvent(new Event("change"));
seen.four = visible(".pick");
seen.caption = document.querySelector(".panel figcaption").textContent.replace(/\\s+/g, " ");
press('#map .focus [data-focus="0"]'); press('#map .focus [data-focus="1"]');
seen.dimmed = new Set(all(".dots.dim").map((e) => e.dataset.client)).size;
press('#map .focus [data-focus="1"]');
seen.again = all("#map .dim").length;
press('#accuracy .focus [data-focus="maxherding"]');
seen.lines = all("#accuracy-chart .line.dim").map((e) => e.dataset.method);
const note = document.createElement("pre");
note.id = "seen"; note.textContent = JSON.stringify(seen);
document.body.append(note);
</script></body>"""


def test_a_person_points_and_presses(written_run, tmp_path):
    run = written_run(budgets=(4, 8))
    write_report(run)
    played = tmp_path / "played.html"
    played.write_text(run.report.read_text(encoding="utf-8").replace("</body>", PERSON), encoding="utf-8")
    seen = seen_in(played, tmp_path)
    assert "error" not in seen
    assert seen["start"] == [2, 16, 1]
    assert re.fullmatch(r"(north|south)/\d+\n(north|south)\nasked as number \d", seen["pick"])
    assert re.fullmatch(r"Random\n4 labels\n40.0\s%", seen["dot"])
    assert seen["far"] is None
    assert seen["random"] == [1, 8, 1, "random"]
    assert seen["four"] == 8
    assert seen["caption"] == "MaxHerding together, first 4 labels"
    assert seen["dimmed"] == 1
    assert seen["again"] == 0
    assert seen["lines"] == ["random"]


# A page in a frame of the given width, whose content this may measure.
RULER = """<!doctype html><body><iframe style="border:0;width:WIDTHpx;height:900px"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, box = (e) => e.getBoundingClientRect();
  const of = (s) => [...page.querySelectorAll(s)];
  const seen = {
    width: root.clientWidth, needed: root.scrollWidth,
    heads: of(".balance thead th").map((e) => box(e).height / parseFloat(getComputedStyle(e).lineHeight)),
    hidden: of(".scroll").filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent.trim().split("\\n")[0]),
    cut: of(".chart text").filter((e) => box(e).right > box(e.closest("svg")).right + 1).map((e) => e.textContent),
    names: of(".chart .name").length,
  };
  const note = document.createElement("pre");
  note.id = "seen"; note.textContent = JSON.stringify(seen);
  document.body.append(note);
};
frame.srcdoc = PAGE;
</script></body>"""


@pytest.mark.parametrize("width", [360, 768])
def test_a_report_fits_a_telephone_and_a_tablet(written_run, tmp_path, width):
    run = written_run(kinds=("central", "auto"), accuracies={("maxherding", "auto"): [0.5, 0.6]})
    write_report(run)
    ids = [f"{number:02d}.png" for number in range(12)]
    make_site(tmp_path / "north", ids=ids, asked=ids[:4])
    site = open_site(tmp_path / "north")
    site.store.label(ids[0], "cat", "ana", 2.0)
    site.ledger.append(phase="query.embed", kind="description")
    for page, names in ((run.report, 3), (write_site_report(site.folder), 0)):
        text = json.dumps(page.read_text(encoding="utf-8")).replace("</", "<\\/").replace("<!--", "\\u003c!--")
        framed = tmp_path / f"{page.parent.name}.html"
        framed.write_text(RULER.replace("WIDTH", str(width)).replace("PAGE", text), encoding="utf-8")
        seen = seen_in(framed, tmp_path)
        assert seen["needed"] <= seen["width"] <= width, page
        assert max(seen["heads"]) < 3.6, "the head of a column stands on end"  # two lines and the padding
        assert (seen["cut"], seen["names"] >= names) == ([], True)


def test_every_table_is_whole_on_a_desk(written_run, tmp_path):
    """Seven tracks, four sites that sent unlike amounts, and every kind of reply."""
    run = written_run(methods=("maxherding", "probcover", "typiclust", "random"), clients=("a", "b", "c", "d"))
    sent = {
        site: {"aggregate": {"messages": 84, "up": 540_000 + 9000 * k, "down": 546_800 + 900 * k}}
        for k, site in enumerate("abcd")
    }
    info = json.loads(run.info.read_text())
    for method in ("maxherding", "probcover", "typiclust"):
        info["traffic"][f"select {method}-aggregate"] = {"up": 1, "down": 1, "round_trips": 5_880, "left": sent}
    run.info.write_text(json.dumps(info))
    write_report(run)
    text = json.dumps(run.report.read_text(encoding="utf-8")).replace("</", "<\\/").replace("<!--", "\\u003c!--")
    framed = tmp_path / "framed.html"
    framed.write_text(RULER.replace("WIDTH", "1200").replace("PAGE", text), encoding="utf-8")
    assert seen_in(framed, tmp_path)["hidden"] == []


def seen_in(page, tmp_path):
    """What the script in `page` left in it."""
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, profile, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found, "the script stopped before its end"
    return json.loads(html.unescape(found.group(1)))
