"""`cofal select` as people run it: the CSV it writes, and the one line it prints when something is wrong."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import cofal
from cofal.cli import app
from cofal.errors import UserError


@pytest.fixture
def files(tmp_path):
    """Two clients' embeddings: (path, path, arrays)."""
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(30, 6)).astype(np.float32), rng.normal(size=(20, 6)).astype(np.float16)]
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path, array in zip(paths, arrays):
        np.save(path, array)
    return *paths, arrays


def run(*arguments):
    return CliRunner().invoke(app, ["select", *map(str, arguments)], catch_exceptions=True)


def refused(*arguments) -> str:
    """The message of a user's mistake; the command must have written nothing."""
    result = run(*arguments)
    assert isinstance(result.exception, UserError), result.output
    assert result.exception.exit_status == 2
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_the_files_that_are_read_are_never_written_over(files, tmp_path):
    a, b, arrays = files
    labeled = tmp_path / "labeled.txt"
    labeled.write_text("1\n")
    for out in (a, b, labeled):
        told = refused(
            *("--client", a, "--client", b, "--budget", 2, "--budget", 2, "--labeled", labeled), "--out", out
        )
        assert f"--out {out} is one of the files that are read" in told
    np.testing.assert_array_equal(np.load(a), arrays[0])
    assert labeled.read_text() == "1\n"


def test_settings_of_aggregate_selection_reach_it(files, tmp_path):
    a, b, arrays = files
    given = ("--client", a, "--client", b, "--budget", 4, "--budget", 3, "--method", "probcover", "--delta", 0.9)
    paper = ("--coordination", "aggregate", "--schedule", "paper", "--min-region", 1)
    result = run(*given, *paper, "--json", "--out", tmp_path / "picks.csv")
    assert result.exit_code == 0, result.output
    picks = cofal.select(arrays, [4, 3], "probcover", "aggregate", delta=0.9, schedule="paper", min_region=1)
    assert json.loads(result.stdout)["rounds"] == picks.rounds > 15
    told = refused(*given, "--min-region", 1, "--out", tmp_path / "other.csv")
    assert told == "--min-region is for --coordination aggregate; leave it out, or use that"
    assert "schedule = 'papper'" in refused(*given, *paper[:2], "--schedule", "papper", "--out", tmp_path / "other.csv")


def test_csv_holds_the_picks_of_the_python_call(files, tmp_path):
    a, b, arrays = files
    out = tmp_path / "new folder" / "picks.csv"
    result = run("--client", a, "--client", b, "--budget", 4, "--budget", 3, "--out", out)
    assert result.exit_code == 0, result.output
    assert "7 picks" in result.output
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = cofal.select(arrays, [4, 3]).order
    assert [(int(row["client"]), int(row["index"])) for row in rows] == wanted
    assert [int(row["rank"]) for row in rows] == list(range(7))
    assert out.read_text().splitlines()[0] == "rank,client,index"


def test_every_option_reaches_the_selection(files, tmp_path):
    a, b, arrays = files
    (tmp_path / "a.txt").write_text("3\n\n5\n")
    (tmp_path / "b.txt").write_text("")
    out = tmp_path / "picks.csv"
    labels = ["--labeled", tmp_path / "a.txt", "--labeled", tmp_path / "b.txt"]
    common = ["--client", a, "--client", b, "--budget", 4, "--budget", 3, "--out", out, "--json", *labels]
    result = run(
        *common, "--method", "probcover", "--delta", 0.9, "--coordination", "per-client", "--memory-limit", 0.5
    )
    wanted = cofal.select(arrays, [4, 3], "probcover", "per-client", [[3, 5], []], delta=0.9)
    found = json.loads(result.output)
    assert [(pick["client"], pick["index"]) for pick in found["picks"]] == wanted.order
    assert [client["picked"] for client in found["clients"]] == [4, 3]
    result = run(*common, "--method", "maxherding", "--kernel", "laplace", "--lengthscale", 0.5, "--approx")
    found = json.loads(result.output)
    wanted = cofal.select(arrays, [4, 3], labeled=[[3, 5], []], kernel="laplace", lengthscale=0.5)
    assert [(pick["client"], pick["index"]) for pick in found["picks"]] == wanted.order
    assert found["coverage_loss"] == 0
    result = run(*common, "--method", "random", "--seed", 9)
    wanted = cofal.select(arrays, [4, 3], "random", labeled=[[3, 5], []], seed=9)
    assert [(pick["client"], pick["index"]) for pick in json.loads(result.output)["picks"]] == wanted.order


