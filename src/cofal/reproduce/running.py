"""The runner: which cells of the asked names are missing, computing them side by side, and then the pages."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cofal.baselines.registry import find_system
from cofal.errors import UserError
from cofal.progress import bar
from cofal.reproduce.cells import Cell
from cofal.reproduce.records import Record, Records
from cofal.reproduce.spaces import Spaces
from cofal.reproduce.workers import run_tasks


@dataclass(frozen=True)
class Workshop:
    """Where everything of one command is: the scale, its embeddings, the records."""

    scale_name: str
    spaces: Spaces
    records: Records

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells without a record, each once."""
        return [cell for cell in dict.fromkeys(cells) if not self.records.has(cell, self.spaces.identity(cell))]

    def read(self, cells: Sequence[Cell]) -> list[Record]:
        return [self.records.read(cell, self.spaces.identity(cell)) for cell in dict.fromkeys(cells)]


def compute(shop: Workshop, cells: Sequence[Cell], jobs: int, tell: Callable[[str], None]) -> None:
    """Compute the cells that have no record yet, `jobs` at a time with one thread each."""
    wanted = list(dict.fromkeys(cells))
    missing = shop.missing(wanted)
    for cell in set(wanted) - set(missing):
        shop.records.read(cell, shop.spaces.identity(cell))  # a damaged record is told before the work, not after it
    if not missing:
        return
    tell(f"{len(wanted)} cells, {len(wanted) - len(missing)} of them done before; {jobs} at a time")
    spaces = shop.spaces
    for cell in missing:
        spaces.check(cell)
    common = {
        "task": "cell",
        "scale": spaces.scale.model_dump(),
        "data": str(spaces.data.resolve()) if spaces.data else "",
        "encoders": str(spaces.encoders.root.resolve()),
        "cache": str(spaces.cache),
        "notes": str(spaces.notes.resolve()),
        "records": str(shop.records.folder.resolve()),
    }
    shown = bar("cells", len(wanted), len(wanted) - len(missing))
    tasks = [{**common, "title": cell.title, "cell": cell.plain()} for cell in missing]
    with closing(run_tasks(tasks, jobs)) as answers:
        for finished in answers:
            if finished:
                shown.advance(finished[0]["title"])


def own_selectors(names: Sequence[str]) -> dict[str, str]:
    """The user's selectors (module:Name), each with the digest of its module's file: other code, another record."""
    found = {}
    for name in names:
        module, colon, attribute = name.partition(":")
        if not colon or not module or not attribute:
            raise UserError(f"--methods {name}: write it as module:Name, for example mine:MySelector for mine.py here")
        here = str(Path.cwd())
        sys.path.insert(0, here)
        try:
            spec = importlib.util.find_spec(module)
        except ImportError:
            spec = None
        finally:
            sys.path.remove(here)
        if spec is None or not spec.origin or not Path(spec.origin).is_file():
            raise UserError(f"--methods {name}: no module {module!r} here; run in the folder of {module}.py")
        find_system(name)  # a wrong name is told now, not by the first cell
        found[name] = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]
    return found
