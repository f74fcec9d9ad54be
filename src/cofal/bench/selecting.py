"""`cofal bench select`: the grid of measurements, the ratios to their targets, and what is written of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from cofal.bench import vectors
from cofal.bench.jobs import OURS, PEER_LIMITS
from cofal.bench.report import figures_markdown
from cofal.files import atomic, write_json, write_text
from cofal.progress import progress

SIZES = (5_000, 10_000, 20_000, 50_000, 100_000)
BUDGETS = (100, 1_000)
MILLION = 1_000_000
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One measurement: median seconds and peak bytes above the input, or why there is none."""

    job: str
    n: int
    b: int
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    coverage_loss: float | None = None
    failure: str | None = None
    approx: bool = False


def measure(job: str, file: Path, n: int, b: int, *, repeats: int = 1, approx: bool = False) -> Row:
    """Run `job` in a fresh process; the input file is loaded there before the clock starts (mapped if approximate)."""
    request = {"job": job, "file": str(file), "b": b, "repeats": repeats, "approx": approx, "mapped": approx}
    command = [sys.executable, "-m", "cofal.bench.worker", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Row(job, n, b, failure=reason[:200], approx=approx)
    answer = json.loads(done.stdout.splitlines()[-1])
    seconds = float(np.median(answer["seconds"]))
    return Row(job, n, b, seconds, answer["cpu_seconds"], answer["peak_bytes"], answer["coverage_loss"], approx=approx)


def run_grid(
    source: np.ndarray, sizes: list[int], budgets: list[int], *, peers: bool = True, million: bool = False
) -> Iterator[Row]:
    """Every job at every size and budget it can manage, the floor first at each size; the approximate mode last."""
    plan: list[tuple[str, int, int, bool]] = []
    for n in sizes:
        plan.append(("gemm pass", n, 0, False))
        plan += [(job, n, b, False) for b in budgets if b < n for job in OURS]
        plan += [
            (job, n, b, False)
            for job, limits in PEER_LIMITS.items()
            for b in budgets
            if peers and n <= limits[0 if b <= 100 else 1]
        ]
    plan += [(job, MILLION, 1_000, True) for job in OURS if million]
    with tempfile.TemporaryDirectory(prefix="cofal-bench-") as folder, progress() as bars:
        task = bars.add_task("measuring", total=len(plan), note="")
        for job, n, b, approx in plan:
            bars.update(task, note=f"{job}, n = {n:,}, b = {b:,}")
            file = Path(folder) / f"{n}{'-half' if approx else ''}.npy"
            if not file.exists():
                vectors.write(file, source, n, "float16" if approx else "float32")
            repeats = 3 if job == "gemm pass" or (n <= 10_000 and b <= 100) else 1
            yield measure(job, file, n, b, repeats=repeats, approx=approx)
            bars.advance(task)


def ratios(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """The figures that have a target: {name: {value, target, at_most}}, those whose parts were measured."""
    seconds = {(row.job, row.n, row.b, row.approx): row.seconds for row in rows if row.seconds}
    peaks = {(row.job, row.n, row.b): row.peak_bytes for row in rows if row.peak_bytes is not None and not row.approx}
    found: dict[str, dict[str, Any]] = {}

    def put(name: str, value: float | None, target: float, at_most: bool = True) -> None:
        if value is not None:
            found[name] = {"value": value, "target": target, "at_most": at_most}

    def quotient(over: tuple, under: tuple) -> float | None:
        a, b = seconds.get((*over, False)), seconds.get((*under, False))
        return a / b if a and b else None

    for job, time_target, memory_target in (("probcover", 1.8, 1.5), ("maxherding", 8.0, 1.5), ("typiclust", 2.5, 1.0)):
        at = (job, 50_000, 1_000)
        put(f"{job}: time / GEMM pass, n=50k b=1000", quotient(at, ("gemm pass", 50_000, 0)), time_target)
        put(f"{job}: peak GiB above the input, n=50k b=1000", peaks[at] / GIB if at in peaks else None, memory_target)
    for job, peer, target in (
        ("probcover", "scikit-activeml probcover", 8.0),
        ("typiclust", "scikit-activeml typiclust", 3.0),
        ("maxherding", "dense maxherding", 12.0),
    ):
        times = quotient((peer, 10_000, 100), (job, 10_000, 100))
        put(f"{job}: times faster than {peer}, n=10k b=100", times, target, at_most=False)
    for job in OURS:
        put(f"{job}: time at 100k / time at 50k, b=1000", quotient((job, 100_000, 1_000), (job, 50_000, 1_000)), 4.5)
        million = seconds.get((job, MILLION, 1_000, True))
        put(f"{job}: minutes for 1M approximate, b=1000", million / 60 if million else None, 30.0)
        for row in rows:
            if row.job == job and row.approx and row.coverage_loss is not None and row.peak_bytes is not None:
                put(f"{job}: coverage kept, 1M approximate", 1 - row.coverage_loss, 0.97, at_most=False)
                put(f"{job}: peak GiB above the input, 1M approximate", row.peak_bytes / GIB, 24.0)
    return found


def exponents(rows: list[Row]) -> dict[str, float]:
    """Slope of log(seconds) over log(n) for each job and budget measured at three sizes or more."""
    slopes = {}
    for job, b in sorted({(row.job, row.b) for row in rows}):
        exact = [row for row in rows if (row.job, row.b) == (job, b) and not row.approx]
        points = [(row.n, row.seconds) for row in exact if row.seconds]
        if len(points) >= 3:
            n, t = np.log(np.array(points)).T
            slopes[f"{job}, b={b}" if b else job] = float(np.polyfit(n, t, 1)[0])
    return slopes


def machine() -> dict[str, Any]:
    """What the figures were measured on: processor, cores, memory, versions."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    versions = {}
    for package in ("numpy", "torch", "numba", "scikit-learn", "scikit-activeml"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return {
        "processor": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "python": platform.python_version(),
        **versions,
    }


def markdown(rows: list[Row], about: dict[str, Any], data: str) -> str:
    """The table of all measurements (seconds, GEMM passes at that size, peak memory) and of the exponents."""
    floor = {row.n: row.seconds for row in rows if row.job == "gemm pass" and row.seconds}
    lines = [
        "# Selection: time and memory",
        "",
        f"Data: {data}. Machine: {about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB; Python "
        f"{about['python']}, torch {about['torch']}, numpy {about['numpy']}, numba {about['numba']}, "
        f"scikit-learn {about['scikit-learn']}, scikit-activeml {about['scikit-activeml']}.",
        "",
        "Each line is a process of its own; loading and compiling (a warm-up on 512 rows) are not timed, checking and "
        "normalising the input are. Memory is the peak above the loaded input. The GEMM pass is one float32 product "
        "over all pairs, tile by tile, nothing kept (median of three). CPU seconds are summed over threads. Peers run "
        "only at the sizes they can manage in a few minutes and GiB.",
        "",
        "| n | b | job | seconds | GEMM passes | CPU seconds | peak MiB |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(rows, key=lambda row: (row.n, row.b)):
        name = row.job + (" (approximate)" if row.approx else "")
        start = f"| {row.n:,} | {f'{row.b:,}' if row.b else ''} | {name} |"
        if row.seconds is None or row.peak_bytes is None:
            lines.append(f"{start} failed: {row.failure} | | | |")
            continue
        passes = f"{row.seconds / floor[row.n]:.2f}" if row.n in floor else ""
        cost = f"{row.cpu_seconds or 0:.2f} | {row.peak_bytes / 2**20:.0f}"
        lines.append(f"{start} {row.seconds:.2f} | {passes} | {cost} |")
    slopes = exponents(rows)
    if slopes:
        lines += ["", "Growth: time ~ n^e, fitted over the sizes above.", "", "| job | e |", "| --- | ---: |"]
        lines += [f"| {job} | {slope:.2f} |" for job, slope in slopes.items()]
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], out: Path) -> None:
    """A log-log plot of seconds over n, one panel a budget, as select.png and select.svg in `out`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    budgets = sorted({row.b for row in rows if row.b and not row.approx})
    figure, panels = pyplot.subplots(1, max(len(budgets), 1), figsize=(5.5 * max(len(budgets), 1), 4.5), sharey=True)
    for panel, b in zip(np.atleast_1d(panels), budgets):
        for job in dict.fromkeys(row.job for row in rows):
            exact = [row for row in rows if row.job == job and row.b in (0, b) and not row.approx]
            points = [(row.n, row.seconds) for row in exact if row.seconds]
            if points:
                style = "k--" if job == "gemm pass" else ("o-" if job in OURS else "x:")
                panel.loglog(*zip(*sorted(points)), style, label=job)
        panel.set(xlabel="samples n", title=f"budget {b:,}")
        panel.grid(alpha=0.3, which="both")
    np.atleast_1d(panels)[0].set_ylabel("seconds")
    np.atleast_1d(panels)[0].legend(fontsize=8)
    figure.tight_layout()
    for kind in ("png", "svg"):
        with atomic(out / f"select.{kind}") as temporary:
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)


def write_results(rows: list[Row], data: str, out: Path) -> dict[str, dict[str, Any]]:
    """select.json, select.md and the plots into `out`; returns the figures that have targets."""
    about = machine()
    figures = ratios(rows)
    measured = [asdict(row) for row in rows]
    content = {
        "data": data,
        "machine": about,
        "figures": figures,
        "exponents": exponents(rows),
        "measurements": measured,
    }
    write_json(out / "select.json", content)
    write_text(out / "select.md", markdown(rows, about, data) + "\n" + figures_markdown(figures))
    plot(rows, out)
    return figures


def bench_select(
    out: Path,
    data: Path | None = None,
    *,
    quick: bool = False,
    sizes: list[int] | None = None,
    peers: bool = True,
    million: bool = False,
) -> dict[str, dict[str, Any]]:
    """Measure, write the results into `out`, return the figures that have targets. `quick`: to 10,000 rows, b = 100."""
    sizes = sizes or list(SIZES[:2] if quick else SIZES)
    budgets = [100] if quick else list(BUDGETS)
    source = vectors.load(data)[0] if data else vectors.synthetic(min(max(sizes), 50_000))
    name = f"{data.name if data else 'synthetic'}, {len(source):,} x {source.shape[1]}"
    if max(sizes) > len(source) or million:
        name += f"; rows beyond {len(source):,} are copies moved by {vectors.JITTER}"
    rows: list[Row] = []
    for row in run_grid(source, sizes, budgets, peers=peers, million=million):
        if rows and row.n != rows[-1].n:
            write_results(rows, name, out)  # what is known so far, in case the run is cut short
        rows.append(row)
    return write_results(rows, name, out)
