"""COCO-style JSON for classification: images, categories, and one annotation with a category for each label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.files import write_json
from cofal.labeling.exchange.files import NOBODY, Read, clear_reason
from cofal.labeling.merging import Incoming
from cofal.labeling.records import Query

ID = "cofal_id"  # the field of an image that holds the sample's id; COCO's own ids are numbers


def write_coco(
    path: Path, asked: Sequence[Query], pictures: Sequence[Path], classes: Sequence[str], size: tuple[int, int]
) -> None:
    """size: height and width of the pictures, in pixels. A skipped image has the field `skipped`, with the reason."""
    height, width = size
    images, annotations = [], []
    category = {name: number for number, name in enumerate(classes, start=1)}
    for number, (query, picture) in enumerate(zip(asked, pictures, strict=True), start=1):
        file = picture.relative_to(path.parent).as_posix()
        image = {"id": number, "file_name": file, "height": height, "width": width, ID: query.id}
        images.append(image | ({"skipped": query.reason} if query.state == "skipped" else {}))
        if query.label is not None:
            annotations.append({"id": number, "image_id": number, "category_id": category[query.label]})
    categories = [{"id": number, "name": name} for name, number in category.items()]
    write_json(path, {"images": images, "annotations": annotations, "categories": categories})


def read_coco(path: Path, content: Any, annotator: str) -> Read:
    """The answers of a file with images, annotations and categories."""
    if not isinstance(content, dict) or not all(
        isinstance(content.get(part), list) for part in ("images", "annotations", "categories")
    ):
        raise UserError(f"{path} is not COCO-style JSON: it should hold the lists images, annotations, categories")
    found, who, person = Read(), annotator or NOBODY, bool(annotator)
    names = {_key(each, "id"): each.get("name") for each in content["categories"] if isinstance(each, dict)}
    samples: dict[Any, str] = {}
    for number, image in enumerate(content["images"]):
        if not isinstance(image, dict) or not isinstance(image.get(ID), str) or _key(image, "id") is None:
            found.unreadable.append(f"image {number}: no id and {ID}; it was not made by cofal client export")
            continue
        samples[_key(image, "id")] = image[ID]
        if "skipped" in image:
            reason = clear_reason(str(image["skipped"]))
            if reason is None:
                found.unreadable.append(
                    f"image {image[ID]!r}: skipped for the unknown reason {image['skipped']!r}"[:200]
                )
            else:
                found.answers.append(Incoming(image[ID], None, reason, who, person=person))
    for number, each in enumerate(content["annotations"]):
        sample = samples.get(_key(each, "image_id"))
        label = names.get(_key(each, "category_id"))
        if sample is None or not isinstance(label, str):
            found.unreadable.append(f"annotation {number}: no image or no category of this file")
        else:
            found.answers.append(Incoming(sample, label, None, who, person=person))
    return found


def _key(entry: Any, name: str) -> int | str | None:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, (int, str)) else None
