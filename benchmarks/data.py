"""Where the benchmarks find real data: the folder COFAL_DATA, else `data` here or `../shared/data` beside the checkout.

It may hold `cifar10/` (train.parquet, test.parquet) and `embeddings/*.npz` (x_train, y_train, x_test, y_test).
Without it the benchmarks make their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cofal.errors import CofalError

_ROOT = Path(__file__).parents[1]


@contextmanager
def mistakes() -> Iterator[None]:
    """A user's mistake as one line and its exit status."""
    try:
        yield
    except CofalError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)


def _folders() -> list[Path]:
    given = os.environ.get("COFAL_DATA")
    return [Path(given)] if given else [_ROOT / "data", _ROOT.parent / "shared" / "data"]


def embeddings() -> Path | None:
    """The first file of real embeddings."""
    return next((file for folder in _folders() for file in sorted(folder.glob("embeddings/*.npz"))), None)


def cifar10() -> Path | None:
    """The folder of CIFAR-10's parquet files."""
    return next((folder / "cifar10" for folder in _folders() if (folder / "cifar10" / "train.parquet").exists()), None)