@pytest.mark.parametrize(
    ("options", "fitted"),
    [
        ([], {"lengthscale": 0.82}),
        (["--kernel", "cauchy"], {"lengthscale": 1.0}),
        (["--kernel", "tophat", "--lengthscale", 0.9], {"lengthscale": 1.0954}),
        (["--method", "probcover", "--delta", 0.9], {"delta": 1.0954}),
        (["--method", "probcover", "--delta", "auto"], {}),
        (["--method", "typiclust", "--mechanism", "vmf"], {"mechanism": "vmf"}),
    ],
)
def test_noise_and_what_was_fitted_to_it_are_told(files, tmp_path, options, fitted):
    a, b, _ = files
    common = ["--client", a, "--client", b, "--budget", 4, "--budget", 3, "--out", tmp_path / "picks.csv"]
    assert json.loads(run(*common, *options, "--json").output)["noise"] is None
    told = json.loads(run(*common, *options, "--epsilon", 0.6, "--json").output)["noise"]
    assert told == pytest.approx({"epsilon": 0.6, "mechanism": "tangent", **fitted}, abs=1e-4)
    words = run(*common, *options, "--epsilon", 0.6).output
    assert f"noise {told['mechanism']} with epsilon 0.6 on every embedding" in words
    assert all(f"{name} {told[name]:.4g}, fitted to it" in words for name in ("delta", "lengthscale") if name in told)


def test_npz_with_one_array_is_read(files, tmp_path):
    a, _, arrays = files
    np.savez(tmp_path / "one.npz", arrays[0])
    out = tmp_path / "picks.csv"
    assert run("--client", tmp_path / "one.npz", "--budget", 4, "--out", out).exit_code == 0
    wanted = out.read_text()
    assert run("--client", a, "--budget", 4, "--out", out).exit_code == 0
    assert out.read_text() == wanted


