"""From the names a user asks for to their pages and the index: compute what is missing, then write what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cofal.errors import UserError
from cofal.reproduce.book import Book
from cofal.reproduce.claims import CLAIMS, verdict
from cofal.reproduce.claims.checks import Verdict
from cofal.reproduce.grid import experiment_names, load_experiment
from cofal.reproduce.index import Finished, write_index
from cofal.reproduce.pages import read_notes, write_page
from cofal.reproduce.running import Workshop, compute


def make(
    names: Sequence[str],
    shop: Workshop,
    out: Path,
    jobs: int,
    extra: dict[str, str],
    tell: Callable[[str], None],
    only: Sequence[str] = (),
) -> dict[str, Verdict]:
    """Compute and write the pages of `names`, then the index; returns the verdicts of the claims they decide.

    `only`: of these image sets alone, where others are not at hand; names that use none of them are passed over.
    """
    folder = out / shop.scale_name
    wanted = [load_experiment(name) for name in names]
    cells = {each.name: each.cells(shop.scale_name, shop.spaces.scale, extra) for each in wanted}
    if only:
        cells = {name: [cell for cell in each if cell.set in only] for name, each in cells.items()}
        wanted = [each for each in wanted if cells[each.name]]
        if not wanted:
            raise UserError(
                f"{', '.join(names)} at scale {shop.scale_name} uses no set {' or '.join(only)}; leave --set out"
            )
    compute(shop, [cell for each in cells.values() for cell in each], jobs, tell)
    notes = read_notes(folder)
    found: dict[str, Verdict] = {}
    for each in wanted:
        book = Book(each, shop.spaces.scale, shop.read(cells[each.name]))
        facts = {shop.spaces.name(cell, site): shop.spaces.facts(cell, site) for cell in cells[each.name]
                 for site in shop.spaces.sites(cell)}  # fmt: skip
        verdicts = write_page(book, folder, _command(each.name, shop, extra, only), facts, notes)
        found |= {
            name: each_verdict for name, each_verdict in zip(each.claims, verdicts) if CLAIMS[name].page == each.name
        }
        tell(f"{each.name}: {folder / each.name}.md")
    finished = [_finished(shop, folder, notes)] if not extra else []
    if finished:
        write_index(out / "README.md", finished)
    return found


def _finished(shop: Workshop, folder: Path, notes: dict[str, str]) -> Finished:
    """All names of this scale whose records are there, whoever asked for them."""
    found = Finished(shop.scale_name, notes=notes, command=_command("all", shop, {}), facts=shop.spaces.known())
    for name in experiment_names():
        each = load_experiment(name)
        cells = each.cells(shop.scale_name, shop.spaces.scale)
        if not all(map(shop.spaces.has, cells)) or shop.missing(cells) or not (folder / f"{name}.md").exists():
            found.missing.append(name)
            continue
        found.pages[name] = each
        decided = [claim for claim in each.claims if CLAIMS[claim].page == name]
        if decided:
            book = Book(each, shop.spaces.scale, shop.read(cells))
            found.verdicts |= {claim: verdict(claim, book) for claim in decided}
    return found


def _command(name: str, shop: Workshop, extra: dict[str, str], only: Sequence[str] = ()) -> str:
    """The command that makes it again, whatever folders were used this time."""
    data = " --data DIR" if any(plan.folder for plan in shop.spaces.scale.sets.values()) else ""
    methods = "".join(f" --methods {method}" for method in extra)
    sets = "".join(f" --set {each}" for each in only)
    return f"cofal reproduce {name} --scale {shop.scale_name}{data}{sets}{methods}"
