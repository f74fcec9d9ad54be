"""One measurement in a process of its own: `python -m cofal.bench.worker '{"job": ..., "file": ..., "b": ...}'`.

Prints one line of JSON: the seconds of each repeat, the processor seconds of all threads, and the peak memory above the
loaded input in bytes. A warm-up on a few rows comes first, so that compiling and loading libraries are in none of them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from cofal.bench.jobs import JOBS

WARM_UP_ROWS, WARM_UP_BUDGET = 512, 8


def resident(field: str) -> int:
    """Bytes of memory this process holds now (VmRSS) or held at most since the last reset (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak() -> None:
    """Start the high-water mark anew; where the system does not allow it the mark includes the warm-up."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main() -> None:
    request = json.loads(sys.argv[1])
    run = JOBS[request["job"]]
    x = np.load(request["file"], mmap_mode="r" if request.get("mapped") else None)
    approx = bool(request.get("approx"))
    run(np.array(x[:WARM_UP_ROWS]), WARM_UP_BUDGET, approx)
    reset_peak()
    before = resident("VmRSS")
    times, cpu = [], time.process_time()
    for _ in range(request.get("repeats", 1)):
        start = time.perf_counter()
        outcome = run(x, request["b"], approx)
        times.append(time.perf_counter() - start)
    answer = {
        "seconds": times,
        "cpu_seconds": (time.process_time() - cpu) / len(times),
        "peak_bytes": max(resident("VmHWM") - before, 0),
        "coverage_loss": outcome.coverage_loss,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
