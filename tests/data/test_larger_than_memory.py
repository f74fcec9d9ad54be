"""Sets larger than memory: reading and taking a subset need room for a few images, whatever the size of the set."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_makers import write_parquet
from PIL import Image

COUNT, SIDE = 2000, 128  # 98 MB decoded
ALLOWED = 75  # MB above what the imported libraries take

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import pyarrow.parquet
from cofal.data import imageset, readers, settings

def high_water(field):  # the process's own, unlike getrusage's, which begins with that of its parent
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024

train, test = readers.read(settings.DataSettings(source="digits", limit=9), Path(sys.argv[3]))
before = high_water("VmRSS")
train, test = readers.read(settings.DataSettings(source=sys.argv[1], path=sys.argv[2]), Path(sys.argv[3]))
during = high_water("VmHWM")
imageset._IN_MEMORY = 1 << 20
part = train.subset(np.random.default_rng(0).permutation(len(train))[:300])
print(before, during, train.images.nbytes + test.images.nbytes, isinstance(part.images, np.memmap))
"""


def write_source(source: str, folder: Path) -> Path:
    labels = list(np.arange(COUNT) % 4)
    if source == "npz":
        np.savez_compressed(folder / "set.npz", images=np.zeros((COUNT, SIDE, SIDE, 3), np.uint8), labels=labels)
        return folder / "set.npz"
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    images = []
    for number in range(COUNT):  # different ones, so that the file cannot store one for all
        stream = io.BytesIO()
        noise[0, 0] = (*divmod(number, 256), 0)
        Image.fromarray(noise).save(stream, "BMP")
        images.append(stream.getvalue())
    write_parquet(folder / "set.parquet", images, labels, row_group_size=100)  # as the hub's own writer does
    return folder / "set.parquet"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("source", ["npz", "parquet"])
def test_peak_memory_is_far_below_the_size_of_the_set(tmp_path, source):
    path = write_source(source, tmp_path)
    command = [sys.executable, "-c", SCRIPT, source, str(path), str(tmp_path / "cache")]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    before, during, size = (int(value) for value in answer[:3])
    assert size == COUNT * SIDE * SIDE * 3
    assert answer[3] == "True"
    assert during - before < ALLOWED, (before, during)
