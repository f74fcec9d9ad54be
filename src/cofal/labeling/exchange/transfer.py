"""Export of a site's questions and import of answers, in any of the formats: what `cofal client export|import` do."""

from __future__ import annotations

from pathlib import Path

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.labeling.exchange import coco, csv_file, label_studio
from cofal.labeling.exchange.files import Read, parse_json, read_text, write_pictures
from cofal.labeling.merging import Outcome
from cofal.labeling.records import check_annotator
from cofal.labeling.store import LabelStore

FORMATS = ("label-studio", "csv", "coco")


def export_questions(
    store: LabelStore,
    images: ImageSet,
    out: Path,
    format: str,
    *,
    everything: bool = False,
    document_root: Path | None = None,
) -> tuple[int, list[Path]]:
    """Write the questions that are open or disputed (or all of them) to `out`; how many, and what was written.

    Formats that show images get them as PNG files in a folder beside `out`; label-studio also gets its configuration.
    document_root: the folder from which Label Studio serves local files; the folder of `out` if it is not given.
    """
    asked = {query.id: query for query in store.queries() if everything or query.state in ("open", "disputed")}
    if format == "csv":
        csv_file.write_csv(out, asked.values())
        return len(asked), [out]
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    out = out.absolute()
    root = out.parent if document_root is None else document_root.absolute()
    folder = out.with_name(f"{out.stem}-images")
    if not folder.is_relative_to(root):
        raise UserError(f"{out} is not below the document root {root}; Label Studio would not find its images")
    place = {sample: row for row, sample in enumerate(images.ids)}
    gone = [sample for sample in asked if sample not in place]
    if gone:
        raise UserError(f"the site has no image {gone[0]!r} any more, of which it was asked; restore its images")
    names = write_pictures(images, [place[sample] for sample in asked], folder)
    pictures = [folder / name for name in names]
    if format == "coco":
        coco.write_coco(out, list(asked.values()), pictures, images.classes, images.images.shape[1:3])
        return len(asked), [out, folder]
    config = out.with_name(f"{out.stem}-config.xml")
    label_studio.write_labelling_config(config, images.classes)
    label_studio.write_tasks(out, list(asked.values()), pictures, root)
    return len(asked), [out, config, folder]


def import_answers(
    store: LabelStore, path: Path, format: str = "", *, annotator: str = "", overwrite: bool = False
) -> Outcome:
    """Bring the answers of a file into the store. `format` is found from the file if it is not given.

    annotator: whose answers they are; else whom the file names, or nobody in particular.
    """
    annotator = check_annotator(annotator) if annotator else ""
    text = read_text(path)
    format = format or _guess(path, text)
    read = _read(store, path, text, format, annotator)
    outcome = store.merge(read.answers, f"{format} {path.name}", overwrite=overwrite)
    outcome.unreadable = read.unreadable
    return outcome


def _read(store: LabelStore, path: Path, text: str, format: str, annotator: str) -> Read:
    if format == "csv":
        ids = {query.id for query in store.queries()}
        return csv_file.read_csv(path, text, ids, set(store.classes), annotator)
    if format == "coco":
        return coco.read_coco(path, parse_json(path, text), annotator)
    if format == "label-studio":
        return label_studio.read_tasks(path, parse_json(path, text), annotator)
    raise UserError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")


def _guess(path: Path, text: str) -> str:
    """Label Studio exports a list, COCO is an object, and CSV is neither."""
    start = text.lstrip()[:1]
    if path.suffix.lower() != ".csv" and start in ("[", "{"):
        return "label-studio" if start == "[" else "coco"
    return "csv"
