"""The server's memory does not grow with the number of sites: 32 of them, a model of 45 MB, one round."""

import json
import subprocess
import sys

import pytest

MODEL, SITES = 45 * 10**6, 32

SERVER = """
import json, sys
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Member
from cofal.federation.grid import InProcessGrid
from cofal.federation.memory import give_back_large_blocks
from cofal.federation.rounds import make_strategy, train_rounds

def most_memory():  # not ru_maxrss, in which the process that started this one counts as well
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

give_back_large_blocks()
folder, strategy, sites, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sizes = [size // 4 // 5] * 4 + [size // 4 // 50] * 10  # the largest layers of a ResNet-18 hold a fifth of it each
arrays = {f"layer{k}.weight": np.full((each,), 0.1, dtype=np.float32) for k, each in enumerate(sizes)}
answer = m.pack(arrays={}, metrics={m.EXAMPLES: 5, "loss": 1.0})
for k, v in arrays.items():
    answer[m.ARRAYS][k] = Array(v + np.float32(0.01))

class Bytewise(InProcessGrid):
    # The sites' one answer is here once; what the server gets of it is new bytes each time, as from a network.
    def _deliver(self, message):
        content = RecordDict({m.METRICS: answer[m.METRICS]})
        content[m.ARRAYS] = ArrayRecord(
            {k: Array(a.dtype, a.shape, a.stype, bytes(memoryview(a.data))) for k, a in answer[m.ARRAYS].items()}
        )
        return Message(content, reply_to=message)

grid = Bytewise(ClientApp(), {n: {} for n in range(2, sites + 2)})
members = {f"s{n:02d}": Member(f"s{n:02d}", n, 10, 0, 0, ["x"], (8, 8, 1)) for n in range(2, sites + 2)}
before = most_memory()
merged = train_rounds(
    Fleet(grid, 60, members=members), make_strategy(strategy, {}), arrays, rounds=2, config=lambda n: {},
    checkpoint=folder / "c.safetensors",
)
peak = most_memory()
print(json.dumps({"before": before, "peak": peak, "value": float(merged["layer3.weight"][7])}))
"""


def measure(folder, strategy, sites=SITES, size=MODEL):
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(folder), strategy, str(sites), str(size)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.deploy
@pytest.mark.parametrize("strategy", ["fedavg", "fedavgm", "fedadam"])
def test_32_sites_and_a_model_of_45_mb(strategy, tmp_path):
    """At most three times the model and 500 MB, also where a server optimiser holds two models more."""
    found = measure(tmp_path, strategy)
    print(found)
    assert found["peak"] <= 3 * MODEL + 500 * 10**6
    assert not [file for file in tmp_path.iterdir() if file.name != "c.safetensors"]


def test_memory_does_not_grow_with_the_sites(tmp_path):
    """A small model, so that it is quick: 64 answers of 4 MB are 256 MB, of which no more than 64 stay in memory."""
    few, many = (measure(tmp_path / str(sites), "fedavg", sites, 4 * 10**6) for sites in (4, 64))
    assert many["peak"] - few["peak"] < 110 * 10**6
    assert many["value"] == pytest.approx(few["value"])
