"""Folders of images to try a deployment with: scikit-learn's digits, divided among sites, as PNG files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image

from cofal.files import new_folder, write_bytes, write_text
from cofal.rng import generator

NAMES = ("north", "east", "south", "west")
_TEST_SHARE = 0.25


def write_example(folder: Path, sites: int, per_site: int | None, seed: int) -> dict[str, int]:
    """Write classes.txt, and for each site NAME/images, NAME/test/CLASS and NAME/truth.csv; name -> unlabelled images.

    The images have no labels. `truth.csv` (id,label) holds them, for those who do not want to label by hand.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), counted from 0 to 16
    order = generator(seed, "example").permutation(len(pixels))
    parts = np.array_split(order, sites)
    counts = {}
    with new_folder(folder, "an example"):
        write_text(folder / "classes.txt", "".join(f"{name}\n" for name in digits.target_names))
        for number, rows in enumerate(parts):
            name = NAMES[number] if sites <= len(NAMES) else f"site-{number:02d}"
            rows = rows[: None if per_site is None else per_site]
            cut = round(_TEST_SHARE * len(rows))
            for row in rows[:cut]:
                _png(folder / name / "test" / str(digits.target[row]) / f"digit-{row:04d}.png", pixels[row])
            truth = io.StringIO()
            table = csv.writer(truth, lineterminator="\n")
            table.writerow(["id", "label"])
            for row in sorted(rows[cut:]):
                _png(folder / name / "images" / f"digit-{row:04d}.png", pixels[row])
                table.writerow([f"digit-{row:04d}.png", digits.target[row]])
            write_text(folder / name / "truth.csv", truth.getvalue())
            counts[name] = len(rows) - cut
    return counts


def _png(path: Path, pixels: np.ndarray) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    write_bytes(path, file.getvalue())