def test_wrong_files_are_named(files, tmp_path):
    a, _, arrays = files
    out = ["--out", tmp_path / "picks.csv"]
    (tmp_path / "text.npy").write_text("1,2\n3,4\n")
    (tmp_path / "empty.npy").write_text("")
    np.save(tmp_path / "objects.npy", np.array([{}, "x"], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", x=arrays[0], y=arrays[1])
    np.save(tmp_path / "wide.npy", np.ones((4, 7)))
    (tmp_path / "cut.npy").write_bytes(a.read_bytes()[:200])
    gone = refused("--client", tmp_path / "none.npy", "--budget", 1, *out)
    assert gone.endswith("none.npy: No such file or directory; give an .npy file written with numpy.save")
    for name in ("none.txt", ""):
        told = refused("--client", a, "--budget", 1, "--labeled", tmp_path / name, *out)
        assert told.startswith(f"cannot read {tmp_path / name}: ")
        assert told.endswith("; give a text file of positions, one a line")
    assert "is a folder" in refused("--client", tmp_path, "--budget", 1, *out)
    for name in ("text.npy", "empty.npy", "cut.npy"):
        assert f"{name} is not a whole .npy file" in refused("--client", tmp_path / name, "--budget", 1, *out)
    assert "Python objects" in refused("--client", tmp_path / "objects.npy", "--budget", 1, *out)
    assert "holds 2 arrays (x, y)" in refused("--client", tmp_path / "two.npz", "--budget", 1, *out)
    both = refused("--client", a, "--client", tmp_path / "wide.npy", "--budget", 1, "--budget", 1, *out)
    assert f"client 1 ({tmp_path / 'wide.npy'}) has embeddings of 7 dimensions but client 0 ({a}) has 6" in both
    assert not (tmp_path / "picks.csv").exists()


def test_wrong_values_are_named(files, tmp_path):
    a, b, arrays = files
    out = ["--out", tmp_path / "picks.csv"]
    broken = arrays[0].copy()
    broken[7, 2] = np.nan
    np.save(tmp_path / "nan.npy", broken)
    broken[7] = 0
    np.save(tmp_path / "zero.npy", broken)
    (tmp_path / "far.txt").write_text("30\n")
    (tmp_path / "word.txt").write_text("3\nfour\n")
    assert f"row 7 of client 0 ({tmp_path / 'nan.npy'}) holds NaN" in refused(
        "--client", tmp_path / "nan.npy", "--budget", 1, *out
    )
    assert f"row 7 of client 0 ({tmp_path / 'zero.npy'}) is all zeros" in refused(
        "--client", tmp_path / "zero.npy", "--budget", 1, *out
    )
    assert "is -1" in refused("--client", a, "--budget", -1, *out)
    assert "31" in refused("--client", a, "--budget", 31, *out)
    assert "1 budgets" in refused("--client", a, "--client", b, "--budget", 1, *out)
    assert f"position 30 of client 0 ({a})" in refused(
        "--client", a, "--budget", 1, "--labeled", tmp_path / "far.txt", *out
    )
    (tmp_path / "huge.txt").write_text("99999999999999999999999\n3\n")
    assert f"position 99999999999999999999999 of client 0 ({a}) is outside its rows" in refused(
        "--client", a, "--budget", 1, "--labeled", tmp_path / "huge.txt", *out
    )
    assert "line 2" in refused("--client", a, "--budget", 1, "--labeled", tmp_path / "word.txt", *out)
    assert "'maxherding'" in refused("--client", a, "--budget", 1, "--method", "maxherdng", *out)
    assert "--delta wide" in refused("--client", a, "--budget", 1, "--method", "probcover", "--delta", "wide", *out)
    for radius in ("0", "3", "-1", "nan"):
        told = refused("--client", a, "--budget", 1, "--method", "probcover", "--delta", radius, *out)
        assert told.endswith("is no radius between unit rows; use a number above 0 and at most 2, or 'auto'")
    for way in ("aggregate", "per-client"):
        alone = ("--client", a, "--budget", 1, "--coordination", way, *out)
        assert "unknown mechanism 'foo'" in refused(*alone, "--mechanism", "foo")
        assert "sharing = 'aggregates' is for auto" in refused(*alone, "--sharing", "aggregates")
    assert "'delta', which belongs to probcover" in refused("--client", a, "--budget", 1, "--delta", "0.5", *out)
    veiled = ("--client", a, "--budget", 1, "--coordination", "aggregate", *out)
    assert "'memory_limit' under this coordination" in refused(*veiled, "--memory-limit", 1)
    told = refused(*veiled, "--method", "probcover", "--iterations", 15)
    assert told.endswith("'iterations', which belongs to typiclust; leave it out, or use method 'typiclust'")
    assert "from 2 to 1,000" in refused(*veiled, "--method", "typiclust", "--iterations", 100_000_000)
    kernels = refused("--client", a, "--budget", 1, "--kernel", "gausian", *out)
    assert kernels.endswith("did you mean 'gaussian'? (known: gaussian, laplace, cauchy, tophat)")
    for limit in ("-1", "0", "nan", "inf"):
        assert f"--memory-limit {limit} " in refused("--client", a, "--budget", 1, "--memory-limit", limit, *out)
    assert not (tmp_path / "picks.csv").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_work(files, tmp_path):
    a, _, _ = files
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused("--client", a, "--budget", 1, "--out", tmp_path)
    assert "cannot write" in refused("--client", a, "--budget", 1, "--out", tmp_path / "file" / "picks.csv")


def command(*arguments):
    return [sys.executable, "-c", "from cofal.cli import main; main()", "select", *map(str, arguments)]


def test_the_process_exits_2_with_one_line_and_no_traceback(files, tmp_path):
    a, _, _ = files
    done = subprocess.run(
        command("--client", a, "--budget", 99, "--out", tmp_path / "picks.csv"), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"cofal: the budget of client 0 ({a}) is 99")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_ctrl_c_leaves_no_output(tmp_path):
    rows = np.random.default_rng(0).normal(size=(30_000, 64)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    out = tmp_path / "out" / "picks.csv"
    process = subprocess.Popen(
        command("--client", tmp_path / "rows.npy", "--budget", 20_000, "--out", out),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while b"rows.npy" not in _open_files(process.pid) and time.monotonic() < deadline:
        os.sched_yield()  # until the embeddings are mapped: the selection has begun
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not out.exists()
    assert not out.parent.exists() or not list(out.parent.iterdir())


def _open_files(pid: int) -> bytes:
    with open(f"/proc/{pid}/maps", "rb") as maps:
        return maps.read()
