"""`cofal predict` and `cofal export`: what a finished run's classifier is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app

RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)]
TrackName = Annotated[
    str, typer.Option(help="Whose classifier, e.g. maxherding-central. Default: the most accurate one.")
]


@app.command("predict")
def predict_command(
    run: RunFolder,
    images: Annotated[
        list[Path], typer.Argument(help="Image files, folders of images, or .npy arrays (n, h, w, c) uint8.")
    ],
    track: TrackName = "",
    out: Annotated[
        Path | None, typer.Option(help="CSV to write: image,label,probability. Default: a table on the terminal.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Classify images with the model of a finished run.

    Example: cofal predict demo new-scans/ --out predictions.csv
    """
    import csv
    import json

    from rich.console import Console
    from rich.table import Table

    from cofal.files import atomic, check_writable
    from cofal.inference import load_predictor, read_images

    if out is not None:
        check_writable(out)
    predictor = load_predictor(run, track)
    rows: list[tuple[str, str, float]] = []
    for names, batch in read_images(images, predictor):
        scores = predictor.probabilities(batch)
        best = scores.argmax(axis=1)
        rows += [
            (name, predictor.classes[k], float(scores[i, k]))
            for i, (name, k) in enumerate(zip(names, best, strict=True))
        ]
    if out is not None:
        with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "label", "probability"])
            writer.writerows((name, label, f"{probability:.4f}") for name, label, probability in rows)
    if json_:
        for name, label, probability in rows:
            print(json.dumps({"image": name, "label": label, "probability": probability}))
    elif out is None:
        table = Table("image", "label", "probability", title=f"Model: {predictor.track}", title_justify="left")
        for name, label, probability in rows:
            table.add_row(name, label, f"{probability:.3f}")
        Console().print(table)
    else:
        print(f"{len(rows)} predictions of {predictor.track} in {out}")


@app.command("export")
def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")] = Path("model.onnx"),
    track: TrackName = "",
) -> None:
    """Write encoder and head of a finished run as one ONNX model: uint8 images in, class probabilities out.

    Example: cofal export demo --out digits.onnx
    """
    from cofal.errors import UserError
    from cofal.files import check_writable
    from cofal.inference import load_predictor
    from cofal.learning.encoders import ResNet
    from cofal.learning.export import export_onnx

    check_writable(out)
    predictor = load_predictor(run, track)
    if not isinstance(predictor.encoder, ResNet):
        raise UserError(
            f"{predictor.track} in {run} has no encoder of cofal's own under its head; only those can be exported"
        )
    export_onnx(predictor.encoder, predictor.model, predictor.classes, out)
    print(f"{predictor.track} in {out}")
