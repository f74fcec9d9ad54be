"""Label Studio: tasks and a labelling configuration for it, and its JSON export (full or minimal) back.

Its CSV export is read by `csv_file`, which knows this module's names of the columns.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from cofal.errors import UserError
from cofal.files import write_json, write_text
from cofal.labeling.exchange.files import NOBODY, Read, clear_reason
from cofal.labeling.merging import Incoming
from cofal.labeling.records import REASONS, Query

ID = "cofal_id"  # the field of a task that holds the sample's id; Label Studio gives it back untouched
SKIP = "skip"  # the control, and the field of a minimal export, that holds the reason of a skip
_LABEL, _IMAGE = "label", "image"
_KEYS = "1234567890qwertyuiopasdfghjklzxcvbnm"
_NOT_XML = ("Cc", "Cs", "Cn")  # control characters, halves of a pair, what is no character
_NO_REASON = "unclear"  # of Label Studio's own skip button, which asks for none


def write_tasks(path: Path, asked: Sequence[Query], pictures: Sequence[Path], root: Path) -> None:
    """Tasks whose images are local files below `root`, the LOCAL_FILES_DOCUMENT_ROOT of Label Studio.

    A settled question carries its answer as an annotation.
    """
    tasks = []
    for query, picture in zip(asked, pictures, strict=True):
        place = quote(picture.relative_to(root).as_posix())
        data = {_IMAGE: f"/data/local-files/?d={place}", ID: query.id, "rank": query.rank, "selection": query.selection}
        task: dict[str, Any] = {"data": data}
        if query.state in ("labelled", "skipped"):
            task["annotations"] = [{"result": [_result(query)], "was_cancelled": False}]
        tasks.append(task)
    write_json(path, tasks)


def write_labelling_config(path: Path, classes: Sequence[str]) -> None:
    """The XML to paste into the project's labelling interface: classes with keys, and the reasons of a skip."""
    for name in classes:
        if any(unicodedata.category(letter) in _NOT_XML for letter in name):
            raise UserError(f"class {name!r} cannot be written as XML; rename it without control characters")
    digits = all(len(name) == 1 and name in _KEYS[:10] for name in classes)  # as on the page: each on its own key
    keys = {name: name for name in classes} if digits else dict(zip(classes, _KEYS, strict=False))
    choices = [
        f"    <Choice value={quoteattr(name)}" + (f' hotkey="{keys[name]}"' if name in keys else "") + "/>"
        for name in classes
    ]
    reasons = [f"    <Choice value={quoteattr(reason)}/>" for reason in REASONS]
    lines = [
        "<View>",
        f'  <Image name="{_IMAGE}" value="${_IMAGE}" zoom="true"/>',
        f'  <Choices name="{_LABEL}" toName="{_IMAGE}" choice="single" showInLine="true">',
        *choices,
        "  </Choices>",
        '  <Header value="No label, because it is"/>',
        f'  <Choices name="{SKIP}" toName="{_IMAGE}" choice="single" showInLine="true">',
        *reasons,
        "  </Choices>",
        "</View>",
    ]
    write_text(path, "\n".join(lines) + "\n")


def read_tasks(path: Path, tasks: Any, annotator: str) -> Read:
    """The answers of an export. The annotator is the one given, or whom Label Studio names."""
    if not isinstance(tasks, list):
        raise UserError(f"{path} is not an export of Label Studio: it should hold a list of tasks; export it as JSON")
    found = Read()
    for number, task in enumerate(tasks):
        data = task.get("data", task) if isinstance(task, dict) else None
        if not isinstance(data, dict) or not isinstance(data.get(ID), str):
            found.unreadable.append(f"task {number}: no {ID}; it was not made by cofal client export")
            continue
        if data is task:
            _take(found, number, data[ID], [task], annotator)
            continue
        given = task.get("annotations", [])
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            found.unreadable.append(f"task {number}, {data[ID]!r}: annotations are not a list of objects")
            continue
        # Of one person, the latest annotation counts.
        latest = {_person(each): each for each in sorted(given, key=lambda each: str(each.get("updated_at", "")))}
        _take(found, number, data[ID], list(latest.values()), annotator)
    return found


def _take(found: Read, number: int, sample: str, given: Sequence[Mapping[str, Any]], annotator: str) -> None:
    for each in given:
        label, reason, wrong = _said(each)
        if wrong:
            found.unreadable.append(f"task {number}, {sample!r}: {wrong}")
        elif label is not None or reason is not None:
            person = annotator or ("" if _carried(each) else _person(each))
            seconds = _seconds(each.get("lead_time"))
            found.answers.append(Incoming(sample, label, reason, person or NOBODY, seconds, person=bool(person)))


def _said(annotation: Mapping[str, Any]) -> tuple[str | None, str | None, str]:
    """Label, reason of a skip, or what is wrong with the annotation; all empty if nothing was chosen."""
    chosen: dict[str, list[Any]] = {_LABEL: [], SKIP: []}
    if "result" in annotation:
        results = annotation["result"]
        if not isinstance(results, list):
            return None, None, "its result is not a list"
        for result in results:
            name = result.get("from_name") if isinstance(result, dict) else None
            value = result.get("value") if isinstance(result, dict) else None
            choices = value.get("choices") if isinstance(value, dict) else None
            if name in chosen and isinstance(choices, list):
                chosen[name] += choices
    else:  # the minimal export: one field a control
        for name in chosen:
            if name in annotation:
                field = annotation[name]
                chosen[name] = list(field.get("choices", [])) if isinstance(field, dict) else [field]
    labels, reasons = chosen[_LABEL], chosen[SKIP]
    if len(labels) + len(reasons) > 1 or not all(isinstance(each, str) for each in labels + reasons):
        return None, None, f"it says {[*labels, *reasons]!r}"[:200]
    if reasons:
        reason = clear_reason(reasons[0])
        return None, reason, "" if reason else f"skipped for the unknown reason {reasons[0]!r}"
    if annotation.get("was_cancelled") is True:
        return None, _NO_REASON, ""
    return (labels[0] if labels else None), None, ""


def _carried(annotation: Mapping[str, Any]) -> bool:
    """Is this an answer of the store that nobody changed? Label Studio signs it with whoever imported the tasks."""
    results = annotation.get("result")
    return isinstance(results, list) and any(
        isinstance(each, dict) and isinstance(each.get("value"), dict) and each.get("id") == _mark(each["value"])
        for each in results
    )


def _mark(value: Mapping[str, Any]) -> str:
    """The id of a result that cofal wrote; another choice would have another."""
    return f"cofal-{hashlib.sha256(str(value.get('choices')).encode()).hexdigest()[:10]}"


def _person(annotation: Mapping[str, Any]) -> str:
    """Whom Label Studio names: an e-mail address, or a number."""
    by = annotation.get("completed_by", annotation.get("annotator"))
    if isinstance(by, Mapping):
        by = by.get("email") or by.get("id")
    if isinstance(by, int) and not isinstance(by, bool):
        return f"label-studio user {by}"
    return by.strip()[:80] if isinstance(by, str) and by.strip()[:80].isprintable() else ""


def _seconds(found: Any) -> float | None:
    usable = isinstance(found, (int, float)) and not isinstance(found, bool) and 0 <= found < math.inf
    return float(found) if usable else None


def _result(query: Query) -> dict[str, Any]:
    name, choice = (_LABEL, query.label) if query.label is not None else (SKIP, query.reason)
    value = {"choices": [choice]}
    return {"id": _mark(value), "from_name": name, "to_name": _IMAGE, "type": "choices", "value": value}
