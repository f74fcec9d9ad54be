"""Write the HTML report of a run: one file that needs no network and no other file; the same run, the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cofal.files import write_text
from cofal.report import account, sections
from cofal.report.asked import absent, asked
from cofal.report.egress import egress
from cofal.report.embedding_map import embedding_map
from cofal.report.facts import TITLES, Facts, title
from cofal.report.finding import find
from cofal.report.pictures import gallery
from cofal.report.redundancy import Redundancy
from cofal.rundir import RunDir


def write_report(run: RunDir, out: Path | None = None) -> None:
    """The report of a finished run, as `report.html` in its folder or as `out`."""
    write_text(out or run.report, render(Facts(run)))


def render(facts: Facts) -> str:
    """The whole page as text."""
    shared, picks, found = facts.shared, facts.picks, gallery(facts)
    repeated = Redundancy(facts, shared) if shared and len(shared.ids) > 1 and picks else None
    if shared is None and facts.heard:
        shared, picks, _ = facts.heard
    places = embedding_map(facts, shared, picks) if shared and picks else None
    finding = find(facts, repeated)
    parts = {
        "coordination": sections.coordination(facts),
        "map": sections.embedding_map(facts, places, picks, repeated) if places else None,
        "redundancy": sections.redundancy(facts, repeated) if repeated else None,
        "pictures": sections.pictures(facts, found) if found else None,
    }
    return fill(
        "page.html",
        title=f"The run {facts.config.name}" if not facts.deployed else "The federation",
        finding=finding,
        plan=account.what_was_run(facts),
        budgets=facts.budgets,
        methods=facts.methods,
        chosen=finding.method,
        accuracy=sections.accuracy(facts),
        kinds={kind for method, kind in facts.curves if method != "random"},
        asked=asked(facts),
        **parts,
        absent=absent(facts, {name for name, part in parts.items() if part}),
        encoder=sections.encoder(facts),
        egress=egress(facts),
        traffic=account.traffic(facts),
        seconds=account.seconds(facts),
        versions=facts.info.get("versions", {}),
        machine=facts.info.get("machine", ""),
        digest=facts.data.get("digest", ""),
        toml=facts.toml,
    )


def fill(template: str, **parts: Any) -> str:
    """A template of this folder with `parts`, the style sheet and the script in it."""
    environment = Environment(
        loader=PackageLoader("cofal", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"method_title": title, "css": _css_name}
    loader = environment.loader
    assert loader is not None
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    return environment.get_template(template).render(style=style, script=script, **parts)


def _css_name(method: str) -> str:
    """The style sheet's class of a method; all it does not know share one colour."""
    return method if method in TITLES or method == "encoder" else "other"
